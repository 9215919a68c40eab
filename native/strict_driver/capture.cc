#include "strict_driver/capture.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "strict_driver/report.h"
#include "strict_driver/settings.h"
#include "strict_driver/stream.h"

namespace cistern::strict {
namespace {

std::uint64_t ThreadId() {
  static std::atomic<std::uint64_t> last{0};
  if (thread.id == 0) thread.id = ++last;
  return thread.id;
}

// "Any associated capture graphs are invalidated."
void Invalidate(CaptureState& capture) {
  if (capture.graph == nullptr) return;
  Report("NOTE", "%s invalidates capture %llu", thread.function, static_cast<unsigned long long>(capture.id));
  DropGraph(*std::exchange(capture.graph, nullptr));
}

// The documentation refuses a call, and does not say that it invalidates.
void PerhapsInvalidate(CaptureState& capture) {
  if (!settings().captures_are_mild) Invalidate(capture);
}

// All its streams can be used again.
void Close(const CaptureRef& capture) {
  const CaptureRef kept = capture;
  for (const StreamRef& stream : kept->streams) {
    stream->capture = nullptr;
    stream->frontier.clear();
    stream->edges.clear();
  }
  kept->streams.clear();
  kept->origin = nullptr;
  driver.captures.erase(std::find(driver.captures.begin(), driver.captures.end(), kept));
}

// The captures of which a stream fulfills a condition.
template <typename Condition>
std::vector<CaptureRef> CapturesWith(Condition&& condition) {
  std::vector<CaptureRef> found;
  for (const CaptureRef& capture : driver.captures) {
    if (std::any_of(capture->streams.begin(), capture->streams.end(), condition)) found.push_back(capture);
  }
  return found;
}

std::vector<CaptureRef> BlockingCaptures(const ContextState& context) {
  return CapturesWith([&](const StreamRef& stream) { return stream->context == &context && stream->IsBlocking(); });
}

// A use of the legacy stream depends on all blocking streams, and so on captured ones.
Status RefuseLegacy(const StreamState& stream) {
  if (stream.role != Role::kLegacy) return kSuccess;
  const std::vector<CaptureRef> captures = BlockingCaptures(*stream.context);
  for (const CaptureRef& capture : captures) Invalidate(*capture);
  return captures.empty() ? kSuccess : kErrorCaptureImplicit;
}

// Whether every node comes before a frontier, or is part of it.
bool AreJoined(const GraphState& graph, const std::set<std::size_t>& left_out, const std::vector<std::size_t>& frontier) {
  std::vector<bool> is_reached(graph.nodes.size());
  for (const std::size_t index : left_out) is_reached[index] = true;
  for (const std::size_t index : frontier) is_reached[index] = true;
  for (std::size_t index = graph.nodes.size(); index-- > 0;) {
    if (!is_reached[index]) return false;
    for (const std::size_t before : graph.nodes[index]->after) is_reached[before] = true;
  }
  return true;
}

void AddTo(std::vector<std::size_t>& frontier, const std::vector<std::size_t>& nodes) {
  for (const std::size_t node : nodes) {
    if (std::find(frontier.begin(), frontier.end(), node) == frontier.end()) frontier.push_back(node);
  }
}

}  // namespace

Status BeginCapture(const StreamRef& stream, int mode) {
  if (mode < kCaptureModeGlobal || mode > kCaptureModeRelaxed) return kErrorInvalidValue;
  if (stream->role == Role::kLegacy) return kErrorCaptureUnsupported;
  if (stream->capture != nullptr) return kErrorIllegalState;
  auto capture = std::make_shared<CaptureState>();
  capture->id = ++driver.last_capture_id;
  capture->mode = mode;
  capture->thread = ThreadId();
  capture->origin = stream;
  capture->streams.insert(stream);
  capture->graph = NewGraph();
  capture->graph->is_being_captured = true;
  stream->capture = capture;
  stream->frontier.clear();
  stream->edges.clear();
  driver.captures.push_back(std::move(capture));
  return kSuccess;
}

Status EndCapture(const StreamRef& stream, Graph* graph) {
  *graph = nullptr;
  const CaptureRef capture = stream->capture;
  if (capture == nullptr) return kErrorIllegalState;
  if (capture->origin != stream) {
    Invalidate(*capture);
    return kErrorCaptureUnmatched;
  }
  if (capture->mode != kCaptureModeRelaxed && capture->thread != ThreadId()) {
    if (settings().captures_are_mild) return kErrorCaptureWrongThread;
    Invalidate(*capture);
    Close(capture);
    return kErrorCaptureWrongThread;
  }
  const std::vector<std::size_t> frontier = stream->frontier;
  Close(capture);
  if (capture->graph == nullptr) return kErrorCaptureInvalidated;
  const std::shared_ptr<GraphState> captured = std::exchange(capture->graph, nullptr);
  if (!AreJoined(*captured, capture->left_out, frontier)) {
    DropGraph(*captured);
    return kErrorCaptureUnjoined;
  }
  captured->is_being_captured = false;
  *graph = captured->handle;
  return kSuccess;
}

void LeaveCapture(const StreamRef& stream) {
  const CaptureRef capture = stream->capture;
  if (capture == nullptr) return;
  if (capture->origin == stream) {
    if (capture->graph != nullptr) DropGraph(*capture->graph);
    capture->graph = nullptr;
    Close(capture);
    return;
  }
  // The join may still come, by an event.
  if (capture->graph != nullptr && !AreJoined(*capture->graph, capture->left_out, capture->origin->frontier)) PerhapsInvalidate(*capture);
  capture->streams.erase(stream);
  stream->capture = nullptr;
}

Status CheckPotentiallyUnsafe() {
  if (thread.capture_mode == kCaptureModeRelaxed) return kSuccess;
  Status status = kSuccess;
  for (const CaptureRef& capture : driver.captures) {
    const bool is_own = capture->thread == ThreadId();
    const bool forbids =
        is_own ? capture->mode != kCaptureModeRelaxed : thread.capture_mode == kCaptureModeGlobal && capture->mode == kCaptureModeGlobal;
    if (!forbids) continue;
    Invalidate(*capture);
    status = kErrorCaptureUnsupported;
  }
  return status;
}

Status CheckPerhapsUnsafe() { return settings().captures_are_mild ? kSuccess : CheckPotentiallyUnsafe(); }

Status CheckWork(const StreamState& stream) {
  if (stream.capture != nullptr && stream.capture->graph == nullptr) return kErrorCaptureInvalidated;
  return RefuseLegacy(stream);
}

Status CheckUncaptured(const StreamState& stream) {
  const Status status = CheckWork(stream);
  if (status != kSuccess || stream.capture == nullptr) return status;
  PerhapsInvalidate(*stream.capture);
  return kErrorCaptureUnsupported;
}

Status CheckHostWait(const StreamState& stream) {
  const Status status = CheckWork(stream);
  if (status != kSuccess) return status;
  if (stream.capture == nullptr) return CheckPotentiallyUnsafe();
  Invalidate(*stream.capture);
  return kErrorCaptureUnsupported;
}

Status CheckHostWait(const EventState& event) {
  if (event.capture == nullptr) return CheckPotentiallyUnsafe();
  if (!event.capture->IsOpen() && !settings().captures_are_mild) return kErrorInvalidValue;
  Invalidate(*event.capture);
  return kErrorCapturedEvent;
}

Status CheckHostWait(const ContextState& context) {
  const std::vector<CaptureRef> captures = CapturesWith([&](const StreamRef& stream) { return stream->context == &context; });
  for (const CaptureRef& capture : captures) Invalidate(*capture);
  return captures.empty() ? kSuccess : kErrorCaptureUnsupported;
}

Status CheckCapturedQuestion(const StreamState& stream) {
  if (stream.capture == nullptr) return kSuccess;
  Invalidate(*stream.capture);
  return kErrorCaptureUnsupported;
}

Status CheckQuestion(const StreamState& stream, bool is_unsafe) {
  return is_unsafe && stream.capture != nullptr ? CheckPotentiallyUnsafe() : Status{kSuccess};
}

Status CheckLegacy(const StreamState& stream) {
  return stream.role == Role::kLegacy && !BlockingCaptures(*stream.context).empty() ? kErrorCaptureImplicit : kSuccess;
}

Status CaptureRecord(const StreamState& stream, EventState& event) {
  const Status status = CheckWork(stream);
  if (status != kSuccess) return status;
  event.last = nullptr;
  event.capture = stream.capture;
  event.frontier = stream.frontier;
  return kSuccess;
}

Status CaptureWait(const StreamRef& stream, const EventState& event) {
  const Status status = CheckWork(*stream);
  if (status != kSuccess) return status;
  const CaptureRef from = event.capture;
  const CaptureRef to = stream->capture;
  if (from == nullptr || !from->IsOpen()) {
    // The documentation has codes for an event of an ended capture, which drivers do not use.
    const bool is_invalid = from != nullptr && !settings().captures_are_mild;
    if (to == nullptr) return is_invalid ? kErrorInvalidValue : kErrorCapturedEvent;
    Invalidate(*to);
    return is_invalid ? kErrorInvalidValue : kErrorCaptureIsolation;
  }
  if (to != nullptr && to != from) {
    Invalidate(*to);
    Invalidate(*from);
    return kErrorCaptureMerge;
  }
  if (from->graph == nullptr) return kErrorInvalidValue;
  if (stream->role == Role::kLegacy) {
    Invalidate(*from);
    return kErrorCaptureUnsupported;
  }
  if (to == nullptr) {
    stream->capture = from;
    stream->frontier.clear();
    stream->edges.clear();
    from->streams.insert(stream);
  }
  AddTo(stream->frontier, event.frontier);
  return kSuccess;
}

Status CaptureExternalWait(const StreamRef& stream, const std::shared_ptr<EventState>& event) {
  if (stream->capture == nullptr) return kErrorInvalidValue;
  return SubmitOrCapture(stream, kNodeEventWait, [event](Operation* operation) -> Status {
    operation->name = "a wait for an event from outside";
    if (event->last != nullptr) operation->after.push_back(event->last->place);
    return kSuccess;
  });
}

void UpdateFrontier(StreamState& stream, const std::vector<std::size_t>& nodes, bool replaces) {
  if (replaces) stream.capture->left_out.insert(stream.frontier.begin(), stream.frontier.end());
  if (replaces) stream.frontier.clear();
  if (replaces) stream.edges.clear();
  AddTo(stream.frontier, nodes);
  // The documentation would have it that what a stream goes on from must be joined.
  if (!settings().captures_are_mild) return;
  for (const std::size_t node : nodes) stream.capture->left_out.erase(node);
}

void NoteAdded(const GraphState& graph, GraphNode node) {
  for (const CaptureRef& capture : driver.captures) {
    if (capture->graph.get() == &graph) capture->left_out.insert(driver.nodes.Find(node)->index);
  }
}

void AddCapturedNode(const StreamRef& stream, NodeState node) {
  node.context = stream->context;
  node.after = stream->frontier;
  stream->edges.clear();
  stream->frontier = {AddNode(*stream->capture->graph, std::move(node))};
}

Status SubmitOrCapture(const StreamRef& stream, int type, const Make& make, Place* place) {
  Operation operation;
  Status status = make(&operation);
  if (status == kSuccess) status = CheckWork(*stream);
  if (status != kSuccess) return status;
  if (stream->capture == nullptr) return Submit(stream, std::move(operation), place);
  NodeState node;
  node.type = type;
  node.make = make;
  node.uses = std::move(operation.uses);
  AddCapturedNode(stream, std::move(node));
  return kSuccess;
}

}  // namespace cistern::strict
