#include "addon/bindings.h"
#include "addon/captures.h"
#include "addon/completions.h"
#include "addon/hand_overs.h"
#include "addon/stopped_calls.h"

namespace cistern {
namespace {

unsigned EventFlags(bool timing) { return timing ? kEventDefault : kEventDisableTiming; }

// Whoever waits for the latest recording keeps the event that has it.
[[gnu::noinline]] Status RecordWatchedEvent(Environment& environment, EventEntry* event, Stream stream) {
  Event replacement = nullptr;
  Status status;
  {
    const RelaxedContextScope context(environment, event->device);
    status = context.status() == kSuccess ? environment.driver->EventCreate(&replacement, EventFlags(event->timing)) : context.status();
  }
  if (status != kSuccess) return status;
  status = environment.Counted<Call::kEventRecord>(replacement, stream);
  if (status == kSuccess) {
    DetachWatchedEvent(event, replacement);
  } else {
    environment.driver->EventDestroy(replacement);
  }
  return status;
}

}  // namespace

Status CreateEvent(Environment& environment, const Napi::CallbackInfo& info) {
  int device;
  bool timing;
  if (!ReadInt(info[0], &device) || !ReadBoolean(info[1], &timing)) return kInvalidArgument;
  if (environment.driver == nullptr) return kNoBackend;
  if (!environment.HasDevice(device)) return kInvalidArgument;
  const RelaxedContextScope context(environment, device);
  if (context.status() != kSuccess) return context.status();
  Event event = nullptr;
  const Status status = environment.Counted<Call::kEventCreate>(&event, EventFlags(timing));
  if (status != kSuccess) return status;
  const std::uint64_t handle = environment.events.Add({event, device, timing, nullptr, {}, 0});
  if (handle == 0) {
    environment.Counted<Call::kEventDestroy>(event);
    return kHostOutOfMemory;
  }
  environment.Out(1, static_cast<double>(handle));
  return kSuccess;
}

Status DestroyEvent(Environment& environment, const Napi::CallbackInfo& info) {
  std::uint64_t handle;
  if (!ReadInteger(info[0], &handle)) return kInvalidArgument;
  EventEntry* event;
  Status status = environment.events.Find(static_cast<double>(handle), &event);
  if (status != kSuccess) return status;
  if (event->watched != nullptr) {
    DetachWatchedEvent(event, nullptr);
  } else if (event->shared.hand_over != 0) {
    EndShare(environment, event->shared);
  } else if (!DestroyAfterCapture(environment, *event)) {
    const RelaxedContextScope context(environment, event->device);
    if (context.status() != kSuccess) return context.status();
    status = environment.Counted<Call::kEventDestroy>(event->event);
    if (status != kSuccess) return status;
  }
  environment.events.Remove(handle);
  return kSuccess;
}

Status RecordEvent(Environment& environment) {
  EventEntry* event;
  StreamEntry* stream;
  Status status = environment.events.Find(environment.In(0), &event);
  if (status == kSuccess) status = environment.streams.Find(environment.In(1), &stream);
  if (status != kSuccess) return status;
  const ContextScope context(environment, stream->device);
  if (context.status() != kSuccess) return context.status();
  status = NoteCaptureOf(environment, *stream, environment.In(2) != 0, event);
  if (status != kSuccess) return status;
  if (event->watched != nullptr) return RecordWatchedEvent(environment, event, stream->stream);
  return environment.Counted<Call::kEventRecord>(event->event, stream->stream);
}

Status WaitEvent(Environment& environment) {
  StreamEntry* stream;
  EventEntry* event;
  Status status = environment.streams.Find(environment.In(0), &stream);
  if (status == kSuccess) status = environment.events.Find(environment.In(1), &event);
  if (status != kSuccess) return status;
  const ContextScope context(environment, stream->device);
  if (context.status() != kSuccess) return context.status();
  status = CheckWait(environment, *stream, *event, environment.In(2) != 0);
  if (status != kSuccess) return status;
  status = environment.Counted<Call::kStreamWaitEvent>(stream->stream, event->event, 0u);
  // What drivers say of an event whose capture has ended.
  return status == kErrorInvalidValue && event->capture != 0 ? Status{kCapturedEvent} : status;
}

Status QueryEvent(Environment& environment) {
  EventEntry* event;
  Status status = environment.events.Find(environment.In(0), &event);
  if (status != kSuccess) return status;
  status = CheckNotCaptured(*event);
  if (status != kSuccess) return status;
  const RelaxedContextScope context(environment, event->device);
  if (context.status() != kSuccess) return context.status();
  status = environment.Counted<Call::kEventQuery>(event->event);
  if (status != kSuccess && status != kErrorNotReady) return status;
  environment.Out(1, status == kSuccess ? 1 : 0);
  return kSuccess;
}

Status SynchronizeEvent(Environment& environment, const Napi::CallbackInfo& info) {
  std::uint64_t handle;
  if (!ReadInteger(info[0], &handle)) return kInvalidArgument;
  StoppedCall call = TakeStoppedCall(environment, handle, true);
  if (call.event == nullptr) {
    EventEntry* event;
    Status status = environment.events.Find(static_cast<double>(handle), &event);
    if (status == kSuccess) status = CheckNotCaptured(*event);
    if (status != kSuccess) return status;
    const RelaxedContextScope context(environment, event->device);
    if (context.status() != kSuccess) return context.status();
    if (environment.outstanding_host_functions > 0) status = environment.driver->EventQuery(event->event);
    if (status == kSuccess) return environment.Counted<Call::kEventSynchronize>(event->event);
    if (status != kErrorNotReady) return status;
    if (environment.running_host_functions > 0) return kErrorNotPermitted;
    // A host function may record the event again, or destroy it.
    call.watched = WatchEvent(environment, handle, event);
    call.event = event->event;
    call.device = event->device;
    call.handle = handle;
  }
  const RelaxedContextScope context(environment, call.device);
  if (context.status() != kSuccess) return context.status();
  const Status status = WaitOrStop(environment, call);
  if (status != kHostFunctionReady) ForgetEvent(environment, call.watched);
  return status;
}

Status ElapsedMilliseconds(Environment& environment, const Napi::CallbackInfo& info) {
  double start_handle, end_handle;
  if (!ReadNumber(info[0], &start_handle) || !ReadNumber(info[1], &end_handle)) return kInvalidArgument;
  EventEntry* start;
  EventEntry* end;
  Status status = environment.events.Find(start_handle, &start);
  if (status == kSuccess) status = environment.events.Find(end_handle, &end);
  if (status == kSuccess) status = CheckNotCaptured(*start);
  if (status == kSuccess) status = CheckNotCaptured(*end);
  if (status != kSuccess) return status;
  const RelaxedContextScope context(environment, start->device);
  if (context.status() != kSuccess) return context.status();
  float milliseconds = 0;
  status = environment.Counted<Call::kEventElapsedTime>(&milliseconds, start->event, end->event);
  if (status != kSuccess) return status;
  environment.Out(1, milliseconds);
  return kSuccess;
}

}  // namespace cistern
