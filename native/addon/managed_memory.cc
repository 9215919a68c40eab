#include "addon/bindings.h"
#include "addon/captures.h"
#include "addon/ranges.h"

namespace cistern {
namespace {

Status ReadLocation(const Environment& environment, const Napi::CallbackInfo& info, int index, MemLocation* location) {
  int type, id;
  if (!ReadInt(info[index], &type) || !ReadInt(info[index + 1], &id)) return kInvalidArgument;
  if (type == kLocationHost) {
    *location = {kLocationHost, 0};
    return kSuccess;
  }
  if (type != kLocationDevice || !environment.HasDevice(id)) return kInvalidArgument;
  *location = {kLocationDevice, environment.DriverDevice(id)};
  return kSuccess;
}

}  // namespace

Status Advise(Environment& environment, const Napi::CallbackInfo& info) {
  std::uint64_t address, bytes;
  int advice;
  if (!ReadInteger(info[0], &address) || !ReadInteger(info[1], &bytes) || !ReadInt(info[2], &advice)) return kInvalidArgument;
  if (advice < kAdviseSetReadMostly || advice > kAdviseUnsetAccessedBy) return kInvalidArgument;
  if (environment.driver == nullptr) return kNoBackend;
  MemLocation location;
  Location range;
  Status status = ReadLocation(environment, info, 3, &location);
  if (status != kSuccess || bytes == 0) return status;
  const RelaxedContextScope context(environment, 0);
  if (context.status() != kSuccess) return context.status();
  status = CheckRange(environment, address, bytes, &range);
  if (status != kSuccess) return status;
  return environment.Counted<Call::kMemAdvise>(DevicePointer{address}, static_cast<std::size_t>(bytes), advice, location);
}

Status Prefetch(Environment& environment, const Napi::CallbackInfo& info) {
  std::uint64_t address, bytes;
  double handle;
  if (!ReadInteger(info[0], &address) || !ReadInteger(info[1], &bytes) || !ReadNumber(info[4], &handle)) return kInvalidArgument;
  if (environment.driver == nullptr) return kNoBackend;
  MemLocation location;
  Location range;
  StreamEntry* stream;
  Status status = ReadLocation(environment, info, 2, &location);
  if (status == kSuccess) status = environment.streams.Find(handle, &stream);
  if (status == kSuccess) status = CheckNotCaptured(environment, *stream);
  if (status != kSuccess || bytes == 0) return status;
  const RelaxedContextScope context(environment, stream->device);
  if (context.status() != kSuccess) return context.status();
  status = CheckRange(environment, address, bytes, &range);
  if (status != kSuccess) return status;
  return environment.Counted<Call::kMemPrefetchAsync>(DevicePointer{address}, static_cast<std::size_t>(bytes), location, 0u,
                                                      stream->stream);
}

Status RangeAttribute(Environment& environment, const Napi::CallbackInfo& info) {
  std::uint64_t address, bytes;
  int attribute;
  if (!ReadInteger(info[0], &address) || !ReadInteger(info[1], &bytes) || !ReadInt(info[2], &attribute)) return kInvalidArgument;
  if (attribute < kRangeReadMostly || attribute > kRangeLastPrefetchLocation || bytes == 0) return kInvalidArgument;
  if (environment.driver == nullptr) return kNoBackend;
  const RelaxedContextScope context(environment, 0);
  if (context.status() != kSuccess) return context.status();
  Location range;
  Status status = CheckRange(environment, address, bytes, &range);
  if (status != kSuccess) return status;
  std::int32_t value = 0;
  status = environment.Counted<Call::kMemRangeGetAttribute>(static_cast<void*>(&value), sizeof(value), attribute, DevicePointer{address},
                                                            static_cast<std::size_t>(bytes));
  if (status != kSuccess) return status;
  environment.Out(1, value);
  return kSuccess;
}

}  // namespace cistern
