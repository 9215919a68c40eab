// Captures of streams into graphs: the calls that are forbidden during one, and the work that is
// left for later.
//
// A captured stream is recognized by asking the driver, which is legal in every mode, and finds captures of
// other libraries as well. The driver is not asked about a stream that cannot be captured: cistern has
// created it, has neither begun a capture on it nor made it wait for an event of one, and has given its
// handle to no other code or worker. See docs/design/031-graphs.md.
#ifndef CISTERN_ADDON_CAPTURES_H_
#define CISTERN_ADDON_CAPTURES_H_

#include <atomic>
#include <cstdint>
#include <vector>

#include "addon/bindings.h"

namespace cistern {

// The captures of the process that cistern has begun and that have not ended.
extern std::atomic<int> own_captures;

// kCapturing if the stream is captured, or is the legacy stream while that cannot be used.
Status CheckNotCaptured(Environment& environment, const StreamEntry& stream);

// The same if the context of the stream's device is current. Inlined, as it is on the way of allocations.
[[gnu::always_inline]] inline Status CheckNotCapturedHere(Environment& environment, const StreamEntry& stream) {
  if (stream.never_captured) return kSuccess;
  int status = kCaptureNone;
  const Status asked = environment.driver->StreamIsCapturing(stream.stream, &status);
  if (asked == kSuccess) return status == kCaptureNone ? Status{kSuccess} : kCapturing;
  // A driver that knows no captures.
  if (asked == kErrorNotSupported) return kSuccess;
  return asked == kErrorCaptureImplicit ? Status{kCapturing} : asked;
}

// The same, but the legacy stream never is.
bool IsCaptured(Environment& environment, const StreamEntry& stream);

// A live stream that an argument names and that is not captured.
inline Status FindUncapturedStream(Environment& environment, const Napi::Value& value, StreamEntry** stream) {
  const Status status = FindStream(environment, value, stream);
  return status == kSuccess ? CheckNotCaptured(environment, **stream) : status;
}

// kCapturing if a stream of the device is captured, as far as can be seen: by cistern; a blocking
// stream; or a stream that this environment has created. A wait for the device is then forbidden.
Status CheckNoCapture(Environment& environment, int device);

// Waits for a device, unless one of its streams is captured.
Status SynchronizeContext(Environment& environment, int device, bool is_counted);

// Before an event is recorded: notes the capture that this is in, or that it is in none. With `outside`,
// kCapturing on a captured stream.
Status NoteWhetherCaptured(Environment& environment, const StreamEntry& stream, bool outside, EventEntry* event);
[[gnu::always_inline]] inline Status NoteCaptureOf(Environment& environment, const StreamEntry& stream, bool outside, EventEntry* event) {
  if (!stream.never_captured) return NoteWhetherCaptured(environment, stream, outside, event);
  event->capture = 0;
  return kSuccess;
}
// Whether the stream may wait for the event: not across the bounds of a capture, except to join it. With
// `outside`, neither may be of a capture.
Status CheckWaitInCapture(Environment& environment, StreamEntry& stream, const EventEntry& event, bool outside);
inline Status CheckWait(Environment& environment, StreamEntry& stream, const EventEntry& event, bool outside) {
  if (stream.never_captured && event.capture == 0) return kSuccess;
  return CheckWaitInCapture(environment, stream, event, outside);
}
// kCapturedEvent if the event was last recorded in a capture.
inline Status CheckNotCaptured(const EventEntry& event) { return event.capture == 0 ? kSuccess : kCapturedEvent; }

// The graph that work on a stream is recorded in, if the stream's context is current: null unless the
// stream is captured. kErrorCaptureInvalidated if the capture is invalid.
Status CapturedGraphOf(Environment& environment, const StreamEntry& stream, Graph* graph);
// The same for work that runs JavaScript, with the driver's id of the capture. kCapturing unless this
// environment has begun it, because it would not learn of the launches of others.
Status CapturedGraphForJavaScript(Environment& environment, const StreamEntry& stream, Graph* graph, std::uint64_t* capture);
// Functions became part of a capture that this environment has begun.
void NoteCapturedFunctions(std::uint64_t capture, const HostNodes& functions);

// Whether the event was last recorded in an open capture that cistern has begun. It is then destroyed after the
// capture, because CUDA does not define what happens to a capture whose event is destroyed.
bool DestroyAfterCapture(const Environment& environment, const EventEntry& event);
// The capture on a stream has ended, or the stream was destroyed, or is about to be, and its capture with it.
// Whether cistern had begun one.
bool ForgetCapture(Environment& environment, Stream stream);
// Abandons a capture that this environment has begun on a stream whose context is current. Returns the
// driver's status. Does nothing if there is none.
Status EndCaptureBegunHere(Environment& environment, const StreamEntry& stream);
// The environment ends. The owner of a stream must now end a capture that this environment has begun on
// it. Events that wait for such a capture end.
std::vector<DeviceEvent> LeaveCapture(const Environment& environment, Stream stream);

}  // namespace cistern

#endif  // CISTERN_ADDON_CAPTURES_H_
