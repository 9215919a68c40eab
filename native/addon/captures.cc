#include "addon/captures.h"

#include <algorithm>
#include <mutex>
#include <utility>
#include <vector>

#include "addon/orphans.h"
#include "platform/lasting.h"

namespace cistern {

std::atomic<int> own_captures{0};

namespace {

struct OwnCapture {
  const DriverTable* backend;
  Stream stream;  // where it began
  int device;
  std::uint64_t environment;
  int mode;
  std::uint64_t id;  // 0 until it has begun: another environment may be quicker
  HostNodes functions;
  std::vector<DeviceEvent> events;  // to be destroyed after it
};

struct OwnCaptures {
  std::mutex mutex;
  std::vector<OwnCapture> open;
};

OwnCaptures& AllOwnCaptures() {
  static Lasting<OwnCaptures> captures;
  return *captures;
}

// Whether an environment has begun it on a stream.
bool IsOf(const OwnCapture& capture, const Environment& environment, Stream stream) {
  return capture.environment == environment.id() && capture.stream == stream;
}

// Whether it has begun on a stream, by whatever environment.
auto IsOn(const Environment& environment, Stream stream) {
  return [&environment, stream](const OwnCapture& each) {
    return each.backend == environment.backend && each.stream == stream && each.id != 0;
  };
}

template <typename Predicate>
bool FindOwnCapture(Predicate&& predicate, OwnCapture* found = nullptr) {
  OwnCaptures& all = AllOwnCaptures();
  const std::lock_guard<std::mutex> lock(all.mutex);
  const auto capture = std::find_if(all.open.begin(), all.open.end(), predicate);
  if (capture == all.open.end()) return false;
  if (found != nullptr) *found = *capture;
  return true;
}

template <typename Predicate>
bool Forget(Predicate&& predicate, std::vector<DeviceEvent>* events) {
  if (own_captures == 0) return false;
  OwnCaptures& all = AllOwnCaptures();
  const std::lock_guard<std::mutex> lock(all.mutex);
  const auto capture = std::find_if(all.open.begin(), all.open.end(), predicate);
  if (capture == all.open.end()) return false;
  events->swap(capture->events);
  all.open.erase(capture);
  own_captures -= 1;
  return true;
}

// Forgets a capture, and destroys the events that waited for its end.
template <typename Predicate>
bool ForgetAndDestroyEvents(Environment& environment, Predicate&& predicate) {
  std::vector<DeviceEvent> events;
  const bool was_open = Forget(predicate, &events);
  for (const DeviceEvent& each : events) {
    const RelaxedContextScope context(environment, each.device);
    const bool is_destroyed = context.status() == kSuccess && environment.Counted<Call::kEventDestroy>(each.event) == kSuccess;
    if (!is_destroyed) LeaveOrphans(environment, {{OrphanKind::kEvent, each.device, AsAddress(each.event)}});
  }
  return was_open;
}

// kCaptureNone on a driver that knows no captures, and for the legacy stream, which has none.
Status CaptureStatusOf(Environment& environment, const StreamEntry& stream, int* status) {
  *status = kCaptureNone;
  const Status asked = environment.driver->StreamIsCapturing(stream.stream, status);
  return asked == kErrorNotSupported ? Status{kSuccess} : asked;
}

// The id of the capture of a stream whose context is current; 0: it is not captured, or the capture is
// invalid. With `graph`, kCapturing for a legacy stream that cannot be used now.
Status CaptureIdOf(Environment& environment, const StreamEntry& stream, int* status, std::uint64_t* id, Graph* graph = nullptr) {
  *status = kCaptureNone;
  *id = 0;
  const Status asked = environment.driver->StreamGetCaptureInfo(stream.stream, status, id, graph, nullptr, nullptr, nullptr);
  if (asked == kErrorNotSupported) return kSuccess;
  // The legacy stream, which cannot be used now.
  if (asked == kErrorCaptureImplicit) return graph == nullptr ? Status{kSuccess} : kCapturing;
  if (*status != kCaptureActive) *id = 0;
  return asked;
}

// The capture of a stream that cistern may end: its own, on the stream and thread where it began.
Status FindCaptureToEnd(Environment& environment, const StreamEntry& stream, HostNodes* functions) {
  OwnCapture capture = {};
  if (!FindOwnCapture(IsOn(environment, stream.stream), &capture)) {
    int status;
    const Status asked = CaptureStatusOf(environment, stream, &status);
    if (asked != kSuccess) return asked;
    return status == kCaptureNone ? kErrorIllegalState : kErrorCaptureUnmatched;
  }
  *functions = std::move(capture.functions);
  const bool is_of_thread = capture.mode == kCaptureModeRelaxed || capture.environment == environment.id();
  return is_of_thread ? kSuccess : kErrorCaptureWrongThread;
}

// The predicate says which one it is, if it has ended.
template <typename Predicate>
Status EndOwnCapture(Environment& environment, const StreamEntry& stream, Predicate&& predicate, Graph* graph) {
  const Status status = environment.Counted<Call::kStreamEndCapture>(stream.stream, graph);
  int left = kCaptureNone;
  const bool has_ended = status == kSuccess || (CaptureStatusOf(environment, stream, &left) == kSuccess && left == kCaptureNone);
  if (has_ended) ForgetAndDestroyEvents(environment, predicate);
  return status;
}

}  // namespace

bool IsCaptured(Environment& environment, const StreamEntry& stream) {
  int status;
  return CaptureStatusOf(environment, stream, &status) == kSuccess && status != kCaptureNone;
}

Status CheckNotCaptured(Environment& environment, const StreamEntry& stream) {
  const ContextScope context(environment, stream.device);
  return context.status() == kSuccess ? CheckNotCapturedHere(environment, stream) : context.status();
}

Status CheckNoCapture(Environment& environment, int device) {
  const auto is_here = [&](const OwnCapture& each) { return each.backend == environment.backend && each.device == device; };
  if (own_captures != 0 && FindOwnCapture(is_here)) return kCapturing;
  Status status = CheckNotCaptured(environment, {LegacyStream(), device, false, {}});
  environment.streams.ForEach([&](std::uint64_t, const StreamEntry& stream) {
    if (status == kSuccess && stream.device == device && stream.owned) status = CheckNotCaptured(environment, stream);
  });
  return status;
}

Status SynchronizeContext(Environment& environment, int device, bool is_counted) {
  Status status = CheckNoCapture(environment, device);
  if (status != kSuccess) return status;
  const RelaxedContextScope context(environment, device);
  return context.status() == kSuccess ? environment.CountedIf<Call::kCtxSynchronize>(is_counted) : context.status();
}

Status NoteWhetherCaptured(Environment& environment, const StreamEntry& stream, bool outside, EventEntry* event) {
  const Status captured = CheckNotCapturedHere(environment, stream);
  if (captured == kSuccess) event->capture = 0;
  if (captured != kCapturing || outside) return captured;
  int capture;
  std::uint64_t id;
  Graph graph;
  const Status status = CaptureIdOf(environment, stream, &capture, &id, &graph);
  if (status == kSuccess) event->capture = id;
  return status;
}

Status CheckWaitInCapture(Environment& environment, StreamEntry& stream, const EventEntry& event, bool outside) {
  if (event.capture != 0 && outside) return kCapturedEvent;
  if (event.capture != 0) stream.never_captured = false;
  const Status captured = CheckNotCapturedHere(environment, stream);
  if (captured != kCapturing || event.capture == 0) return captured;
  int capture;
  std::uint64_t id;
  const Status status = CaptureIdOf(environment, stream, &capture, &id);
  return status != kSuccess || event.capture == id ? status : kCapturing;
}

Status CapturedGraphOf(Environment& environment, const StreamEntry& stream, Graph* graph) {
  int capture;
  std::uint64_t id;
  *graph = nullptr;
  const Status status = CaptureIdOf(environment, stream, &capture, &id, graph);
  return status == kSuccess && capture == kCaptureInvalidated ? Status{kErrorCaptureInvalidated} : status;
}

Status CapturedGraphForJavaScript(Environment& environment, const StreamEntry& stream, Graph* graph, std::uint64_t* capture) {
  int capture_status;
  *graph = nullptr;
  const Status status = CaptureIdOf(environment, stream, &capture_status, capture, graph);
  if (status != kSuccess || capture_status == kCaptureNone) return status;
  if (capture_status == kCaptureInvalidated) return kErrorCaptureInvalidated;
  const auto is_begun_here = [&](const OwnCapture& each) { return each.id == *capture && each.environment == environment.id(); };
  return FindOwnCapture(is_begun_here) ? kSuccess : kCapturing;
}

void NoteCapturedFunctions(std::uint64_t capture, const HostNodes& functions) {
  OwnCaptures& all = AllOwnCaptures();
  const std::lock_guard<std::mutex> lock(all.mutex);
  for (OwnCapture& each : all.open) {
    if (each.id == capture) each.functions.insert(each.functions.end(), functions.begin(), functions.end());
  }
}

bool DestroyAfterCapture(const Environment& environment, const EventEntry& event) {
  if (event.capture == 0 || own_captures == 0) return false;
  OwnCaptures& all = AllOwnCaptures();
  const std::lock_guard<std::mutex> lock(all.mutex);
  for (OwnCapture& each : all.open) {
    if (each.backend != environment.backend || each.id != event.capture) continue;
    each.events.push_back({event.event, event.device});
    return true;
  }
  return false;
}

bool ForgetCapture(Environment& environment, Stream stream) { return ForgetAndDestroyEvents(environment, IsOn(environment, stream)); }

Status EndCaptureBegunHere(Environment& environment, const StreamEntry& stream) {
  const auto is_begun_here = [&](const OwnCapture& each) { return IsOf(each, environment, stream.stream); };
  if (own_captures == 0 || !FindOwnCapture(is_begun_here)) return kSuccess;
  Graph graph = nullptr;
  EndOwnCapture(environment, stream, is_begun_here, &graph);
  if (graph != nullptr && environment.Counted<Call::kGraphDestroy>(graph) != kSuccess) {
    LeaveOrphans(environment, {{OrphanKind::kGraph, stream.device, AsAddress(graph)}});
  }
  return kSuccess;
}

std::vector<DeviceEvent> LeaveCapture(const Environment& environment, Stream stream) {
  std::vector<DeviceEvent> events;
  Forget([&](const OwnCapture& each) { return IsOf(each, environment, stream); }, &events);
  return events;
}

Status BeginCapture(Environment& environment, const Napi::CallbackInfo& info) {
  int mode;
  if (!ReadInt(info[1], &mode) || mode < kCaptureModeGlobal || mode > kCaptureModeRelaxed) return kInvalidArgument;
  StreamEntry* stream;
  Status status = FindUncapturedStream(environment, info[0], &stream);
  if (status != kSuccess) return status;
  const ContextScope context(environment, stream->device);
  if (context.status() != kSuccess) return context.status();
  stream->never_captured = false;
  OwnCaptures& all = AllOwnCaptures();
  {
    // Before the capture begins, so that no call of another thread misses it.
    const std::lock_guard<std::mutex> lock(all.mutex);
    all.open.push_back({environment.backend, stream->stream, stream->device, environment.id(), mode, 0, {}, {}});
    own_captures += 1;
  }
  status = environment.Counted<Call::kStreamBeginCapture>(stream->stream, mode);
  const auto is_this = [&](const OwnCapture& each) { return IsOf(each, environment, stream->stream); };
  if (status != kSuccess) {
    ForgetAndDestroyEvents(environment, is_this);
    return status;
  }
  int capture;
  std::uint64_t id;
  status = CaptureIdOf(environment, *stream, &capture, &id);
  if (status != kSuccess) {
    EndCaptureBegunHere(environment, *stream);
    return status;
  }
  const std::lock_guard<std::mutex> lock(all.mutex);
  for (OwnCapture& each : all.open) {
    if (is_this(each)) each.id = id;
  }
  return kSuccess;
}

Status EndCapture(Environment& environment, const Napi::CallbackInfo& info) {
  StreamEntry* stream;
  Status status = FindStream(environment, info[0], &stream);
  if (status != kSuccess) return status;
  const ContextScope context(environment, stream->device);
  if (context.status() != kSuccess) return context.status();
  HostNodes functions;
  status = FindCaptureToEnd(environment, *stream, &functions);
  if (status != kSuccess) return status;
  const int device = stream->device;
  Graph graph = nullptr;
  status = EndOwnCapture(environment, *stream, IsOn(environment, stream->stream), &graph);
  if (status != kSuccess) return status;
  const std::uint64_t handle = environment.graphs.Add({graph, device, std::move(functions)});
  if (handle == 0) {
    environment.Counted<Call::kGraphDestroy>(graph);
    return kHostOutOfMemory;
  }
  environment.Out(1, static_cast<double>(handle));
  return kSuccess;
}

Status AbandonCapture(Environment& environment, const Napi::CallbackInfo& info) {
  StreamEntry* stream;
  Status status = FindStream(environment, info[0], &stream);
  if (status != kSuccess) return status;
  const RelaxedContextScope context(environment, stream->device);
  if (context.status() != kSuccess) return context.status();
  status = EndCaptureBegunHere(environment, *stream);
  return status == kSuccess ? CheckNotCapturedHere(environment, *stream) : status;
}

Status CaptureStatus(Environment& environment, const Napi::CallbackInfo& info) {
  StreamEntry* stream;
  const Status status = FindStream(environment, info[0], &stream);
  if (status != kSuccess) return status;
  const ContextScope context(environment, stream->device);
  if (context.status() != kSuccess) return context.status();
  int capture;
  const Status asked = CaptureStatusOf(environment, *stream, &capture);
  // The legacy stream is never captured.
  if (asked != kSuccess && asked != kErrorCaptureImplicit) return asked;
  environment.Out(1, asked == kSuccess ? capture : kCaptureNone);
  std::uint64_t id = 0;
  if (asked == kSuccess && capture == kCaptureActive) {
    const Status named = CaptureIdOf(environment, *stream, &capture, &id);
    if (named != kSuccess) return named;
  }
  environment.Out(2, static_cast<double>(id));
  return kSuccess;
}

}  // namespace cistern
