// Graphs: what a capture made, and what a launch runs.
//
// Nodes are in the order of their capture, so each comes after those that it depends on. A launch puts
// all nodes into the stream's queue in an order that the edges allow: in that of the capture, or, in
// strict mode, taking each time the last captured node that is ready. Work that lacks an edge then runs
// in the wrong order every time.
//
// Memory that a graph allocates has its address, and counts, from the capture on; it is there until
// neither a graph, an executable graph nor a launch refers to it, and it has been freed. (A GPU has its
// pages only while it is allocated in stream order.)
//
// One lock guards all graphs and captures. Locks: this one, then that of a stream or a pool.
#ifndef CISTERN_SOFTWARE_GRAPH_H_
#define CISTERN_SOFTWARE_GRAPH_H_

#include <cstdint>
#include <memory>
#include <mutex>
#include <variant>
#include <vector>

#include "cuda/driver_table.h"
#include "software/handle_table.h"
#include "software/stream.h"
#include "software/user_objects.h"

namespace cistern::software {

std::mutex& GraphMutex();

// Memory that a graph allocates. For everything here, GraphMutex must be held.
struct GraphMemory {
  GraphMemory(Device* device_of_memory, std::uint64_t start) : device(device_of_memory), address(start) {}
  ~GraphMemory();
  GraphMemory(const GraphMemory&) = delete;
  GraphMemory& operator=(const GraphMemory&) = delete;

  Device* const device;
  const std::uint64_t address;
};

using NodeIndex = std::uint32_t;
struct ChildGraph;
struct Node {
  int type;  // CUgraphNodeType
  std::vector<NodeIndex> dependencies;
  // The last but one: an address that is allocated or freed.
  std::variant<CopyWork, FillWork, HostFunctionWork, std::uint64_t, std::shared_ptr<const ChildGraph>> what;
};

struct GraphBody {
  std::vector<Node> nodes;
  std::vector<std::shared_ptr<GraphMemory>> memory;

  // Whether one of `later`, or a node that it depends on, is the node.
  bool IsOrderedBefore(NodeIndex node, const std::vector<NodeIndex>& later) const;
};

// A graph that is a node of another one, as it was when it was added. It allocates and frees nothing.
struct ChildGraph {
  std::shared_ptr<const GraphBody> body;
  OwnedObjects objects;
};

struct alignas(64) GraphState : HandleSlot {
  std::shared_ptr<GraphBody> body;
  OwnedObjects objects;
  bool is_captured = false;  // a capture is still adding to it
};
using GraphTable = HandleTable<GraphState, HandleKind::kGraph>;
inline GraphTable graph_table;

struct alignas(64) ExecState : HandleSlot {
  std::shared_ptr<const GraphBody> body;
  std::shared_ptr<const OwnedObjects> objects;  // those that the graph had then
  std::unique_ptr<Mark> last_launch;
  unsigned long long flags = 0;
};
using ExecTable = HandleTable<ExecState, HandleKind::kGraphExec>;
inline ExecTable exec_table;

// The rest is called with GraphMutex held.

GraphState* NewGraph();
// The graph's body, which the caller destroys without the lock.
std::shared_ptr<GraphBody> EndGraph(GraphState& graph);

GraphNode NodeHandle(const GraphState& graph, NodeIndex node);
// Null unless it is a node of a live graph.
const Node* FindNode(GraphNode handle);
// The nodes of these handles; kErrorInvalidValue unless they are different nodes of the graph.
Status FindNodes(const GraphState& graph, const GraphNode* handles, std::size_t count, std::vector<NodeIndex>* nodes);

// Adds a node to a graph that a capture is still adding to: a copy of another graph.
Status AddChildGraph(GraphState& graph, std::vector<NodeIndex> dependencies, const GraphState& child, GraphNode* node);

// An allocation that becomes a node.
Status AllocateGraphMemory(Device& device, std::uint64_t bytes, std::shared_ptr<GraphMemory>* memory);
// Whether an address is memory of a graph, whether it was launched or not.
bool IsGraphMemory(std::uint64_t address);

Status Instantiate(const GraphState& graph, unsigned long long flags, GraphExec* exec);
Status Launch(ExecState& exec, StreamState& stream);
Status Update(ExecState& exec, const GraphState& graph, GraphUpdateResult* result);

// Frees, outside of graphs, memory that a launch has allocated; without the lock. kErrorNotFound if the
// address is not memory of a graph. With *gives_back nothing refers to the memory any more, and the
// caller gives its block back.
Status FreeGraphMemory(std::uint64_t address, bool* gives_back);

}  // namespace cistern::software

#endif  // CISTERN_SOFTWARE_GRAPH_H_
