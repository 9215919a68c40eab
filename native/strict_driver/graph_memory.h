// Memory that graphs allocate. Its address is fixed when the node is captured. There is memory behind it from the
// first launch on, until the device's graph memory is trimmed while no launch uses it, or the node is gone.
// The pool of the call only says on which device, and who has access.
#ifndef CISTERN_STRICT_DRIVER_GRAPH_MEMORY_H_
#define CISTERN_STRICT_DRIVER_GRAPH_MEMORY_H_

#include "strict_driver/graph.h"
#include "strict_driver/state.h"

namespace cistern::strict {

// What an allocation node and the nodes that free its memory share.
struct GraphMemory {
  AllocationRef allocation;
  const GraphState* owner = nullptr;  // only to compare
  bool is_freed_by_owner = false;
  bool is_freed_elsewhere = false;  // another graph has a node that frees it
  bool is_mapped = false;           // takes memory
  std::size_t launches = 0;         // that have not ended
  ~GraphMemory();
};

Status CaptureAllocation(const StreamRef& stream, const PoolState& pool, std::size_t bytes, DevicePointer* pointer);
// Only memory of graphs can be freed in a capture, and only once by each.
Status CaptureFree(const StreamRef& stream, DevicePointer pointer);

// Memory that a launch has left allocated is freed, on a stream or, without one, at once.
Status FreeGraphMemory(const AllocationRef& allocation, const StreamRef& stream);

// Sees to it that there is memory for a launch.
Status MapMemory(const ExecBody& body);
// Before a launch, with the nodes in the order of the graph: refuses it, or sees to it that there is memory.
Status PrepareMemory(const ExecState& exec);
// With the operation that begins a launch: memory that is still allocated from earlier ones is freed.
void FreeLeftMemory(const ExecState& exec, Operation* begin);
// After a launch: what is allocated from now on, and what is not any more.
void NoteMemory(const ExecBody& body);

// Gives back what no launch or allocation uses.
void TrimGraphMemory(DeviceOrdinal device);

}  // namespace cistern::strict

#endif  // CISTERN_STRICT_DRIVER_GRAPH_MEMORY_H_
