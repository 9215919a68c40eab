#include <cstdio>
#include <string>

#include "software/calls.h"
#include "software/capture.h"
#include "software/graph.h"
#include "software/resolve.h"

namespace cistern::software::calls {
namespace {

// A graph that is captured no more.
Status ResolveGraph(Graph graph, GraphState** state) {
  *state = graph_table.Find(HandleBits(graph));
  if (*state == nullptr) return kErrorInvalidValue;
  return (*state)->is_captured ? kErrorIllegalState : kSuccess;
}

Status ResolveExec(GraphExec exec, ExecState** state) {
  *state = exec_table.Find(HandleBits(exec));
  return *state != nullptr ? kSuccess : kErrorInvalidValue;
}

const char* NodeTypeName(int type) {
  switch (type) {
    case kNodeCopy:
      return "MEMCPY";
    case kNodeFill:
      return "MEMSET";
    case kNodeHost:
      return "HOST";
    case kNodeGraph:
      return "GRAPH";
    case kNodeAllocation:
      return "MEM_ALLOC";
    default:
      return "MEM_FREE";
  }
}

// The nodes of a graph that is a node are in a box of their own, and have its name before theirs.
std::string DotText(const GraphBody& body, const std::string& name = "node") {
  std::string text;
  for (std::size_t index = 0; index < body.nodes.size(); ++index) {
    const Node& node = body.nodes[index];
    const std::string own_name = name + "_" + std::to_string(index);
    text += "  " + own_name + " [label=\"" + NodeTypeName(node.type) + "\"];\n";
    for (const NodeIndex dependency : node.dependencies) {
      text += "  " + name + "_" + std::to_string(dependency) + " -> " + own_name + ";\n";
    }
    if (node.type != kNodeGraph) continue;
    const auto& child = std::get<std::shared_ptr<const ChildGraph>>(node.what);
    text += "  subgraph cluster_" + own_name + " {\n" + DotText(*child->body, own_name) + "  }\n";
  }
  return text;
}

}  // namespace

Status ThreadExchangeStreamCaptureMode(int* mode) {
  if (!IsInitialized()) return kErrorNotInitialized;
  if (mode == nullptr || *mode < kCaptureModeGlobal || *mode > kCaptureModeRelaxed) return kErrorInvalidValue;
  std::swap(*mode, thread_state.capture_mode);
  return kSuccess;
}

Status StreamBeginCapture(Stream stream, int mode) {
  StreamState* state;
  const Status status = ResolveStream(stream, &state);
  if (status != kSuccess) return status;
  if (mode < kCaptureModeGlobal || mode > kCaptureModeRelaxed) return kErrorInvalidValue;
  return BeginCapture(*state, mode);
}

Status StreamEndCapture(Stream stream, Graph* graph) {
  StreamState* state;
  const Status status = ResolveStream(stream, &state);
  if (status != kSuccess) return status;
  return graph != nullptr ? EndCapture(*state, graph) : Status{kErrorInvalidValue};
}

Status StreamIsCapturing(Stream stream, int* capture_status) {
  StreamState* state;
  Status status = ResolveStream(stream, &state);
  if (status != kSuccess) return status;
  if (capture_status == nullptr) return kErrorInvalidValue;
  CaptureInfo info;
  if (open_captures.load(std::memory_order_acquire) != 0) status = GetCaptureInfo(*state, &info);
  if (status == kSuccess) *capture_status = info.status;
  return status;
}

Status StreamGetCaptureInfo(Stream stream, int* capture_status, std::uint64_t* id, Graph* graph, const GraphNode** dependencies,
                            const EdgeData** edges, std::size_t* dependency_count) {
  StreamState* state;
  Status status = ResolveStream(stream, &state);
  if (status != kSuccess) return status;
  if (capture_status == nullptr) return kErrorInvalidValue;
  CaptureInfo info;
  status = GetCaptureInfo(*state, &info);
  if (status != kSuccess) return status;
  *capture_status = info.status;
  if (id != nullptr) *id = info.id;
  if (graph != nullptr) *graph = info.graph;
  if (dependencies != nullptr) *dependencies = info.dependencies;
  if (edges != nullptr) *edges = nullptr;
  if (dependency_count != nullptr) *dependency_count = info.dependency_count;
  return kSuccess;
}

Status StreamUpdateCaptureDependencies(Stream stream, GraphNode* dependencies, std::size_t count, unsigned flags) {
  StreamState* state;
  const Status status = ResolveStream(stream, &state);
  if (status != kSuccess) return status;
  return flags <= kSetDependencies ? UpdateDependencies(*state, dependencies, count, flags == kSetDependencies)
                                   : Status{kErrorInvalidValue};
}

// Only to a graph that a capture is still adding to: that of another may have executable graphs, which share it.
Status GraphAddChildGraphNode(GraphNode* node, Graph graph, const GraphNode* dependencies, std::size_t count, Graph child) {
  const std::lock_guard<std::mutex> lock(GraphMutex());
  GraphState* state = graph_table.Find(HandleBits(graph));
  GraphState* child_state;
  if (state == nullptr || node == nullptr) return kErrorInvalidValue;
  Status status = ResolveGraph(child, &child_state);
  if (status != kSuccess) return status;
  std::vector<NodeIndex> nodes;
  status = FindNodes(*state, dependencies, count, &nodes);
  if (status != kSuccess) return status;
  return state->is_captured ? AddChildGraph(*state, std::move(nodes), *child_state, node) : Status{kErrorNotSupported};
}

Status GraphDestroy(Graph graph) {
  std::shared_ptr<GraphBody> body;  // destroyed after the lock
  const std::lock_guard<std::mutex> lock(GraphMutex());
  GraphState* state;
  const Status status = ResolveGraph(graph, &state);
  if (status == kSuccess) body = EndGraph(*state);
  return status;
}

Status GraphGetNodes(Graph graph, GraphNode* nodes, std::size_t* count) {
  const std::lock_guard<std::mutex> lock(GraphMutex());
  GraphState* state = graph_table.Find(HandleBits(graph));
  if (state == nullptr || count == nullptr) return kErrorInvalidValue;
  const std::size_t all = state->body->nodes.size();
  if (nodes == nullptr) {
    *count = all;
    return kSuccess;
  }
  for (std::size_t index = 0; index < *count; ++index) {
    nodes[index] = index < all ? NodeHandle(*state, static_cast<NodeIndex>(index)) : nullptr;
  }
  *count = std::min(*count, all);
  return kSuccess;
}

Status GraphNodeGetType(GraphNode node, int* type) {
  const std::lock_guard<std::mutex> lock(GraphMutex());
  const Node* found = FindNode(node);
  if (found == nullptr || type == nullptr) return kErrorInvalidValue;
  *type = found->type;
  return kSuccess;
}

Status GraphDebugDotPrint(Graph graph, const char* path, unsigned) {
  const std::lock_guard<std::mutex> lock(GraphMutex());
  GraphState* state;
  const Status status = ResolveGraph(graph, &state);
  if (status != kSuccess) return status;
  if (path == nullptr) return kErrorInvalidValue;
  std::FILE* file = std::fopen(path, "w");
  if (file == nullptr) return kErrorOperatingSystem;
  const std::string text = "digraph dot {\n" + DotText(*state->body) + "}\n";
  const bool is_written = std::fwrite(text.data(), 1, text.size(), file) == text.size();
  return std::fclose(file) == 0 && is_written ? kSuccess : kErrorOperatingSystem;
}

Status GraphInstantiateWithFlags(GraphExec* exec, Graph graph, unsigned long long flags) {
  const std::lock_guard<std::mutex> lock(GraphMutex());
  GraphState* state;
  const Status status = ResolveGraph(graph, &state);
  if (status != kSuccess) return status;
  if (exec == nullptr || (flags & ~kInstantiateAutoFree) != 0) return kErrorInvalidValue;
  return Instantiate(*state, flags, exec);
}

Status GraphExecDestroy(GraphExec exec) {
  std::shared_ptr<const GraphBody> body;
  const std::lock_guard<std::mutex> lock(GraphMutex());
  ExecState* state;
  const Status status = ResolveExec(exec, &state);
  if (status != kSuccess) return status;
  ExecTable::Close(*state, HandleBits(exec));
  body = std::move(state->body);
  state->objects.reset();
  exec_table.Recycle(*state);
  return kSuccess;
}

Status GraphExecUpdate(GraphExec exec, Graph graph, GraphUpdateResult* result) {
  std::shared_ptr<const GraphBody> old;
  const std::lock_guard<std::mutex> lock(GraphMutex());
  ExecState* exec_state;
  GraphState* graph_state;
  Status status = ResolveExec(exec, &exec_state);
  if (status == kSuccess) status = ResolveGraph(graph, &graph_state);
  if (status != kSuccess) return status;
  if (result == nullptr) return kErrorInvalidValue;
  old = exec_state->body;
  return Update(*exec_state, *graph_state, result);
}

Status GraphUpload(GraphExec exec, Stream stream) {
  StreamState* stream_state;
  Status status = ResolveStreamOutsideCapture(stream, &stream_state);
  if (status != kSuccess) return status;
  const std::lock_guard<std::mutex> lock(GraphMutex());
  ExecState* state;
  return ResolveExec(exec, &state);
}

// CUDA's documentation does not say that a launch can be captured.
Status GraphLaunch(GraphExec exec, Stream stream) {
  StreamState* stream_state;
  Status status = ResolveStreamOutsideCapture(stream, &stream_state);
  if (status != kSuccess) return status;
  const std::lock_guard<std::mutex> lock(GraphMutex());
  ExecState* state;
  status = ResolveExec(exec, &state);
  return status == kSuccess ? Launch(*state, *stream_state) : status;
}

Status UserObjectCreate(UserObject* object, void* data, HostFunction destroy, unsigned references, unsigned flags) {
  if (!IsInitialized()) return kErrorNotInitialized;
  if (object == nullptr || destroy == nullptr || references == 0 || flags != kUserObjectNoDestructorSync) return kErrorInvalidValue;
  return CreateUserObject(destroy, data, references, object);
}

Status UserObjectRelease(UserObject object, unsigned count) { return ReleaseUserObject(object, count); }

Status GraphRetainUserObject(Graph graph, UserObject object, unsigned count, unsigned flags) {
  const std::lock_guard<std::mutex> lock(GraphMutex());
  GraphState* state = graph_table.Find(HandleBits(graph));
  if (state == nullptr || (flags & ~unsigned{kUserObjectMove}) != 0) return kErrorInvalidValue;
  std::shared_ptr<OwnedObject> shared;
  const Status status = ShareUserObject(object, count, flags == kUserObjectMove, &shared);
  if (status == kSuccess) state->objects.push_back(std::move(shared));
  return status;
}

}  // namespace cistern::software::calls
