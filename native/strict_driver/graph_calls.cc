// Graphs, executable graphs and user objects.
#include <algorithm>
#include <cstdio>
#include <utility>

#include "strict_driver/call.h"
#include "strict_driver/calls.h"
#include "strict_driver/capture.h"
#include "strict_driver/graph.h"
#include "strict_driver/graph_memory.h"
#include "strict_driver/report.h"
#include "strict_driver/settings.h"
#include "strict_driver/stream.h"

namespace cistern::strict::calls {
namespace {

template <typename State>
Status Find(const HandleTable<State>& table, const void* handle, const char* what, std::shared_ptr<State>* state) {
  *state = table.Find(handle);
  if (*state != nullptr) return kSuccess;
  Report("MISUSE", "%s: %p is %s %s", thread.function, handle, table.WasEverLive(handle) ? "a destroyed" : "not a", what);
  return kErrorInvalidValue;
}

Status FindGraph(Graph graph, std::shared_ptr<GraphState>* state) { return Find(driver.graphs, graph, "graph", state); }
Status FindExec(GraphExec exec, std::shared_ptr<ExecState>* state) { return Find(driver.execs, exec, "executable graph", state); }
Status FindObject(UserObject object, UserObjectRef* state) { return Find(driver.user_objects, object, "user object", state); }

// An executable graph and the stream of a call that takes both.
Status FindBoth(GraphExec exec, Stream stream, std::shared_ptr<ExecState>* exec_state, StreamRef* stream_state) {
  Status status = FindExec(exec, exec_state);
  if (status == kSuccess) status = FindStream(stream, stream_state, false);
  return status == kSuccess ? CheckUncaptured(**stream_state) : status;
}

const char* NameOf(int type) {
  constexpr const char* kNames[] = {"KERNEL", "MEMCPY", "MEMSET", "HOST", "GRAPH", "EMPTY", "EVENT_WAIT", "EVENT_RECORD"};
  if (type == kNodeAllocation) return "MEM_ALLOC";
  if (type == kNodeFree) return "MEM_FREE";
  return kNames[type];
}

// Graphs are numbered as they come.
void PrintNodes(std::FILE* file, const std::vector<NodeRef>& nodes, int* graphs) {
  const int graph = ++*graphs;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    std::fprintf(file, "graph_%d_node_%zu[label=\"%zu\\n%s\"];\n", graph, i, i, NameOf(nodes[i]->type));
    for (const std::size_t before : nodes[i]->after)
      std::fprintf(file, "graph_%d_node_%zu -> graph_%d_node_%zu;\n", graph, before, graph, i);
    if (nodes[i]->child == nullptr) continue;
    std::fprintf(file, "subgraph cluster_%d {\n", *graphs + 1);
    PrintNodes(file, nodes[i]->child->nodes, graphs);
    std::fprintf(file, "}\n");
  }
}

}  // namespace

// "If childGraph contains allocation nodes, free nodes, or conditional nodes, this call will return an error."
Status GraphAddChildGraphNode(GraphNode* node, Graph graph, const GraphNode* dependencies, std::size_t count, Graph child) {
  STRICT_DRIVER_ENTER("cuGraphAddChildGraphNode", kInit);
  std::shared_ptr<GraphState> state;
  std::shared_ptr<GraphState> child_state;
  Status status = FindGraph(graph, &state);
  if (status == kSuccess) status = FindGraph(child, &child_state);
  if (status != kSuccess) return status;
  if (node == nullptr || (count > 0 && dependencies == nullptr)) return kErrorInvalidValue;
  if (child_state->is_being_captured) return kErrorIllegalState;
  std::vector<std::size_t> after;
  for (std::size_t i = 0; i < count; ++i) {
    const NodeRef before = driver.nodes.Find(dependencies[i]);
    if (before == nullptr || before->graph != state.get()) return kErrorInvalidValue;
    if (std::find(after.begin(), after.end(), before->index) != after.end()) return kErrorInvalidValue;
    after.push_back(before->index);
  }
  *node = AddChildGraph(*state, std::move(after), *child_state);
  if (*node == nullptr) return kErrorInvalidValue;
  NoteAdded(*state, *node);
  return kSuccess;
}

Status GraphDestroy(Graph graph) {
  STRICT_DRIVER_ENTER_UNSAFE("cuGraphDestroy", kInit, CheckPotentiallyUnsafe);
  std::shared_ptr<GraphState> state;
  const Status status = FindGraph(graph, &state);
  if (status != kSuccess) return status;
  if (state->is_being_captured) return kErrorIllegalState;
  DropGraph(*state);
  return kSuccess;
}

Status GraphGetNodes(Graph graph, GraphNode* nodes, std::size_t* count) {
  STRICT_DRIVER_ENTER("cuGraphGetNodes", kInit);
  std::shared_ptr<GraphState> state;
  const Status status = FindGraph(graph, &state);
  if (status != kSuccess) return status;
  if (count == nullptr) return kErrorInvalidValue;
  const std::size_t all = state->nodes.size();
  for (std::size_t i = 0; nodes != nullptr && i < *count; ++i) nodes[i] = i < all ? state->nodes[i]->handle : nullptr;
  if (nodes == nullptr || *count > all) *count = all;
  return kSuccess;
}

Status GraphNodeGetType(GraphNode node, int* type) {
  STRICT_DRIVER_ENTER("cuGraphNodeGetType", kInit);
  NodeRef state;
  const Status status = Find(driver.nodes, node, "node", &state);
  if (status != kSuccess) return status;
  if (type == nullptr) return kErrorInvalidValue;
  *type = state->type;
  return kSuccess;
}

Status GraphDebugDotPrint(Graph graph, const char* path, unsigned) {
  STRICT_DRIVER_ENTER("cuGraphDebugDotPrint", kInit);
  std::shared_ptr<GraphState> state;
  const Status status = FindGraph(graph, &state);
  if (status != kSuccess) return status;
  if (path == nullptr) return kErrorInvalidValue;
  std::FILE* file = std::fopen(path, "w");
  if (file == nullptr) return kErrorOperatingSystem;
  std::fprintf(file, "digraph dot {\n");
  int graphs = 0;
  PrintNodes(file, state->nodes, &graphs);
  std::fprintf(file, "}\n");
  return std::fclose(file) == 0 ? kSuccess : Status{kErrorOperatingSystem};
}

Status GraphInstantiateWithFlags(GraphExec* exec, Graph graph, unsigned long long flags) {
  STRICT_DRIVER_ENTER_UNSAFE("cuGraphInstantiateWithFlags", kContext, CheckPerhapsUnsafe);
  std::shared_ptr<GraphState> state;
  const Status status = FindGraph(graph, &state);
  if (status != kSuccess) return status;
  if (exec == nullptr || (flags & ~kInstantiateAutoFree) != 0) return kErrorInvalidValue;
  if (state->is_being_captured) return kErrorIllegalState;
  const std::shared_ptr<ExecState> made = Instantiate(*state, flags == kInstantiateAutoFree);
  if (made == nullptr) return kErrorInvalidValue;
  *exec = static_cast<GraphExec>(driver.execs.Add(made));
  return kSuccess;
}

// "If the executable graph is in-flight, it will not be terminated."
Status GraphExecDestroy(GraphExec exec) {
  STRICT_DRIVER_ENTER_UNSAFE("cuGraphExecDestroy", kInit, CheckPotentiallyUnsafe);
  std::shared_ptr<ExecState> state;
  const Status status = FindExec(exec, &state);
  if (status != kSuccess) return status;
  EndQueues(*state);
  driver.execs.Remove(exec);
  return kSuccess;
}

Status GraphExecUpdate(GraphExec exec, Graph graph, GraphUpdateResult* result) {
  STRICT_DRIVER_ENTER_UNSAFE("cuGraphExecUpdate", kContext, CheckPerhapsUnsafe);
  std::shared_ptr<ExecState> exec_state;
  std::shared_ptr<GraphState> graph_state;
  Status status = FindExec(exec, &exec_state);
  if (status == kSuccess) status = FindGraph(graph, &graph_state);
  if (status != kSuccess) return status;
  if (result == nullptr || graph_state->is_being_captured) return kErrorInvalidValue;
  return Update(*exec_state, *graph_state, result);
}

// "Ordered behind both any previous work in the stream and any previous launches."
Status GraphUpload(GraphExec exec, Stream stream) {
  STRICT_DRIVER_ENTER("cuGraphUpload", kContext);
  std::shared_ptr<ExecState> exec_state;
  StreamRef stream_state;
  const Status status = FindBoth(exec, stream, &exec_state, &stream_state);
  if (status != kSuccess) return status;
  const Status prepared = MapMemory(*exec_state->body);
  if (prepared != kSuccess) return prepared;
  Operation operation;
  operation.name = call.function;
  operation.after.push_back(exec_state->last_end);
  return Submit(stream_state, std::move(operation), &exec_state->last_end);
}

Status GraphLaunch(GraphExec exec, Stream stream) {
  STRICT_DRIVER_ENTER("cuGraphLaunch", kContext);
  std::shared_ptr<ExecState> exec_state;
  StreamRef stream_state;
  const Status status = FindBoth(exec, stream, &exec_state, &stream_state);
  return status == kSuccess ? Launch(*exec_state, stream_state) : status;
}

Status DeviceGraphMemTrim(DeviceOrdinal device) {
  STRICT_DRIVER_ENTER_UNSAFE("cuDeviceGraphMemTrim", kInit, CheckPerhapsUnsafe);
  if (device < 0 || device >= settings().devices) return kErrorInvalidDevice;
  TrimGraphMemory(device);
  return kSuccess;
}

Status UserObjectCreate(UserObject* object, void* data, HostFunction destroy, unsigned references, unsigned flags) {
  STRICT_DRIVER_ENTER("cuUserObjectCreate", kInit);
  if (object == nullptr || destroy == nullptr || references == 0 || flags != kUserObjectNoDestructorSync) return kErrorInvalidValue;
  auto state = std::make_shared<UserObjectState>();
  state->data = data;
  state->destroy = destroy;
  state->of_caller = state->references = references;
  *object = state->handle = static_cast<UserObject>(driver.user_objects.Add(state));
  return kSuccess;
}

Status UserObjectRelease(UserObject object, unsigned count) {
  STRICT_DRIVER_ENTER("cuUserObjectRelease", kInit);
  UserObjectRef state;
  const Status status = FindObject(object, &state);
  if (status != kSuccess) return status;
  if (count == 0 || count > state->of_caller) return kErrorInvalidValue;
  state->of_caller -= count;
  ReleaseReferences(state, count);
  return kSuccess;
}

Status GraphRetainUserObject(Graph graph, UserObject object, unsigned count, unsigned flags) {
  STRICT_DRIVER_ENTER("cuGraphRetainUserObject", kInit);
  std::shared_ptr<GraphState> graph_state;
  UserObjectRef state;
  Status status = FindGraph(graph, &graph_state);
  if (status == kSuccess) status = FindObject(object, &state);
  if (status != kSuccess) return status;
  const bool moves = flags == kUserObjectMove;
  if (count == 0 || (flags != 0 && !moves) || (moves && count > state->of_caller)) return kErrorInvalidValue;
  graph_state->objects.Add(state, count);
  if (!moves) return kSuccess;
  state->of_caller -= count;
  ReleaseReferences(state, count);
  return kSuccess;
}

}  // namespace cistern::strict::calls
