#include "software/capture.h"

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "platform/thread.h"
#include "software/device.h"
#include "software/event.h"
#include "software/resolve.h"

namespace cistern::software {
namespace {

struct Capture {
  std::uint64_t id;
  int mode;
  std::uint64_t thread;
  StreamState* origin;
  GraphState* graph;  // null: invalidated
  std::map<StreamState*, std::vector<NodeIndex>> tails;
  std::vector<GraphNode> reported;
  std::vector<NodeIndex> added;  // by the caller, which need not be joined

  bool IsInvalid() const { return graph == nullptr; }
};

// Guarded by GraphMutex, like everything here.
std::vector<std::unique_ptr<Capture>>& Captures() {
  static auto& captures = *new std::vector<std::unique_ptr<Capture>>;
  return captures;
}
std::uint64_t last_capture_id = 0;

// The lock, and what is destroyed only after it: memory of a graph is given back under the lock.
class CaptureLock {
 public:
  CaptureLock() : lock_(GraphMutex()) {}

  void Invalidate(Capture& capture) {
    if (capture.IsInvalid()) return;
    dropped_.push_back(EndGraph(*capture.graph));
    capture.graph = nullptr;
  }

  // Takes the streams out of the capture; the graph stays.
  void Close(Capture& capture) {
    for (const auto& [stream, tail] : capture.tails) stream->is_capturing.store(false, std::memory_order_release);
    auto& all = Captures();
    all.erase(std::find_if(all.begin(), all.end(), [&](const auto& each) { return each.get() == &capture; }));
    open_captures -= 1;
  }

 private:
  std::vector<std::shared_ptr<GraphBody>> dropped_;
  std::lock_guard<std::mutex> lock_;
};

Capture* CaptureOf(StreamState& stream) {
  for (const auto& capture : Captures()) {
    if (capture->tails.count(&stream) != 0) return capture.get();
  }
  return nullptr;
}

bool HasJoined(const Capture& capture, const std::vector<NodeIndex>& tail) {
  const std::vector<NodeIndex>& end = capture.tails.at(capture.origin);
  const auto& added = capture.added;
  return std::all_of(tail.begin(), tail.end(), [&](NodeIndex node) {
    return std::find(added.begin(), added.end(), node) != added.end() || capture.graph->body->IsOrderedBefore(node, end);
  });
}

template <typename Predicate>
bool HasStream(const Capture& capture, Predicate&& predicate) {
  return std::any_of(capture.tails.begin(), capture.tails.end(), [&](const auto& entry) { return predicate(*entry.first); });
}

// Invalidates every capture with a stream like this. Returns whether there was one.
template <typename Predicate>
bool InvalidateThoseWith(CaptureLock& lock, Predicate&& predicate) {
  bool was_found = false;
  for (const auto& capture : Captures()) {
    if (!HasStream(*capture, predicate)) continue;
    lock.Invalidate(*capture);
    was_found = true;
  }
  return was_found;
}

bool IsBlockingOn(const StreamState& stream, const Device& device) { return stream.device == &device && stream.is_blocking; }

// The stream's capture, to add to it. Null if it is invalid, or has just ended.
Capture* OpenCaptureOf(StreamState& stream) {
  Capture* capture = CaptureOf(stream);
  return capture != nullptr && !capture->IsInvalid() ? capture : nullptr;
}

Status AddNode(StreamState& stream, int type, decltype(Node::what) what) {
  Capture* capture = OpenCaptureOf(stream);
  if (capture == nullptr) return kErrorCaptureInvalidated;
  std::vector<Node>& nodes = capture->graph->body->nodes;
  std::vector<NodeIndex>& tail = capture->tails[&stream];
  const auto index = static_cast<NodeIndex>(nodes.size());
  nodes.push_back({type, std::move(tail), std::move(what)});
  tail = {index};
  return kSuccess;
}

}  // namespace

Status BeginCapture(StreamState& stream, int mode) {
  if (stream.role == StreamRole::kLegacy) return kErrorCaptureUnsupported;
  CaptureLock lock;
  if (CaptureOf(stream) != nullptr) return kErrorIllegalState;
  GraphState* graph = NewGraph();
  if (graph == nullptr) return kErrorOutOfMemory;
  graph->is_captured = true;
  auto capture = std::make_unique<Capture>();
  capture->id = ++last_capture_id;
  capture->mode = mode;
  capture->thread = CurrentThreadId();
  capture->origin = &stream;
  capture->graph = graph;
  capture->tails[&stream] = {};
  Captures().push_back(std::move(capture));
  open_captures += 1;
  stream.is_capturing.store(true, std::memory_order_release);
  return kSuccess;
}

Status EndCapture(StreamState& stream, Graph* graph) {
  *graph = nullptr;
  CaptureLock lock;
  Capture* capture = CaptureOf(stream);
  if (capture == nullptr) return kErrorIllegalState;
  if (capture->origin != &stream) {
    lock.Invalidate(*capture);
    return kErrorCaptureUnmatched;
  }
  if (capture->mode != kCaptureModeRelaxed && capture->thread != CurrentThreadId()) {
    lock.Invalidate(*capture);
    lock.Close(*capture);
    return kErrorCaptureWrongThread;
  }
  Status status = capture->IsInvalid() ? kErrorCaptureInvalidated : kSuccess;
  if (status == kSuccess) {
    const auto& tails = capture->tails;
    const bool are_joined = std::all_of(tails.begin(), tails.end(), [&](const auto& entry) { return HasJoined(*capture, entry.second); });
    if (!are_joined) {
      lock.Invalidate(*capture);
      status = kErrorCaptureUnjoined;
    }
  }
  if (status == kSuccess) {
    capture->graph->is_captured = false;
    *graph = HandleOf<Graph>(*capture->graph);
  }
  lock.Close(*capture);
  return status;
}

void LeaveCapture(StreamState& stream) {
  CaptureLock lock;
  Capture* capture = CaptureOf(stream);
  if (capture == nullptr) return;
  if (capture->origin == &stream) {
    lock.Invalidate(*capture);
    lock.Close(*capture);
    return;
  }
  if (!capture->IsInvalid() && !HasJoined(*capture, capture->tails[&stream])) lock.Invalidate(*capture);
  capture->tails.erase(&stream);
  stream.is_capturing.store(false, std::memory_order_release);
}

Status GetCaptureInfo(StreamState& stream, CaptureInfo* info) {
  if (open_captures.load(std::memory_order_acquire) == 0) return kSuccess;
  CaptureLock lock;
  if (stream.role == StreamRole::kLegacy) {
    const auto blocks = [&](const StreamState& other) { return IsBlockingOn(other, *stream.device); };
    const auto& all = Captures();
    const bool is_implied = std::any_of(all.begin(), all.end(), [&](const auto& capture) { return HasStream(*capture, blocks); });
    return is_implied ? kErrorCaptureImplicit : kSuccess;
  }
  Capture* capture = CaptureOf(stream);
  if (capture == nullptr) return kSuccess;
  info->status = capture->IsInvalid() ? kCaptureInvalidated : kCaptureActive;
  if (capture->IsInvalid()) return kSuccess;
  info->id = capture->id;
  info->graph = HandleOf<Graph>(*capture->graph);
  capture->reported.clear();
  for (const NodeIndex node : capture->tails[&stream]) capture->reported.push_back(NodeHandle(*capture->graph, node));
  info->dependencies = capture->reported.data();
  info->dependency_count = capture->reported.size();
  return kSuccess;
}

Status UpdateDependencies(StreamState& stream, const GraphNode* handles, std::size_t count, bool replaces) {
  CaptureLock lock;
  Capture* capture = CaptureOf(stream);
  if (capture == nullptr) return kErrorIllegalState;
  if (capture->IsInvalid()) return kErrorCaptureInvalidated;
  std::vector<NodeIndex> nodes;
  const Status status = FindNodes(*capture->graph, handles, count, &nodes);
  if (status != kSuccess) return status;
  std::vector<NodeIndex>& tail = capture->tails[&stream];
  if (replaces) tail.clear();
  for (const NodeIndex node : nodes) {
    if (std::find(tail.begin(), tail.end(), node) == tail.end()) tail.push_back(node);
  }
  capture->added.insert(capture->added.end(), nodes.begin(), nodes.end());
  return kSuccess;
}

Status CheckUnsafeCallInCaptures() {
  const int mode = thread_state.capture_mode;
  if (mode == kCaptureModeRelaxed) return kSuccess;
  const std::uint64_t thread = CurrentThreadId();
  CaptureLock lock;
  Status status = kSuccess;
  for (const auto& capture : Captures()) {
    const bool conflicts = capture->thread == thread ? capture->mode != kCaptureModeRelaxed
                                                     : mode == kCaptureModeGlobal && capture->mode == kCaptureModeGlobal;
    if (!conflicts) continue;
    lock.Invalidate(*capture);
    status = kErrorCaptureUnsupported;
  }
  return status;
}

Status RefuseInCapture(StreamState& stream, Status status) {
  CaptureLock lock;
  Capture* capture = OpenCaptureOf(stream);
  if (capture == nullptr) return kErrorCaptureInvalidated;
  lock.Invalidate(*capture);
  return status;
}

Status RefuseWaitForCaptured(const EventState& event) {
  CaptureLock lock;
  for (const auto& capture : Captures()) {
    if (event.captured == nullptr || capture->id != event.captured->capture) continue;
    lock.Invalidate(*capture);
    return kErrorCapturedEvent;
  }
  return kErrorInvalidValue;  // its capture has ended
}

Status CheckUseOfLegacy(const Device& device) {
  CaptureLock lock;
  const auto blocks = [&](const StreamState& stream) { return IsBlockingOn(stream, device); };
  return InvalidateThoseWith(lock, blocks) ? kErrorCaptureImplicit : kSuccess;
}

Status CheckUseOfContext(const Device& device) {
  CaptureLock lock;
  const auto is_of = [&](const StreamState& stream) { return stream.device == &device; };
  return InvalidateThoseWith(lock, is_of) ? kErrorCaptureUnsupported : kSuccess;
}

Status CaptureWork(StreamState& stream, int type, decltype(Node::what) what) {
  CaptureLock lock;
  return AddNode(stream, type, std::move(what));
}

Status CaptureAllocation(StreamState& stream, std::uint64_t bytes, std::uint64_t* address) {
  std::shared_ptr<GraphMemory> memory;  // destroyed after the lock if it is not kept
  CaptureLock lock;
  Capture* capture = OpenCaptureOf(stream);
  if (capture == nullptr) return kErrorCaptureInvalidated;
  const Status status = AllocateGraphMemory(*stream.device, bytes, &memory);
  if (status != kSuccess) return status;
  capture->graph->body->memory.push_back(memory);
  *address = memory->address;
  return AddNode(stream, kNodeAllocation, *address);
}

Status CaptureFree(StreamState& stream, std::uint64_t address) {
  CaptureLock lock;
  Capture* capture = OpenCaptureOf(stream);
  if (capture == nullptr) return kErrorCaptureInvalidated;
  if (!IsGraphMemory(address)) return kErrorInvalidValue;
  const auto& nodes = capture->graph->body->nodes;
  const auto frees = [&](const Node& node) { return node.type == kNodeFree && std::get<std::uint64_t>(node.what) == address; };
  if (std::any_of(nodes.begin(), nodes.end(), frees)) return kErrorInvalidValue;
  return AddNode(stream, kNodeFree, address);
}

Status CaptureRecord(StreamState& stream, EventState& event) {
  if (event.slot != nullptr || event.foreign != nullptr) return RefuseInCapture(stream, kErrorCaptureUnsupported);
  CaptureLock lock;
  const Capture* capture = OpenCaptureOf(stream);
  if (capture == nullptr) return kErrorCaptureInvalidated;
  event.captured = std::make_unique<CapturePoint>(CapturePoint{capture->id, capture->tails.at(&stream)});
  event.mark.store(kCapturedMark, std::memory_order_release);
  return kSuccess;
}

Status CaptureWait(StreamState& stream, EventState& event) {
  CaptureLock lock;
  Capture* capture = CaptureOf(stream);
  if (capture != nullptr && capture->IsInvalid()) return kErrorCaptureInvalidated;
  const CapturePoint* point = IsCaptured(event) ? event.captured.get() : nullptr;
  if (point == nullptr) {
    // A recording outside of every capture.
    if (capture != nullptr) lock.Invalidate(*capture);
    return kErrorCaptureIsolation;
  }
  const auto& all = Captures();
  const auto found = std::find_if(all.begin(), all.end(), [&](const auto& each) { return each->id == point->capture; });
  if (found == all.end()) {
    if (capture != nullptr) lock.Invalidate(*capture);
    return kErrorInvalidValue;
  }
  Capture& of_event = **found;
  if (capture != nullptr && capture != &of_event) {
    lock.Invalidate(*capture);
    lock.Invalidate(of_event);
    return kErrorCaptureMerge;
  }
  if (of_event.IsInvalid()) return kErrorInvalidValue;
  if (stream.role == StreamRole::kLegacy) {
    lock.Invalidate(of_event);
    return kErrorCaptureImplicit;
  }
  std::vector<NodeIndex>& tail = of_event.tails[&stream];
  for (const NodeIndex node : point->tail) {
    if (!of_event.graph->body->IsOrderedBefore(node, tail)) tail.push_back(node);
  }
  stream.is_capturing.store(true, std::memory_order_release);
  return kSuccess;
}

}  // namespace cistern::software
