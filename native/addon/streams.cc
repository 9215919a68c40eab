#include "addon/bindings.h"
#include "addon/captures.h"
#include "addon/completions.h"
#include "addon/hand_overs.h"
#include "addon/stopped_calls.h"

namespace cistern {
namespace {

// An event of the primary context cannot be recorded on a stream of another one. A driver without
// cuStreamGetCtx does not say which it is.
Status CheckContextOf(Environment& environment, Stream stream, int device) {
  Context primary, context = nullptr;
  Status status = environment.ContextOf(device, &primary);
  if (status == kSuccess) status = environment.Counted<Call::kStreamGetCtx>(stream, &context);
  if (status == kErrorNotSupported) return kSuccess;
  if (status != kSuccess || context == primary) return status;
  int found = -1;
  for (int other = 0; other < environment.device_count(); ++other) {
    const bool is_known = environment.IsInUse(other) && environment.ContextOf(other, &primary) == kSuccess;
    if (is_known && context == primary) found = other;
  }
  environment.Out(1, found);
  return kForeignContext;
}

// The entry of a live stream that this environment has created, or has from another; others may be of a stream that is gone.
const StreamEntry* FindOwn(Environment& environment, Stream stream, int device) {
  const StreamEntry* found = nullptr;
  environment.streams.ForEach([&](std::uint64_t, const StreamEntry& each) {
    const bool is_live = each.owned || each.shared.hand_over != 0;
    if (each.stream == stream && each.device == device && is_live && each.id != 0) found = &each;
  });
  return found;
}

}  // namespace

Status CreateStream(Environment& environment, const Napi::CallbackInfo& info) {
  int device, priority;
  bool non_blocking;
  if (!ReadInt(info[0], &device) || !ReadBoolean(info[1], &non_blocking) || !ReadInt(info[2], &priority)) return kInvalidArgument;
  if (environment.driver == nullptr) return kNoBackend;
  if (!environment.HasDevice(device)) return kInvalidArgument;
  environment.ReapOrphans();
  const RelaxedContextScope context(environment, device);
  if (context.status() != kSuccess) return context.status();

  Stream stream = nullptr;
  const unsigned flags = non_blocking ? kStreamNonBlocking : kStreamDefault;
  const Status status = environment.Counted<Call::kStreamCreateWithPriority>(&stream, flags, priority);
  if (status != kSuccess) return status;
  const std::uint64_t handle = environment.streams.Add({stream, device, true, {}, true, 0, flags});
  if (handle == 0) {
    environment.Counted<Call::kStreamDestroy>(stream);
    return kHostOutOfMemory;
  }
  environment.Out(1, static_cast<double>(handle));
  return kSuccess;
}

Status WrapStream(Environment& environment, const Napi::CallbackInfo& info) {
  int device;
  std::uint64_t address;
  if (!ReadInt(info[0], &device) || !ReadInteger(info[1], &address) || address == 0) return kInvalidArgument;
  if (environment.driver == nullptr) return kNoBackend;
  if (!environment.HasDevice(device)) return kInvalidArgument;
  const RelaxedContextScope context(environment, device);
  if (context.status() != kSuccess) return context.status();
  const Stream stream = reinterpret_cast<Stream>(static_cast<std::uintptr_t>(address));
  StreamEntry entry;
  entry.stream = stream;
  entry.device = device;
  if (IsCaptured(environment, entry)) {
    const StreamEntry* known = FindOwn(environment, stream, device);
    if (known == nullptr) return kCapturing;
    entry.id = known->id;
    entry.flags = known->flags;
  } else {
    // The software device recognises a handle that is not one of its streams. CUDA may do so, and
    // only CUDA could.
    Status status = environment.Counted<Call::kStreamGetFlags>(stream, &entry.flags);
    if (status == kSuccess) status = CheckContextOf(environment, stream, device);
    if (status != kSuccess) return status;
  }
  const std::uint64_t handle = environment.streams.Add(std::move(entry));
  if (handle == 0) return kHostOutOfMemory;
  environment.Out(1, static_cast<double>(handle));
  return kSuccess;
}

Status ReleaseStream(Environment& environment, const Napi::CallbackInfo& info) {
  std::uint64_t handle;
  if (!ReadInteger(info[0], &handle)) return kInvalidArgument;
  StreamEntry* stream;
  Status status = environment.streams.Find(static_cast<double>(handle), &stream);
  if (status != kSuccess) return status;
  if (stream->shared.hand_over != 0) {
    const RelaxedContextScope context(environment, stream->device);
    if (context.status() == kSuccess) EndCaptureBegunHere(environment, *stream);
    EndShare(environment, stream->shared);
  } else if (stream->owned) {
    const RelaxedContextScope context(environment, stream->device);
    if (context.status() != kSuccess) return context.status();
    status = environment.Counted<Call::kStreamDestroy>(stream->stream);
    if (status != kSuccess) return status;
    ForgetCapture(environment, stream->stream);
  }
  environment.streams.Remove(handle);
  return kSuccess;
}

Status StreamId(Environment& environment, const Napi::CallbackInfo& info) {
  StreamEntry* stream;
  Status status = FindStream(environment, info[0], &stream);
  if (status != kSuccess) return status;
  if (stream->id == 0) {
    const RelaxedContextScope context(environment, stream->device);
    if (context.status() != kSuccess) return context.status();
    unsigned long long id = 0;
    status = environment.Counted<Call::kStreamGetId>(stream->stream, &id);
    if (status != kSuccess) return status;
    stream->id = id;
  }
  environment.Out(1, static_cast<double>(stream->id));
  return kSuccess;
}

Status StreamAddress(Environment& environment, const Napi::CallbackInfo& info) {
  StreamEntry* stream;
  const Status status = FindStream(environment, info[0], &stream);
  if (status != kSuccess) return status;
  const std::uintptr_t address = reinterpret_cast<std::uintptr_t>(stream->stream);
  if (address > kMaxSafeInteger) return kAddressTooLarge;
  stream->never_captured = false;
  environment.Out(1, static_cast<double>(address));
  return kSuccess;
}

Status StreamInfo(Environment& environment, const Napi::CallbackInfo& info) {
  StreamEntry* stream;
  Status status = FindStream(environment, info[0], &stream);
  if (status != kSuccess) return status;
  const RelaxedContextScope context(environment, stream->device);
  if (context.status() != kSuccess) return context.status();
  int priority = 0;
  status = environment.Counted<Call::kStreamGetPriority>(stream->stream, &priority);
  if (status != kSuccess) return status;
  environment.Out(1, priority);
  environment.Out(2, (stream->flags & kStreamNonBlocking) != 0 ? 1 : 0);
  return kSuccess;
}

Status SynchronizeStream(Environment& environment, const Napi::CallbackInfo& info) {
  std::uint64_t handle;
  if (!ReadInteger(info[0], &handle)) return kInvalidArgument;
  StoppedCall call = TakeStoppedCall(environment, handle);
  if (call.event == nullptr) {
    StreamEntry* stream;
    Status status = FindUncapturedStream(environment, info[0], &stream);
    if (status != kSuccess) return status;
    const RelaxedContextScope context(environment, stream->device);
    if (context.status() != kSuccess) return context.status();
    if (environment.outstanding_host_functions > 0) status = environment.driver->StreamQuery(stream->stream);
    if (status == kSuccess) return environment.Counted<Call::kStreamSynchronize>(stream->stream);
    if (status != kErrorNotReady) return status;
    if (environment.running_host_functions > 0) return kErrorNotPermitted;
    status = RecordInternalEvent(environment, *stream, &call.event);
    if (status != kSuccess) return status;
    call.device = stream->device;
    call.handle = handle;
  }
  const RelaxedContextScope context(environment, call.device);
  if (context.status() != kSuccess) return context.status();
  const Status status = WaitOrStop(environment, call);
  if (status == kSuccess) environment.internal_events.Release(call.event, call.device);
  return status;
}

Status QueryStream(Environment& environment) {
  StreamEntry* stream;
  Status status = environment.streams.Find(environment.In(0), &stream);
  if (status != kSuccess) return status;
  const RelaxedContextScope context(environment, stream->device);
  if (context.status() != kSuccess) return context.status();
  status = CheckNotCapturedHere(environment, *stream);
  if (status != kSuccess) return status;
  status = environment.Counted<Call::kStreamQuery>(stream->stream);
  if (status != kSuccess && status != kErrorNotReady) return status;
  environment.Out(1, status == kSuccess ? 1 : 0);
  return kSuccess;
}

}  // namespace cistern
