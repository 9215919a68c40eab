// Captures of streams, and the rules of CUDA's documentation that invalidate one
// (docs/design/031-graphs.md has each with its sentence and its test).
//
// A capture maps each of its streams to its tail: the nodes that the next one depends on.
//
//     origin:  copy ── fill ──────────── copy        tail of origin = {last copy}
//                       └─ record ┐        │ wait
//     fork:                 wait ─┴─ fill ─┘         tail of fork = {its fill}
//
// A stream joins by waiting for an event that was recorded in the capture; the event holds the tail of
// its stream. Joined back means that every tail comes before the origin's. An invalidated capture has
// no graph any more, and keeps its streams until it is ended on its origin.
//
// While nobody captures, a call pays for one load here. GraphMutex guards the rest.
#ifndef CISTERN_SOFTWARE_CAPTURE_H_
#define CISTERN_SOFTWARE_CAPTURE_H_

#include <atomic>
#include <cstdint>
#include <vector>

#include "cuda/driver_table.h"
#include "software/graph.h"
#include "software/stream.h"

namespace cistern::software {

struct EventState;

// Open and invalidated ones that have not ended.
inline std::atomic<int> open_captures{0};

inline bool IsCapturing(const StreamState& stream) { return stream.is_capturing.load(std::memory_order_acquire); }

// What an event stands for that was last recorded in a capture.
struct CapturePoint {
  std::uint64_t capture;
  std::vector<NodeIndex> tail;
};

Status BeginCapture(StreamState& stream, int mode);
// *graph is null unless it succeeds.
Status EndCapture(StreamState& stream, Graph* graph);
// The stream ends: its capture ends with it, or, if it is a fork that has not joined back, is invalid.
void LeaveCapture(StreamState& stream);

struct CaptureInfo {
  int status = kCaptureNone;
  std::uint64_t id = 0;
  Graph graph = nullptr;
  const GraphNode* dependencies = nullptr;  // valid until the next call on the stream
  std::size_t dependency_count = 0;
};
Status GetCaptureInfo(StreamState& stream, CaptureInfo* info);
// Changes what the next node of a captured stream depends on.
Status UpdateDependencies(StreamState& stream, const GraphNode* nodes, std::size_t count, bool replaces);

// A call that is potentially unsafe: refused, and the capture invalidated, as the thread's mode says.
Status CheckUnsafeCallInCaptures();
inline Status CheckUnsafeCall() {
  if (__builtin_expect(open_captures.load(std::memory_order_relaxed) == 0, 1)) return kSuccess;
  return CheckUnsafeCallInCaptures();
}
// A call that conflicts with the capture of this very stream in every mode. Invalidates it, and returns
// the status, or that the capture was invalid before.
Status RefuseInCapture(StreamState& stream, Status status);
// A query of an event that was captured, or a wait of the host for it.
Status RefuseWaitForCaptured(const EventState& event);
// A use of the legacy stream, or of the whole context.
Status CheckUseOfLegacy(const Device& device);
Status CheckUseOfContext(const Device& device);

// On a capturing stream: what becomes a node, and what only changes the order of nodes.
Status CaptureWork(StreamState& stream, int type, decltype(Node::what) what);
Status CaptureAllocation(StreamState& stream, std::uint64_t bytes, std::uint64_t* address);
Status CaptureFree(StreamState& stream, std::uint64_t address);
Status CaptureRecord(StreamState& stream, EventState& event);
// If the stream is captured, or the event's last recording was.
Status CaptureWait(StreamState& stream, EventState& event);

}  // namespace cistern::software

#endif  // CISTERN_SOFTWARE_CAPTURE_H_
