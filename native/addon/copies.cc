#include <cstring>

#include "addon/bindings.h"
#include "addon/captures.h"
#include "addon/completions.h"
#include "addon/queued_copies.h"
#include "addon/ranges.h"
#include "addon/stopped_calls.h"

namespace cistern {
namespace {

// Beyond this size, waiting for a copy costs less than pinning that much memory.
constexpr std::uint64_t kMaxStagedBytes = std::uint64_t{64} << 20;

std::uint64_t AddressOf(const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer); }

// Whether the driver may still read an array after a copy from it has returned: a device may read
// memory that the driver does not know itself (CUDA's documentation then promises nothing), and any device
// reads pinned and managed memory, over which arrays exist once the program has made a host view.
bool ReadsLater(Environment& environment, int device, const void* array) {
  if (environment.UsesPageableMemory(device)) return true;
  unsigned type;
  return environment.has_host_views &&
         environment.driver->PointerGetAttribute(&type, kPointerMemoryType, AddressOf(array)) != kErrorInvalidValue;
}

}  // namespace

Status Copy(Environment& environment, const Napi::CallbackInfo& info) {
  std::uint64_t destination, source, bytes;
  if (!ReadInteger(info[0], &destination) || !ReadInteger(info[1], &source) || !ReadInteger(info[2], &bytes)) return kInvalidArgument;
  StreamEntry* stream;
  Status status = FindStream(environment, info[3], &stream);
  if (status != kSuccess || bytes == 0) return status;
  const RelaxedContextScope context(environment, stream->device);
  if (context.status() != kSuccess) return context.status();
  Location to, from;
  status = CheckRange(environment, destination, bytes, &to);
  if (status == kSuccess) status = CheckRange(environment, source, bytes, &from);
  if (status != kSuccess) return status;
  return QueueCopy(environment, to, from, bytes, *stream);
}

Status CopyFromHost(Environment& environment, const Napi::CallbackInfo& info) {
  std::uint64_t destination, bytes;
  ByteView source;
  if (!ReadInteger(info[0], &destination) || !ReadView(info[1], &source) || !ReadInteger(info[2], &bytes)) return kInvalidArgument;
  if (bytes > source.bytes) return kInvalidArgument;
  StreamEntry* stream;
  Status status = FindStream(environment, info[3], &stream);
  if (status != kSuccess || bytes == 0) return status;
  const RelaxedContextScope context(environment, stream->device);
  if (context.status() != kSuccess) return context.status();
  Graph graph;
  Location to;
  status = CapturedGraphOf(environment, *stream, &graph);
  if (status == kSuccess) status = CheckRange(environment, destination, bytes, &to);
  if (status == kSuccess) status = CheckAccess(environment, to, *stream);
  if (status != kSuccess) return status;
  if (graph != nullptr) return CaptureCopyOfArray(environment, graph, to, source.data, bytes, *stream);
  // The driver may wait for a stream that waits for this thread, or may read the array after
  // returning.
  const bool reads_later = ReadsLater(environment, stream->device, source.data);
  if (environment.MayStall() || (reads_later && bytes <= kMaxStagedBytes)) {
    StagingBlock block;
    status = AcquireStaging(environment, bytes, &block);
    if (status != kSuccess) return status;
    std::memcpy(block.pointer, source.data, bytes);
    status = QueueCopy(environment, to, {AddressOf(block.pointer), Place::kPinnedHost}, bytes, *stream);
    if (status == kSuccess) {
      ReleaseStagingLater(environment, block, *stream);
    } else {
      environment.staging.Release(block);
    }
    return status;
  }
  status = environment.Counted<Call::kMemcpyAsync>(DevicePointer{destination}, DevicePointer{AddressOf(source.data)},
                                                   static_cast<std::size_t>(bytes), stream->stream);
  if (status == kSuccess && reads_later) status = environment.driver->StreamSynchronize(stream->stream);
  return status;
}

Status CopyToHostSync(Environment& environment, const Napi::CallbackInfo& info) {
  std::uint64_t source, bytes, handle;
  if (!ReadInteger(info[1], &source) || !ReadInteger(info[2], &bytes) || !ReadInteger(info[3], &handle)) return kInvalidArgument;
  ByteView destination;
  const bool has_room = ReadView(info[0], &destination) && bytes <= destination.bytes;
  StoppedCall call = TakeStoppedCall(environment, handle, false, source, bytes);
  if (call.event == nullptr) {
    if (!has_room) return kInvalidArgument;
    StreamEntry* stream;
    Status status = FindUncapturedStream(environment, info[3], &stream);
    if (status != kSuccess || bytes == 0) return status;
    const RelaxedContextScope context(environment, stream->device);
    if (context.status() != kSuccess) return context.status();
    Location from;
    status = CheckRange(environment, source, bytes, &from);
    if (status == kSuccess) status = CheckAccess(environment, from, *stream);
    if (status != kSuccess) return status;
    if (environment.outstanding_host_functions == 0 && !ReadsTooEarly(from.place)) {
      status = environment.Counted<Call::kMemcpyAsync>(DevicePointer{AddressOf(destination.data)}, DevicePointer{source},
                                                       static_cast<std::size_t>(bytes), stream->stream);
      return status == kSuccess ? environment.Counted<Call::kStreamSynchronize>(stream->stream) : status;
    }
    // The driver would block in the copy itself, and could not be notified that a host function is
    // ready; or it would not see what is still to be written.
    StagedCopy copy;
    status = StageForHost(environment, from, bytes, *stream, &copy);
    if (status != kSuccess) return status;
    call.event = copy.event;
    call.device = stream->device;
    call.handle = handle;
    call.block = copy.block;
    call.source = source;
    call.bytes = bytes;
  }
  const RelaxedContextScope context(environment, call.device);
  if (context.status() != kSuccess) return context.status();
  const Status status = WaitOrStop(environment, call);
  if (status == kErrorNotPermitted) ReleaseLater(environment, {call.block, call.event}, call.device);
  // After any other error the block is never used again: the copy may still be in progress.
  if (status != kSuccess) return status;
  // A host function may have transferred the array, or shrunk it.
  if (has_room) std::memcpy(destination.data, call.block.pointer, bytes);
  environment.internal_events.Release(call.event, call.device);
  environment.staging.Release(call.block);
  return has_room ? kSuccess : kInvalidArgument;
}

Status CopyToHost(Environment& environment, const Napi::CallbackInfo& info, Napi::Value* result) {
  return GivePromise(info.Env(), result, [&](napi_deferred deferred) -> std::optional<Status> {
    std::uint64_t source, bytes;
    if (!ReadInteger(info[0], &source) || !ReadInteger(info[1], &bytes)) return kInvalidArgument;
    const bool has_destination = !info[3].IsUndefined();
    ByteView destination;
    if (has_destination && (!ReadView(info[3], &destination) || bytes > destination.bytes)) return kInvalidArgument;
    StreamEntry* stream;
    Status status = FindUncapturedStream(environment, info[2], &stream);
    if (status != kSuccess) return status;
    if (bytes == 0) {
      if (has_destination) return kSuccess;
      ResolveWithBytes(environment, deferred, nullptr, 0);
      return std::nullopt;
    }
    const RelaxedContextScope context(environment, stream->device);
    if (context.status() != kSuccess) return context.status();
    Location from;
    status = CheckRange(environment, source, bytes, &from);
    if (status == kSuccess) status = CheckAccess(environment, from, *stream);
    if (status != kSuccess) return status;

    auto completion = std::make_unique<Completion>();
    if (has_destination) completion->destination = Napi::Persistent(info[3].As<Napi::Object>());
    StagedCopy copy;
    status = StageForHost(environment, from, bytes, *stream, &copy);
    if (status != kSuccess) return status;
    completion->event = copy.event;
    completion->device = stream->device;
    completion->block = copy.block;
    completion->result_bytes = bytes;
    completion->gives_bytes = !has_destination;
    completion->deferred = deferred;
    Await(environment, std::move(completion));
    return std::nullopt;
  });
}

Status Set(Environment& environment, const Napi::CallbackInfo& info) {
  std::uint64_t destination, value, element_bytes, count;
  if (!ReadInteger(info[0], &destination) || !ReadInteger(info[1], &value) || !ReadInteger(info[2], &element_bytes) ||
      !ReadInteger(info[3], &count)) {
    return kInvalidArgument;
  }
  if (element_bytes != 1 && element_bytes != 4) return kInvalidArgument;
  if (value > (element_bytes == 1 ? UINT8_MAX : UINT32_MAX) || destination % element_bytes != 0) return kInvalidArgument;
  StreamEntry* stream;
  Status status = FindStream(environment, info[4], &stream);
  if (status != kSuccess || count == 0) return status;
  const RelaxedContextScope context(environment, stream->device);
  if (context.status() != kSuccess) return context.status();
  Location to;
  status = CheckRange(environment, destination, count * element_bytes, &to);
  if (status == kSuccess) status = CheckAccess(environment, to, *stream);
  if (status != kSuccess) return status;
  if (element_bytes == 1) {
    return environment.Counted<Call::kMemsetD8Async>(DevicePointer{destination}, static_cast<unsigned char>(value),
                                                     static_cast<std::size_t>(count), stream->stream);
  }
  return environment.Counted<Call::kMemsetD32Async>(DevicePointer{destination}, static_cast<unsigned>(value),
                                                    static_cast<std::size_t>(count), stream->stream);
}

}  // namespace cistern
