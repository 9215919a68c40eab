#include <chrono>
#include <utility>

#include "strict_driver/call.h"
#include "strict_driver/calls.h"
#include "strict_driver/capture.h"
#include "strict_driver/event.h"
#include "strict_driver/ipc.h"
#include "strict_driver/pool.h"
#include "strict_driver/report.h"
#include "strict_driver/settings.h"
#include "strict_driver/stream.h"
#include "strict_driver/wait.h"

namespace cistern::strict {
namespace {

double Now() { return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

}  // namespace

Status FindEvent(Event handle, std::shared_ptr<EventState>* event) {
  *event = driver.events.Find(handle);
  if (*event != nullptr) return kSuccess;
  Report("MISUSE", "%s: %p is %s", thread.function, static_cast<void*>(handle),
         driver.events.WasEverLive(handle) ? "a destroyed event" : "not an event");
  return kErrorInvalidHandle;
}

namespace calls {

Status EventCreate(Event* event, unsigned flags) {
  STRICT_DRIVER_ENTER_UNSAFE("cuEventCreate", kContext, CheckPerhapsUnsafe);
  constexpr unsigned kAllFlags = kEventBlockingSync | kEventDisableTiming | kEventInterprocess;
  if (event == nullptr || (flags & ~kAllFlags) != 0) return kErrorInvalidValue;
  const bool is_interprocess = (flags & kEventInterprocess) != 0;
  if (is_interprocess && (flags & kEventDisableTiming) == 0) return kErrorInvalidValue;
  auto state = std::make_shared<EventState>();
  state->context = thread.current;
  state->flags = flags;
  if (is_interprocess && (state->slot = TakeSlot()) == 0) return kErrorOutOfMemory;
  *event = static_cast<Event>(driver.events.Add(std::move(state)));
  return kSuccess;
}

Status EventDestroy(Event event) {
  STRICT_DRIVER_ENTER_UNSAFE("cuEventDestroy", kContext, CheckPerhapsUnsafe);
  std::shared_ptr<EventState> state;
  const Status status = FindEvent(event, &state);
  if (status != kSuccess) return status;
  if (state->capture != nullptr && state->capture->IsOpen() && !settings().captures_are_mild)
    Report("MISUSE", "%p is destroyed, an event of a capture that has not ended", static_cast<void*>(event));
  if (state->slot != 0) EndSlot(state->slot);
  driver.events.Remove(event);
  return kSuccess;
}

// An operation like any other: even on an idle stream the event completes only some time after the
// call.
Status EventRecord(Event event, Stream stream) {
  STRICT_DRIVER_ENTER("cuEventRecord", kContext);
  std::shared_ptr<EventState> state;
  StreamRef stream_state;
  Status status = FindEvent(event, &state);
  if (status == kSuccess) status = FindStream(stream, &stream_state, false);
  if (status != kSuccess) return status;
  if (state->context != stream_state->context) return kErrorInvalidHandle;
  if (state->foreign != nullptr) {
    Report("NOTE", "the recording of another process's event is not modelled");
    return kErrorNotSupported;
  }
  if (stream_state->capture != nullptr) return CaptureRecord(*stream_state, *state);
  status = CheckWork(*stream_state);
  if (status != kSuccess) return status;
  auto recording = std::make_shared<Recording>();
  Operation operation;
  operation.name = call.function;
  operation.run = [recording, slot = state->slot, number = state->slot == 0 ? 0 : CountRecording(state->slot)] {
    recording->milliseconds = Now();
    if (slot != 0) CountCompletion(slot, number);
  };
  status = Submit(stream_state, std::move(operation), &recording->place);
  if (status != kSuccess) return status;
  state->last = std::move(recording);
  state->capture = nullptr;
  return kSuccess;
}

Status EventQuery(Event event) {
  STRICT_DRIVER_ENTER("cuEventQuery", kContext);
  std::shared_ptr<EventState> state;
  Status status = FindEvent(event, &state);
  if (status == kSuccess) status = CheckHostWait(*state);
  if (status != kSuccess) return status;
  if (state->context->sticky_error != kSuccess) return state->context->sticky_error;
  if (state->foreign != nullptr) return IsOver(*state->foreign, LatestRecording(*state->foreign)) ? kSuccess : kErrorNotReady;
  return state->last == nullptr || state->last->place.IsReached() ? kSuccess : kErrorNotReady;
}

Status EventSynchronize(Event event) {
  STRICT_DRIVER_ENTER("cuEventSynchronize", kContext);
  std::shared_ptr<EventState> state;
  Status status = FindEvent(event, &state);
  if (status == kSuccess) status = CheckHostWait(*state);
  if (status != kSuccess) return status;
  if (state->foreign != nullptr) {
    const std::uint64_t recording = LatestRecording(*state->foreign);
    return Wait(call.lock, state->context, call.function, [&] { return IsOver(*state->foreign, recording); });
  }
  if (state->last == nullptr) return kSuccess;
  status = WaitForPlace(call.lock, state->context, call.function, state->last->place);
  if (status == kSuccess) ObserveFrees(state->context->device);
  return status;
}

Status EventElapsedTime(float* milliseconds, Event start, Event end) {
  STRICT_DRIVER_ENTER("cuEventElapsedTime", kContext);
  std::shared_ptr<EventState> first;
  std::shared_ptr<EventState> second;
  Status status = FindEvent(start, &first);
  if (status == kSuccess) status = FindEvent(end, &second);
  if (status != kSuccess) return status;
  if (milliseconds == nullptr) return kErrorInvalidValue;
  if (first->capture != nullptr || second->capture != nullptr) return kErrorCapturedEvent;
  if (first->context != second->context || first->last == nullptr || second->last == nullptr) return kErrorInvalidHandle;
  if (((first->flags | second->flags) & kEventDisableTiming) != 0) return kErrorInvalidHandle;
  if (!first->last->place.IsReached() || !second->last->place.IsReached()) return kErrorNotReady;
  *milliseconds = static_cast<float>(second->last->milliseconds - first->last->milliseconds);
  return kSuccess;
}

}  // namespace calls
}  // namespace cistern::strict
