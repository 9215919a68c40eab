// Graphs, executable graphs and their launches.
//
// A node is described by a function that makes its operation. It is called when the node is captured, to
// check the arguments, and again at each launch, which finds what is at its addresses then.
//
// A launch is a begin and an end on its stream, and the nodes in between on queues of the executable graph,
// in an arbitrary order that agrees with the edges:
//
//     stream:  … ─ begin ──────────────────────── end ─ …
//     queues:         ├─ node ───── node ────────┤
//                     └─ node ─ node ───── node ─┘
#ifndef CISTERN_STRICT_DRIVER_GRAPH_H_
#define CISTERN_STRICT_DRIVER_GRAPH_H_

#include <random>

#include "strict_driver/state.h"
#include "strict_driver/user_objects.h"

namespace cistern::strict {

// Fills in the operation; fails if an argument, or the memory there, is not valid. With the lock.
using Make = std::function<Status(Operation* operation)>;

struct ExecBody;
struct NodeState {
  int type = 0;
  ContextState* context = nullptr;
  std::vector<std::size_t> after;  // indexes of nodes before this one
  Make make;
  std::vector<AllocationRef> uses;  // when it was captured
  GraphNode handle = nullptr;
  std::size_t index = 0;                  // in its graph
  const GraphState* graph = nullptr;      // only to compare
  std::shared_ptr<GraphMemory> memory;    // that it allocates or frees
  std::shared_ptr<const ExecBody> child;  // the graph that it is
};
using NodeRef = std::shared_ptr<const NodeState>;

struct GraphState {
  Graph handle = nullptr;
  std::vector<NodeRef> nodes;  // each after those that it depends on
  UserObjects objects;
  bool is_being_captured = false;
  std::weak_ptr<ExecState> exec;  // the last one that was made of it
};

// What an executable graph, or a graph in another one, runs; a launch keeps it until its end.
struct ExecBody {
  std::vector<NodeRef> nodes;
  UserObjects objects;
};

struct ExecState {
  std::shared_ptr<const ExecBody> body;
  std::map<ContextState*, std::vector<StreamRef>> queues;
  Place last_end;
  bool frees_on_launch = false;
  std::minstd_rand random;
};

std::shared_ptr<GraphState> NewGraph();
// The handles of the graph and its nodes end. What executable graphs share with it stays.
void DropGraph(GraphState& graph);
std::size_t AddNode(GraphState& graph, NodeState node);
// Adds a copy of another graph as a node. Null if that allocates or frees memory.
GraphNode AddChildGraph(GraphState& graph, std::vector<std::size_t> after, const GraphState& child);

// Null if the graph has memory nodes, and an executable graph already.
std::shared_ptr<ExecState> Instantiate(GraphState& graph, bool frees_on_launch);
// Later launches run the nodes of another graph, if its nodes and edges are the same.
Status Update(ExecState& exec, const GraphState& graph, GraphUpdateResult* result);
Status Launch(ExecState& exec, const StreamRef& stream);
// The queues end once they have run what is launched.
void EndQueues(ExecState& exec);

}  // namespace cistern::strict

#endif  // CISTERN_STRICT_DRIVER_GRAPH_H_
