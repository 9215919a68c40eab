#include "strict_driver/graph.h"

#include <algorithm>
#include <utility>

#include "strict_driver/graph_memory.h"
#include "strict_driver/report.h"
#include "strict_driver/settings.h"
#include "strict_driver/stream.h"

namespace cistern::strict {
namespace {

constexpr std::size_t kMostQueues = 3;

// An order of the nodes that agrees with their edges, and is otherwise left to chance.
std::vector<std::size_t> ArbitraryOrder(const std::vector<NodeRef>& nodes, std::minstd_rand& random) {
  std::vector<std::size_t> missing(nodes.size());
  std::vector<std::vector<std::size_t>> followers(nodes.size());
  std::vector<std::size_t> ready;
  for (std::size_t index = 0; index < nodes.size(); ++index) {
    missing[index] = nodes[index]->after.size();
    if (missing[index] == 0) ready.push_back(index);
    for (const std::size_t before : nodes[index]->after) followers[before].push_back(index);
  }
  std::vector<std::size_t> order;
  while (!ready.empty()) {
    std::swap(ready[random() % ready.size()], ready.back());
    const std::size_t next = ready.back();
    ready.pop_back();
    order.push_back(next);
    for (const std::size_t follower : followers[next]) {
      if (--missing[follower] == 0) ready.push_back(follower);
    }
  }
  return order;
}

std::size_t CountNodes(const ExecBody& body) {
  std::size_t count = 0;
  for (const NodeRef& node : body.nodes) count += node->child == nullptr ? 1 : CountNodes(*node->child);
  return count;
}

const StreamRef& AnyQueue(ExecState& exec, ContextState* context) {
  std::vector<StreamRef>& queues = exec.queues[context];
  if (queues.empty()) {
    const std::size_t count = std::min(kMostQueues, CountNodes(*exec.body));
    for (std::size_t i = 0; i < count; ++i) queues.push_back(NewStream(context, Role::kCreated, kStreamNonBlocking, 0));
  }
  return queues[exec.random() % queues.size()];
}

// The memory at the addresses of a node can be gone, or be somebody else's by now. Mappings may change.
bool HasItsMemory(const NodeState& node, const Operation& operation) {
  if (operation.uses.size() != node.uses.size()) return true;  // virtual memory that is mapped in other pieces
  for (std::size_t i = 0; i < node.uses.size(); ++i) {
    const AllocationRef& captured = node.uses[i];
    if (captured == operation.uses[i] || captured == nullptr || captured->kind == Kind::kVirtual) continue;
    Report("MISUSE", "%s: the memory %#lx of a node has been freed, and other memory is there", thread.function, captured->start);
    return false;
  }
  return true;
}

void EndLaunch(const ExecBody& body) {
  const Lock lock(big_lock);
  for (const NodeRef& node : body.nodes) {
    if (node->memory != nullptr) node->memory->launches -= 1;
  }
}

Operation OperationOf(const NodeState& node) {
  Operation operation;
  const Status status = node.make(&operation);
  if (status != kSuccess) Report("MISUSE", "%s: the memory of a node is not there any more", thread.function);
  if (status != kSuccess || !HasItsMemory(node, operation)) operation.fault = kErrorIllegalAddress;
  return operation;
}

bool HasMemory(const NodeRef& node) { return node->memory != nullptr; }

// Where the operands of a copy or fill are cannot change.
bool AreAlike(const AllocationRef& a, const AllocationRef& b) {
  if (a == nullptr || b == nullptr) return a == b;
  return a->kind == b->kind && a->device == b->device;
}

bool HaveAlikeOperands(const NodeState& a, const NodeState& b) {
  return std::equal(a.uses.begin(), a.uses.end(), b.uses.begin(), b.uses.end(), AreAlike);
}

// Why nodes cannot become others, and the node that is the reason, if one is.
int CompareNodes(const std::vector<NodeRef>& before, const std::vector<NodeRef>& after, GraphNode* reason) {
  if (before.size() != after.size()) return kUpdateTopologyChanged;
  for (std::size_t i = 0; i < before.size(); ++i) {
    const NodeState& node = *after[i];
    *reason = node.handle;
    if (node.after != before[i]->after) return kUpdateTopologyChanged;
    if (node.type != before[i]->type) return kUpdateNodeTypeChanged;
    if (node.memory != before[i]->memory) return kUpdateNotSupported;
    if (node.context != before[i]->context || !HaveAlikeOperands(*before[i], node)) return kUpdateParametersChanged;
    GraphNode inner;
    const int result = node.child == nullptr ? kUpdateSuccess : CompareNodes(before[i]->child->nodes, node.child->nodes, &inner);
    if (result != kUpdateSuccess) return result;
  }
  return kUpdateSuccess;
}

// Submits the nodes of a graph behind these places; returns those behind which all of them have run.
std::vector<Place> SubmitNodes(ExecState& exec, const ExecBody& body, const std::vector<Place>& begin) {
  std::vector<std::vector<Place>> places(body.nodes.size());
  std::vector<bool> has_follower(body.nodes.size());
  for (const std::size_t index : ArbitraryOrder(body.nodes, exec.random)) {
    const NodeState& node = *body.nodes[index];
    std::vector<Place> after = begin;
    for (const std::size_t before : node.after) {
      after.insert(after.end(), places[before].begin(), places[before].end());
      has_follower[before] = true;
    }
    if (node.child != nullptr) {
      places[index] = SubmitNodes(exec, *node.child, after);
      continue;
    }
    Operation operation = OperationOf(node);
    operation.after.insert(operation.after.end(), after.begin(), after.end());
    Submit(AnyQueue(exec, node.context), std::move(operation), &places[index].emplace_back());
  }
  std::vector<Place> end = begin;
  for (std::size_t index = 0; index < places.size(); ++index) {
    if (!has_follower[index]) end.insert(end.end(), places[index].begin(), places[index].end());
  }
  return end;
}

}  // namespace

std::shared_ptr<GraphState> NewGraph() {
  auto graph = std::make_shared<GraphState>();
  graph->handle = static_cast<Graph>(driver.graphs.Add(graph));
  return graph;
}

void DropGraph(GraphState& graph) {
  for (const NodeRef& node : graph.nodes) driver.nodes.Remove(node->handle);
  driver.graphs.Remove(graph.handle);
}

std::size_t AddNode(GraphState& graph, NodeState node) {
  const auto added = std::make_shared<NodeState>(std::move(node));
  added->index = graph.nodes.size();
  added->graph = &graph;
  added->handle = static_cast<GraphNode>(driver.nodes.Add(added));
  graph.nodes.push_back(added);
  return added->index;
}

GraphNode AddChildGraph(GraphState& graph, std::vector<std::size_t> after, const GraphState& child) {
  if (std::any_of(child.nodes.begin(), child.nodes.end(), HasMemory)) return nullptr;
  NodeState node;
  node.type = kNodeGraph;
  node.after = std::move(after);
  node.child = std::make_shared<ExecBody>(ExecBody{child.nodes, child.objects});
  return graph.nodes[AddNode(graph, std::move(node))]->handle;
}

std::shared_ptr<ExecState> Instantiate(GraphState& graph, bool frees_on_launch) {
  if (!graph.exec.expired() && std::any_of(graph.nodes.begin(), graph.nodes.end(), HasMemory)) return nullptr;
  auto exec = std::make_shared<ExecState>();
  graph.exec = exec;
  exec->frees_on_launch = frees_on_launch;
  exec->body = std::make_shared<ExecBody>(ExecBody{graph.nodes, graph.objects});
  static unsigned count = 0;
  exec->random.seed(settings().seed * 7919 + ++count);
  return exec;
}

Status Update(ExecState& exec, const GraphState& graph, GraphUpdateResult* result) {
  GraphNode reason = nullptr;
  const int compared = CompareNodes(exec.body->nodes, graph.nodes, &reason);
  if (compared != kUpdateSuccess) {
    *result = {compared, reason, nullptr};
    return kErrorGraphExecUpdateFailure;
  }
  exec.body = std::make_shared<ExecBody>(ExecBody{graph.nodes, graph.objects});
  *result = {kUpdateSuccess, nullptr, nullptr};
  return kSuccess;
}

Status Launch(ExecState& exec, const StreamRef& stream) {
  const std::shared_ptr<const ExecBody> body = exec.body;
  Operation begin;
  begin.name = "the begin of a graph";
  begin.after.push_back(exec.last_end);
  Status status = stream->context->sticky_error;
  if (status == kSuccess) status = PrepareMemory(exec);
  if (status != kSuccess) return status;
  FreeLeftMemory(exec, &begin);
  NoteMemory(*body);
  Place begun;
  status = Submit(stream, std::move(begin), &begun);
  if (status != kSuccess) return status;
  Operation end;
  end.name = "the end of a graph";
  end.after = SubmitNodes(exec, *body, {begun});
  for (const NodeRef& node : body->nodes) {
    if (node->memory != nullptr) node->memory->launches += 1;
  }
  end.run = [body] { EndLaunch(*body); };
  return Submit(stream, std::move(end), &exec.last_end);
}

void EndQueues(ExecState& exec) {
  for (const auto& [context, queues] : exec.queues) {
    for (const StreamRef& queue : queues) EndStream(queue);
  }
  exec.queues.clear();
}

}  // namespace cistern::strict
