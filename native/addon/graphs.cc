#include <array>

#include "addon/bindings.h"
#include "addon/captures.h"
#include "addon/host_functions.h"

namespace cistern {
namespace {

Status FindGraph(Environment& environment, const Napi::Value& value, std::uint64_t* handle, GraphEntry** graph) {
  return ReadInteger(value, handle) ? environment.graphs.Find(static_cast<double>(*handle), graph) : kInvalidArgument;
}

Status FindExec(Environment& environment, const Napi::Value& value, std::uint64_t* handle, GraphExecEntry** exec) {
  return ReadInteger(value, handle) ? environment.graph_execs.Find(static_cast<double>(*handle), exec) : kInvalidArgument;
}

template <typename Queue>
Status OnStream(Environment& environment, const Napi::CallbackInfo& info, Queue&& queue) {
  std::uint64_t handle;
  GraphExecEntry* exec;
  StreamEntry* stream;
  Status status = FindExec(environment, info[0], &handle, &exec);
  if (status == kSuccess) status = FindUncapturedStream(environment, info[1], &stream);
  if (status != kSuccess) return status;
  const RelaxedContextScope context(environment, stream->device);
  return context.status() == kSuccess ? queue(*exec, *stream) : context.status();
}

}  // namespace

Status DestroyGraph(Environment& environment, const Napi::CallbackInfo& info) {
  std::uint64_t handle;
  GraphEntry* graph;
  Status status = FindGraph(environment, info[0], &handle, &graph);
  if (status != kSuccess) return status;
  const RelaxedContextScope context(environment, graph->device);
  status = context.status() == kSuccess ? environment.Counted<Call::kGraphDestroy>(graph->graph) : context.status();
  if (status == kSuccess) environment.graphs.Remove(handle);
  return status;
}

Status InstantiateGraph(Environment& environment, const Napi::CallbackInfo& info) {
  std::uint64_t handle;
  bool frees_on_launch;
  GraphEntry* graph;
  if (!ReadBoolean(info[1], &frees_on_launch)) return kInvalidArgument;
  Status status = FindGraph(environment, info[0], &handle, &graph);
  if (status != kSuccess) return status;
  const RelaxedContextScope context(environment, graph->device);
  if (context.status() != kSuccess) return context.status();
  GraphExec exec = nullptr;
  const unsigned long long flags = frees_on_launch ? kInstantiateAutoFree : 0ull;
  HostNodes functions = graph->functions;
  status = environment.Counted<Call::kGraphInstantiateWithFlags>(&exec, graph->graph, flags);
  if (status != kSuccess) return status;
  const std::uint64_t added = environment.graph_execs.Add({exec, graph->device, std::move(functions)});
  if (added == 0) {
    environment.Counted<Call::kGraphExecDestroy>(exec);
    return kHostOutOfMemory;
  }
  environment.Out(1, static_cast<double>(added));
  return kSuccess;
}

Status DestroyGraphExec(Environment& environment, const Napi::CallbackInfo& info) {
  std::uint64_t handle;
  GraphExecEntry* exec;
  Status status = FindExec(environment, info[0], &handle, &exec);
  if (status != kSuccess) return status;
  const RelaxedContextScope context(environment, exec->device);
  status = context.status() == kSuccess ? environment.Counted<Call::kGraphExecDestroy>(exec->exec) : context.status();
  if (status == kSuccess) environment.graph_execs.Remove(handle);
  return status;
}

Status UpdateGraphExec(Environment& environment, const Napi::CallbackInfo& info) {
  std::uint64_t handle;
  GraphExecEntry* exec;
  GraphEntry* graph;
  Status status = FindExec(environment, info[0], &handle, &exec);
  if (status == kSuccess) status = FindGraph(environment, info[1], &handle, &graph);
  if (status != kSuccess) return status;
  const RelaxedContextScope context(environment, exec->device);
  if (context.status() != kSuccess) return context.status();
  GraphUpdateResult result = {};
  HostNodes functions = graph->functions;
  status = environment.Counted<Call::kGraphExecUpdate>(exec->exec, graph->graph, &result);
  if (status == kSuccess) exec->functions = std::move(functions);
  environment.Out(1, result.result);
  return status;
}

Status LaunchGraph(Environment& environment, const Napi::CallbackInfo& info) {
  return OnStream(environment, info, [&](const GraphExecEntry& exec, const StreamEntry& stream) {
    return exec.functions.empty() ? environment.Counted<Call::kGraphLaunch>(exec.exec, stream.stream)
                                  : LaunchHostFunctions(environment, exec, stream, info[2]);
  });
}

Status UploadGraph(Environment& environment, const Napi::CallbackInfo& info) {
  return OnStream(environment, info, [&](const GraphExecEntry& exec, const StreamEntry& stream) {
    return environment.Counted<Call::kGraphUpload>(exec.exec, stream.stream);
  });
}

Status AddChildGraph(Environment& environment, const Napi::CallbackInfo& info) {
  std::uint64_t handle;
  StreamEntry* entry;
  GraphEntry* child;
  Status status = FindStream(environment, info[0], &entry);
  if (status == kSuccess) status = FindGraph(environment, info[1], &handle, &child);
  if (status != kSuccess) return status;
  const Stream stream = entry->stream;
  const RelaxedContextScope context(environment, entry->device);
  if (context.status() != kSuccess) return context.status();
  Graph graph;
  std::uint64_t capture = 0;
  status = child->functions.empty() ? CapturedGraphOf(environment, *entry, &graph)
                                    : CapturedGraphForJavaScript(environment, *entry, &graph, &capture);
  if (status != kSuccess) return status;
  if (graph == nullptr) return kErrorIllegalState;
  int capture_status;
  const GraphNode* last = nullptr;
  // What an edge means may be less than that its node has ended, which only a kernel can follow. A driver that has such edges refuses to
  // name the nodes to whom does not ask for that as well.
  const EdgeData* edges = nullptr;
  std::size_t count = 0;
  status = environment.driver->StreamGetCaptureInfo(stream, &capture_status, nullptr, nullptr, &last, &edges, &count);
  GraphNode node = nullptr;
  if (status == kSuccess) status = environment.Counted<Call::kGraphAddChildGraphNode>(&node, graph, last, count, child->graph);
  if (status != kSuccess) return status;
  // It is a node from here on, whatever happens.
  NoteCapturedFunctions(capture, child->functions);
  status = environment.Counted<Call::kStreamUpdateCaptureDependencies>(stream, &node, std::size_t{1}, unsigned{kSetDependencies});
  // Nothing would come after the node, and it cannot be taken out again: a query invalidates the capture.
  if (status != kSuccess) environment.driver->StreamQuery(stream);
  return status;
}

Status CountGraphNodes(Environment& environment, const Napi::CallbackInfo& info) {
  std::uint64_t handle;
  GraphEntry* graph;
  Napi::Float64Array counts;
  if (!ReadArray(info[1], &counts) || counts.ElementLength() < kNodeTypeCount) return kInvalidArgument;
  Status status = FindGraph(environment, info[0], &handle, &graph);
  if (status != kSuccess) return status;
  std::size_t count = 0;
  status = environment.Counted<Call::kGraphGetNodes>(graph->graph, static_cast<GraphNode*>(nullptr), &count);
  if (status != kSuccess) return status;
  std::vector<GraphNode> nodes(count);
  if (count > 0) status = environment.Counted<Call::kGraphGetNodes>(graph->graph, nodes.data(), &count);
  if (status != kSuccess) return status;
  std::array<double, kNodeTypeCount> by_type = {};
  for (const GraphNode node : nodes) {
    int type = -1;
    status = environment.driver->GraphNodeGetType(node, &type);
    if (status != kSuccess) return status;
    if (type >= 0 && type < kNodeTypeCount) by_type[static_cast<std::size_t>(type)] += 1;
  }
  std::copy(by_type.begin(), by_type.end(), counts.Data());
  environment.Out(1, static_cast<double>(count));
  return kSuccess;
}

Status WriteGraph(Environment& environment, const Napi::CallbackInfo& info) {
  std::uint64_t handle;
  GraphEntry* graph;
  std::string path;
  if (!ReadString(info[1], &path)) return kInvalidArgument;
  const Status status = FindGraph(environment, info[0], &handle, &graph);
  if (status != kSuccess) return status;
  return environment.Counted<Call::kGraphDebugDotPrint>(graph->graph, path.c_str(), 0u);
}

}  // namespace cistern
