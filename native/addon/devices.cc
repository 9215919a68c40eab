#include "addon/bindings.h"
#include "addon/captures.h"
#include "addon/host_functions.h"

namespace cistern {
namespace {

Status FindDevice(Environment& environment, const Napi::CallbackInfo& info, int* device) {
  if (!ReadInt(info[0], device)) return kInvalidArgument;
  if (environment.driver == nullptr) return kNoBackend;
  return environment.HasDevice(*device) ? kSuccess : kInvalidArgument;
}

}  // namespace

Status DeviceCount(Environment& environment, const Napi::CallbackInfo&) {
  if (environment.driver == nullptr) return kNoBackend;
  int count = 0;
  const Status status = environment.Counted<Call::kDeviceGetCount>(&count);
  if (status == kSuccess) environment.Out(1, count);
  return status;
}

Status DeviceName(Environment& environment, const Napi::CallbackInfo& info, Napi::Value* result) {
  char name[256] = "";
  int device;
  Status status = FindDevice(environment, info, &device);
  if (status == kSuccess) {
    status = environment.Counted<Call::kDeviceGetName>(static_cast<char*>(name), int{sizeof(name)}, environment.DriverDevice(device));
  }
  name[sizeof(name) - 1] = '\0';
  *result = Napi::String::New(info.Env(), status == kSuccess ? name : "");
  return status;
}

Status DeviceUuid(Environment& environment, const Napi::CallbackInfo& info, Napi::Value* result) {
  constexpr int kUuidBytes = 16;
  unsigned char uuid[kUuidBytes] = {};
  char text[2 * kUuidBytes + 1] = "";
  int device;
  Status status = FindDevice(environment, info, &device);
  if (status == kSuccess) {
    status = environment.Counted<Call::kDeviceGetUuid>(static_cast<unsigned char*>(uuid), environment.DriverDevice(device));
  }
  if (status == kSuccess) {
    for (int index = 0; index < kUuidBytes; ++index) {
      text[2 * index] = "0123456789abcdef"[uuid[index] >> 4];
      text[2 * index + 1] = "0123456789abcdef"[uuid[index] & 15];
    }
  }
  *result = Napi::String::New(info.Env(), text);
  return status;
}

Status DeviceTotalBytes(Environment& environment, const Napi::CallbackInfo& info) {
  int device;
  Status status = FindDevice(environment, info, &device);
  if (status != kSuccess) return status;
  std::size_t bytes = 0;
  status = environment.Counted<Call::kDeviceTotalMem>(&bytes, environment.DriverDevice(device));
  if (status == kSuccess) environment.Out(1, static_cast<double>(bytes));
  return status;
}

Status DeviceAttribute(Environment& environment, const Napi::CallbackInfo& info) {
  int device, attribute;
  Status status = FindDevice(environment, info, &device);
  if (status != kSuccess) return status;
  if (!ReadInt(info[1], &attribute)) return kInvalidArgument;
  int value = 0;
  status = environment.Counted<Call::kDeviceGetAttribute>(&value, attribute, environment.DriverDevice(device));
  if (status == kSuccess) environment.Out(1, value);
  return status;
}

Status DeviceStreamPriorityRange(Environment& environment, const Napi::CallbackInfo& info) {
  int device;
  Status status = FindDevice(environment, info, &device);
  if (status != kSuccess) return status;
  const RelaxedContextScope context(environment, device);
  if (context.status() != kSuccess) return context.status();
  int least = 0;
  int greatest = 0;
  status = environment.Counted<Call::kCtxGetStreamPriorityRange>(&least, &greatest);
  if (status != kSuccess) return status;
  environment.Out(1, least);
  environment.Out(2, greatest);
  return kSuccess;
}

namespace {

// In a context that is gone afterwards: one that stays would take hundreds of MiB of a device that the process does not use.
Status MemoryInfoOfUnused(Environment& environment, int device, std::size_t* free, std::size_t* total) {
  const DriverTable* driver = environment.driver;
  const DeviceOrdinal ordinal = environment.DriverDevice(device);
  Context context = nullptr;
  Context previous = nullptr;
  Status status = environment.Counted<Call::kDevicePrimaryCtxRetain>(&context, ordinal);
  if (status != kSuccess) return status;
  driver->CtxGetCurrent(&previous);
  status = driver->CtxSetCurrent(context);
  if (status == kSuccess) status = environment.Counted<Call::kMemGetInfo>(free, total);
  driver->CtxSetCurrent(previous);
  driver->DevicePrimaryCtxRelease(ordinal);
  return status;
}

Status MemoryInfoOfUsed(Environment& environment, int device, std::size_t* free, std::size_t* total) {
  environment.ReapOrphans();
  const RelaxedContextScope context(environment, device);
  return context.status() != kSuccess ? context.status() : environment.Counted<Call::kMemGetInfo>(free, total);
}

}  // namespace

Status DeviceIsInUse(Environment& environment, const Napi::CallbackInfo& info) {
  int device;
  const Status status = FindDevice(environment, info, &device);
  if (status == kSuccess) environment.Out(1, environment.IsInUse(device) ? 1 : 0);
  return status;
}

Status DeviceMemoryInfo(Environment& environment, const Napi::CallbackInfo& info) {
  int device;
  Status status = FindDevice(environment, info, &device);
  if (status != kSuccess) return status;
  std::size_t free = 0;
  std::size_t total = 0;
  status = environment.IsInUse(device) ? MemoryInfoOfUsed(environment, device, &free, &total)
                                       : MemoryInfoOfUnused(environment, device, &free, &total);
  if (status != kSuccess) return status;
  environment.Out(1, static_cast<double>(free));
  environment.Out(2, static_cast<double>(total));
  return kSuccess;
}

Status SynchronizeDevice(Environment& environment, const Napi::CallbackInfo& info) {
  int device;
  Status status = FindDevice(environment, info, &device);
  if (status == kSuccess) status = BeforeWaitingForDevice(environment);
  if (status != kSuccess) return status;
  const Status synchronized = SynchronizeContext(environment, device, true);
  if (synchronized == kSuccess) environment.ReapOrphans();
  return synchronized;
}

}  // namespace cistern
