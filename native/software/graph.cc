#include "software/graph.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <utility>

#include "software/device.h"
#include "software/memory_pool.h"
#include "software/resolve.h"
#include "software/settings.h"
#include "software/transfer.h"

namespace cistern::software {
namespace {

struct MemoryRecord {
  bool is_allocated;  // by a launch
  bool is_referred;   // by a graph, an executable graph, or a launch that has not ended
};

// By address. Guarded by GraphMutex.
std::map<std::uint64_t, MemoryRecord>& GraphMemoryRecords() {
  static auto& records = *new std::map<std::uint64_t, MemoryRecord>;
  return records;
}
std::atomic<int> graph_memory_count{0};

constexpr int kNodeBits = 32;

// Null unless the node is a graph.
const ChildGraph* ChildOf(const Node& node) {
  const auto* child = std::get_if<std::shared_ptr<const ChildGraph>>(&node.what);
  return child != nullptr ? child->get() : nullptr;
}

bool IsMemoryNode(const Node& node) { return node.type == kNodeAllocation || node.type == kNodeFree; }

bool IsStillValid(std::uint64_t address, std::uint64_t bytes, bool will_write) {
  const AddressKind kind = Classify(address, bytes, will_write).kind;
  return kind != AddressKind::kInvalid && kind != AddressKind::kPageable;
}

std::uint64_t AddressOf(const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer); }

// A GPU would fault, or write to what has the memory now.
bool UsesValidMemory(const Node& node) {
  if (const ChildGraph* child = ChildOf(node)) {
    return std::all_of(child->body->nodes.begin(), child->body->nodes.end(), UsesValidMemory);
  }
  if (const auto* copy = std::get_if<CopyWork>(&node.what)) {
    return IsStillValid(AddressOf(copy->destination), copy->bytes, true) && IsStillValid(AddressOf(copy->source), copy->bytes, false);
  }
  if (const auto* fill = std::get_if<FillWork>(&node.what)) {
    return IsStillValid(AddressOf(fill->destination), fill->count * (fill->is_bytes ? 1 : sizeof fill->value), true);
  }
  return true;
}

// The allocations as they are after a launch; kErrorInvalidValue if one would be made or freed twice.
Status PlanAllocations(const GraphBody& body, bool frees_before, std::map<std::uint64_t, bool>* after) {
  for (const Node& node : body.nodes) {
    if (!IsMemoryNode(node)) continue;
    const std::uint64_t address = std::get<std::uint64_t>(node.what);
    const auto record = GraphMemoryRecords().find(address);
    if (record == GraphMemoryRecords().end()) return kErrorInvalidValue;
    const auto planned = after->find(address);
    const bool is_allocated = planned != after->end() ? planned->second : record->second.is_allocated;
    const bool allocates = node.type == kNodeAllocation;
    if (is_allocated == allocates && !(allocates && frees_before)) return kErrorInvalidValue;
    (*after)[address] = allocates;
  }
  return kSuccess;
}

std::vector<NodeIndex> OrderOfLaunch(const GraphBody& body) {
  const auto count = static_cast<NodeIndex>(body.nodes.size());
  std::vector<NodeIndex> order;
  if (!IsStrict()) {
    for (NodeIndex node = 0; node < count; ++node) order.push_back(node);
    return order;
  }
  std::vector<std::size_t> missing(count);
  std::vector<std::vector<NodeIndex>> dependents(count);
  std::vector<NodeIndex> ready;
  for (NodeIndex node = 0; node < count; ++node) {
    missing[node] = body.nodes[node].dependencies.size();
    for (const NodeIndex dependency : body.nodes[node].dependencies) dependents[dependency].push_back(node);
    if (missing[node] == 0) ready.push_back(node);
  }
  while (!ready.empty()) {
    const auto last = std::max_element(ready.begin(), ready.end());
    const NodeIndex node = *last;
    ready.erase(last);
    order.push_back(node);
    for (const NodeIndex dependent : dependents[node]) {
      if (--missing[dependent] == 0) ready.push_back(dependent);
    }
  }
  return order;
}

bool IsSameKindOfCopy(const CopyWork& one, const CopyWork& other) {
  const auto kind = [](const void* address) { return Classify(AddressOf(address), 1, false).kind; };
  return kind(one.destination) == kind(other.destination) && kind(one.source) == kind(other.source);
}

int CompareGraphs(const GraphBody& old, const GraphBody& replacement, NodeIndex* changed);

// Why an executable graph cannot take the nodes of another graph.
int CompareNodes(const Node& old, const Node& replacement) {
  if (old.type != replacement.type) return kUpdateNodeTypeChanged;
  if (old.dependencies != replacement.dependencies) return kUpdateTopologyChanged;
  if (IsMemoryNode(old)) return kUpdateNotSupported;
  if (const ChildGraph* child = ChildOf(old)) return CompareGraphs(*child->body, *ChildOf(replacement)->body, nullptr);
  const auto* copy = std::get_if<CopyWork>(&old.what);
  return copy == nullptr || IsSameKindOfCopy(*copy, std::get<CopyWork>(replacement.what)) ? kUpdateSuccess : kUpdateParametersChanged;
}

// *changed is the node that is the reason, if one is.
int CompareGraphs(const GraphBody& old, const GraphBody& replacement, NodeIndex* changed) {
  if (old.nodes.size() != replacement.nodes.size()) return kUpdateTopologyChanged;
  for (NodeIndex node = 0; node < old.nodes.size(); ++node) {
    const int result = CompareNodes(old.nodes[node], replacement.nodes[node]);
    if (result == kUpdateSuccess) continue;
    if (changed != nullptr) *changed = node;
    return result;
  }
  return kUpdateSuccess;
}

// All work of a graph, in the order of a launch. A graph in it is one node, so its work stays together.
void AddWorks(const GraphBody& body, std::vector<Work>& works) {
  for (const NodeIndex node : OrderOfLaunch(body)) {
    const auto& what = body.nodes[node].what;
    if (const auto* copy = std::get_if<CopyWork>(&what)) works.emplace_back(*copy);
    if (const auto* fill = std::get_if<FillWork>(&what)) works.emplace_back(*fill);
    if (const auto* host = std::get_if<HostFunctionWork>(&what)) works.emplace_back(*host);
    if (const ChildGraph* child = ChildOf(body.nodes[node])) AddWorks(*child->body, works);
  }
}

void FreeBlock(Device& device, std::uint64_t address) {
  std::uint32_t block;
  if (device.memory.BeginFree(address, &block) == kSuccess) device.memory.FinishFree(block);
}

}  // namespace

std::mutex& GraphMutex() {
  static std::mutex& mutex = *new std::mutex;
  return mutex;
}

GraphMemory::~GraphMemory() {
  const std::lock_guard<std::mutex> lock(GraphMutex());
  const auto record = GraphMemoryRecords().find(address);
  record->second.is_referred = false;
  if (record->second.is_allocated) return;
  GraphMemoryRecords().erase(record);
  graph_memory_count -= 1;
  FreeBlock(*device, address);
}

bool GraphBody::IsOrderedBefore(NodeIndex node, const std::vector<NodeIndex>& later) const {
  // Whatever a node depends on comes before it.
  std::vector<bool> is_seen(nodes.size());
  std::vector<NodeIndex> open = later;
  while (!open.empty()) {
    const NodeIndex next = open.back();
    open.pop_back();
    if (next == node) return true;
    if (next < node || is_seen[next]) continue;
    is_seen[next] = true;
    open.insert(open.end(), nodes[next].dependencies.begin(), nodes[next].dependencies.end());
  }
  return false;
}

GraphState* NewGraph() {
  GraphState* graph = graph_table.Take();
  if (graph == nullptr) return nullptr;
  graph->body = std::make_shared<GraphBody>();
  graph->is_captured = false;
  graph_table.Publish(*graph);
  return graph;
}

std::shared_ptr<GraphBody> EndGraph(GraphState& graph) {
  GraphTable::Close(graph, GraphTable::HandleOf(graph));
  std::shared_ptr<GraphBody> body = std::move(graph.body);
  graph.objects.clear();
  graph_table.Recycle(graph);
  return body;
}

GraphNode NodeHandle(const GraphState& graph, NodeIndex node) {
  return reinterpret_cast<GraphNode>(static_cast<std::uintptr_t>(std::uint64_t{graph.index} << kNodeBits | (node + 1)));
}

const Node* FindNode(GraphNode handle) {
  const std::uint64_t bits = HandleBits(handle);
  const std::uint64_t index = bits >> kNodeBits;
  const std::uint64_t node = bits & 0xFFFFFFFF;
  GraphState* graph = graph_table.FindAt(static_cast<std::uint32_t>(index));
  if (graph == nullptr || node == 0 || node > graph->body->nodes.size()) return nullptr;
  return &graph->body->nodes[node - 1];
}

Status FindNodes(const GraphState& graph, const GraphNode* handles, std::size_t count, std::vector<NodeIndex>* nodes) {
  if (handles == nullptr && count > 0) return kErrorInvalidValue;
  nodes->clear();
  for (std::size_t index = 0; index < count; ++index) {
    const std::uint64_t number = HandleBits(handles[index]) - HandleBits(NodeHandle(graph, 0));
    const auto node = static_cast<NodeIndex>(number);
    if (number >= graph.body->nodes.size() || std::find(nodes->begin(), nodes->end(), node) != nodes->end()) return kErrorInvalidValue;
    nodes->push_back(node);
  }
  return kSuccess;
}

Status AddChildGraph(GraphState& graph, std::vector<NodeIndex> dependencies, const GraphState& child, GraphNode* node) {
  if (std::any_of(child.body->nodes.begin(), child.body->nodes.end(), IsMemoryNode)) return kErrorInvalidValue;
  auto copy = std::make_shared<const ChildGraph>(ChildGraph{child.body, child.objects});
  std::vector<Node>& nodes = graph.body->nodes;
  *node = NodeHandle(graph, static_cast<NodeIndex>(nodes.size()));
  nodes.push_back({kNodeGraph, std::move(dependencies), std::move(copy)});
  return kSuccess;
}

Status AllocateGraphMemory(Device& device, std::uint64_t bytes, std::shared_ptr<GraphMemory>* memory) {
  std::uint64_t address;
  Status status = device.memory.Allocate(bytes, &address);
  if (status == kErrorOutOfMemory && ReclaimPools(device, Reclaim::kAll)) status = device.memory.Allocate(bytes, &address);
  if (status != kSuccess) return status;
  GraphMemoryRecords()[address] = {false, true};
  graph_memory_count += 1;
  *memory = std::make_shared<GraphMemory>(&device, address);
  return kSuccess;
}

bool IsGraphMemory(std::uint64_t address) { return GraphMemoryRecords().count(address) != 0; }

Status FreeGraphMemory(std::uint64_t address, bool* gives_back) {
  if (graph_memory_count.load(std::memory_order_relaxed) == 0) return kErrorNotFound;
  const std::lock_guard<std::mutex> lock(GraphMutex());
  const auto record = GraphMemoryRecords().find(address);
  if (record == GraphMemoryRecords().end()) return kErrorNotFound;
  if (!record->second.is_allocated) return kErrorInvalidValue;
  record->second.is_allocated = false;
  *gives_back = !record->second.is_referred;
  if (!*gives_back) return kSuccess;
  GraphMemoryRecords().erase(record);
  graph_memory_count -= 1;
  return kSuccess;
}

Status Instantiate(const GraphState& graph, unsigned long long flags, GraphExec* exec) {
  // Memory has one address, so only one executable graph can allocate it: the bodies are shared by
  // nobody but the graph, its executable graphs and their launches.
  const bool has_memory = std::any_of(graph.body->nodes.begin(), graph.body->nodes.end(), IsMemoryNode);
  if (has_memory && graph.body.use_count() > 1) return kErrorInvalidValue;
  ExecState* state = exec_table.Take();
  if (state == nullptr) return kErrorOutOfMemory;
  // A graph does not change any more once it can be instantiated.
  state->body = graph.body;
  state->objects = std::make_shared<OwnedObjects>(graph.objects);
  state->last_launch = std::make_unique<Mark>(0);
  state->flags = flags;
  exec_table.Publish(*state);
  *exec = HandleOf<GraphExec>(*state);
  return kSuccess;
}

Status Launch(ExecState& exec, StreamState& stream) {
  const GraphBody& body = *exec.body;
  std::map<std::uint64_t, bool> after;
  Status status = PlanAllocations(body, (exec.flags & kInstantiateAutoFree) != 0, &after);
  if (status != kSuccess) return status;
  if (!std::all_of(body.nodes.begin(), body.nodes.end(), UsesValidMemory)) return kErrorIllegalAddress;
  std::vector<Work> works;
  AddWorks(body, works);
  works.emplace_back(KeepWork{exec.body});
  works.emplace_back(KeepWork{exec.objects});
  // "Only one instance of hGraphExec may be executing at a time."
  if (*exec.last_launch != 0) status = SubmitWait(stream, *exec.last_launch);
  if (status == kSuccess) status = SubmitAll(stream, std::move(works), exec.last_launch.get());
  if (status != kSuccess) return status;
  for (const auto& [address, is_allocated] : after) GraphMemoryRecords()[address].is_allocated = is_allocated;
  return kSuccess;
}

Status Update(ExecState& exec, const GraphState& graph, GraphUpdateResult* result) {
  const NodeIndex none = static_cast<NodeIndex>(graph.body->nodes.size());
  NodeIndex node = none;
  *result = {CompareGraphs(*exec.body, *graph.body, &node), nullptr, nullptr};
  if (node != none) result->node = NodeHandle(graph, node);
  if (result->result != kUpdateSuccess) return kErrorGraphExecUpdateFailure;
  exec.body = graph.body;
  exec.objects = std::make_shared<OwnedObjects>(graph.objects);
  return kSuccess;
}

}  // namespace cistern::software
