#include <algorithm>
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

namespace cistern::strict::calls {
Status StreamCreateWithPriority(Stream* stream, unsigned flags, int priority) {
  STRICT_DRIVER_ENTER_UNSAFE("cuStreamCreateWithPriority", kContext, CheckPerhapsUnsafe);
  if (stream == nullptr || (flags & ~unsigned{kStreamNonBlocking}) != 0) return kErrorInvalidValue;
  const StreamRef state = NewStream(thread.current, Role::kCreated, flags, std::clamp(priority, kGreatestPriority, 0));
  *stream = static_cast<Stream>(driver.streams.Add(state));
  return kSuccess;
}

Status StreamDestroy(Stream stream) {
  STRICT_DRIVER_ENTER_UNSAFE("cuStreamDestroy", kContext, CheckPerhapsUnsafe);
  const StreamRef state = driver.streams.Find(stream);
  if (state == nullptr) {
    Report("MISUSE", "%p is destroyed, which is not a live stream", static_cast<void*>(stream));
    return kErrorInvalidHandle;
  }
  LeaveCapture(state);
  driver.streams.Remove(stream);
  EndStream(state);
  return kSuccess;
}

Status StreamSynchronize(Stream stream) {
  STRICT_DRIVER_ENTER("cuStreamSynchronize", kContext);
  StreamRef state;
  Status status = FindStream(stream, &state, false);
  if (status == kSuccess) status = CheckHostWait(*state);
  if (status != kSuccess) return status;
  std::vector<Place> places = {{state, state->submitted}};
  if (state->role == Role::kLegacy) places = PendingOf(*state->context, true);
  status = Wait(call.lock, state->context, call.function, [&] { return AreReached(places); });
  if (status == kSuccess) ObserveFrees(state->context->device);
  return status;
}

Status StreamQuery(Stream stream) {
  STRICT_DRIVER_ENTER("cuStreamQuery", kContext);
  StreamRef state;
  Status status = FindStream(stream, &state, false);
  if (status == kSuccess) status = CheckHostWait(*state);
  if (status != kSuccess) return status;
  if (state->context->sticky_error != kSuccess) return state->context->sticky_error;
  const bool is_idle = state->role == Role::kLegacy ? PendingOf(*state->context, true).empty() : state->IsIdle();
  return is_idle ? kSuccess : kErrorNotReady;
}

Status StreamGetId(Stream stream, unsigned long long* id) {
  STRICT_DRIVER_ENTER("cuStreamGetId", kContext);
  StreamRef state;
  Status status = FindStream(stream, &state, false);
  if (status == kSuccess) status = CheckCapturedQuestion(*state);
  if (status != kSuccess) return status;
  if (id == nullptr) return kErrorInvalidValue;
  *id = state->id;
  if (settings().default_streams_have_fixed_ids && state->role != Role::kCreated) *id = state->role == Role::kLegacy ? 1 : 2;
  return kSuccess;
}

Status StreamGetFlags(Stream stream, unsigned* flags) {
  STRICT_DRIVER_ENTER("cuStreamGetFlags", kContext);
  StreamRef state;
  Status status = FindStream(stream, &state, false);
  if (status == kSuccess) status = CheckCapturedQuestion(*state);
  if (status != kSuccess) return status;
  if (flags == nullptr) return kErrorInvalidValue;
  *flags = state->flags;
  return kSuccess;
}

Status StreamGetCtx(Stream stream, Context* context) {
  STRICT_DRIVER_ENTER("cuStreamGetCtx", kContext);
  StreamRef state;
  Status status = FindStream(stream, &state, false);
  if (status == kSuccess) status = CheckQuestion(*state);
  if (status != kSuccess) return status;
  if (context == nullptr) return kErrorInvalidValue;
  *context = reinterpret_cast<Context>(state->context);
  return kSuccess;
}

Status StreamGetPriority(Stream stream, int* priority) {
  STRICT_DRIVER_ENTER("cuStreamGetPriority", kContext);
  StreamRef state;
  Status status = FindStream(stream, &state, false);
  if (status == kSuccess) status = CheckQuestion(*state, !settings().captures_are_mild);
  if (status != kSuccess) return status;
  if (priority == nullptr) return kErrorInvalidValue;
  *priority = state->priority;
  return kSuccess;
}

Status StreamWaitEvent(Stream stream, Event event, unsigned flags) {
  STRICT_DRIVER_ENTER("cuStreamWaitEvent", kContext);
  StreamRef state;
  std::shared_ptr<EventState> event_state;
  Status status = FindStream(stream, &state, false);
  if (status == kSuccess) status = FindEvent(event, &event_state);
  if (status != kSuccess) return status;
  if ((flags & ~unsigned{kEventWaitExternal}) != 0) return kErrorInvalidValue;
  if (flags == kEventWaitExternal) return CaptureExternalWait(state, event_state);
  if (state->capture != nullptr || event_state->capture != nullptr) return CaptureWait(state, *event_state);
  status = CheckWork(*state);
  if (status != kSuccess) return status;
  Operation operation;
  operation.name = call.function;
  if (event_state->foreign != nullptr) {
    operation.condition = [event = event_state->foreign, recording = LatestRecording(*event_state->foreign)] {
      return IsOver(*event, recording);
    };
    return Submit(state, std::move(operation));
  }
  if (event_state->last == nullptr) return kSuccess;
  operation.after.push_back(event_state->last->place);
  return Submit(state, std::move(operation));
}

Status LaunchHostFunc(Stream stream, HostFunction function, void* user_data) {
  STRICT_DRIVER_ENTER("cuLaunchHostFunc", kContext);
  StreamRef state;
  const Status status = FindStream(stream, &state, true);
  if (status != kSuccess) return status;
  if (function == nullptr) return kErrorInvalidValue;
  return SubmitOrCapture(state, kNodeHost, [=, name = call.function, time = TimeOfObjects()](Operation* operation) -> Status {
    operation->name = name;
    operation->run = [user_data, time] { CheckHostData(user_data, time); };
    operation->host_function = function;
    operation->host_data = user_data;
    return kSuccess;
  });
}

}  // namespace cistern::strict::calls
