// Captures of streams, from CUDA's programming guide and cuda.h: what becomes part of one, what is refused,
// and what invalidates it. Where these say nothing, the setting MILD_CAPTURES decides.
//
// A stream that is part of a capture has a frontier: the nodes that its next one depends on. An event
// that is recorded there keeps a copy. A stream joins by waiting for such an event.
#ifndef CISTERN_STRICT_DRIVER_CAPTURE_H_
#define CISTERN_STRICT_DRIVER_CAPTURE_H_

#include "strict_driver/graph.h"
#include "strict_driver/state.h"

namespace cistern::strict {

struct CaptureState {
  std::uint64_t id = 0;
  int mode = kCaptureModeGlobal;
  std::uint64_t thread = 0;  // that began it
  StreamRef origin;
  std::set<StreamRef> streams;        // the origin, and those that have joined
  std::shared_ptr<GraphState> graph;  // null: invalidated
  std::set<std::size_t> left_out;     // nodes that the caller took out of a frontier, or added itself: they need not be joined
  bool IsOpen() const { return origin != nullptr; }
};

Status BeginCapture(const StreamRef& stream, int mode);
// *graph is null unless it succeeds.
Status EndCapture(const StreamRef& stream, Graph* graph);
// The stream is being destroyed.
void LeaveCapture(const StreamRef& stream);

// Before a call that is potentially unsafe, which the mode of the thread may forbid.
Status CheckPotentiallyUnsafe();
// The same for a call of which the documentation does not say whether it is.
Status CheckPerhapsUnsafe();

// Before a call that queues work: the stream can be in an invalidated capture, or be the legacy stream while
// that cannot be used.
Status CheckWork(const StreamState& stream);
// Before work that no graph can contain.
Status CheckUncaptured(const StreamState& stream);
// Before a query of the stream, or a wait of the host for it.
Status CheckHostWait(const StreamState& stream);
Status CheckHostWait(const EventState& event);
// Before a query of everything in a context, or a wait of the host for it.
Status CheckHostWait(const ContextState& context);
// Before a call that asks something else about a stream, and `is_unsafe` if it is captured.
Status CheckQuestion(const StreamState& stream, bool is_unsafe = true);
// Before one that drivers refuse in every mode of a capture, whatever the documentation says of unsafe calls.
Status CheckCapturedQuestion(const StreamState& stream);

// The status of a call that only asks about captures, which is legal always.
Status CheckLegacy(const StreamState& stream);

// On a stream that is captured, or with an event that was: becomes a part of the capture.
Status CaptureRecord(const StreamState& stream, EventState& event);
Status CaptureWait(const StreamRef& stream, const EventState& event);
// A wait that becomes a node: for what is the event's last recording at each launch.
Status CaptureExternalWait(const StreamRef& stream, const std::shared_ptr<EventState>& event);
// The caller adds a node to a graph, which may be being captured.
void NoteAdded(const GraphState& graph, GraphNode node);
// Changes what the next node of a captured stream depends on.
void UpdateFrontier(StreamState& stream, const std::vector<std::size_t>& nodes, bool replaces);

// Adds a node, on which the next one of the stream depends, and whose dependencies and context are the stream's.
void AddCapturedNode(const StreamRef& stream, NodeState node);

// Queues the operation that `make` describes, or adds it as a node of this type.
Status SubmitOrCapture(const StreamRef& stream, int type, const Make& make, Place* place = nullptr);

}  // namespace cistern::strict

#endif  // CISTERN_STRICT_DRIVER_CAPTURE_H_
