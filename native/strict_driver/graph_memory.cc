#include "strict_driver/graph_memory.h"

#include <utility>

#include "strict_driver/allocation.h"
#include "strict_driver/capture.h"
#include "strict_driver/pool.h"
#include "strict_driver/report.h"
#include "strict_driver/stream.h"

namespace cistern::strict {
namespace {

using MemoryRef = std::shared_ptr<GraphMemory>;

// Allocated, as far as the launches and frees of the host so far say.
std::set<MemoryRef>& left = *new std::set<MemoryRef>;
std::set<GraphMemory*>& all = *new std::set<GraphMemory*>;

bool IsLeft(const MemoryRef& memory) { return left.count(memory) != 0; }

DeviceMemory& DeviceMemoryOf(const GraphMemory& memory) { return driver.MemoryOf(memory.allocation->device); }

bool Map(GraphMemory& memory) {
  DeviceMemory& device = DeviceMemoryOf(memory);
  while (!device.TryCharge(memory.allocation->reserved)) {
    if (ReclaimFromPools(memory.allocation->device) == 0) return false;
  }
  memory.is_mapped = true;
  return true;
}

void Unmap(GraphMemory& memory) {
  if (std::exchange(memory.is_mapped, false)) DeviceMemoryOf(memory).Uncharge(memory.allocation->reserved);
}

void MarkFreed(const Allocation& allocation) {
  if (!allocation.is_allocated) Report("ORDER", "memory %#lx of a graph is freed before its allocation has run", allocation.start);
  if (allocation.is_freed) Report("ORDER", "memory %#lx of a graph is freed twice", allocation.start);
}

std::function<void()> Free(const MemoryRef& memory) {
  return [memory] {
    MarkFreed(*memory->allocation);
    memory->allocation->is_freed = true;
  };
}

NodeState NodeOf(int type, const MemoryRef& memory, const char* name, std::function<void()> run) {
  NodeState node;
  node.type = type;
  node.memory = memory;
  node.make = [name, run = std::move(run)](Operation* operation) -> Status {
    operation->name = name;
    operation->run = run;
    return kSuccess;
  };
  return node;
}

}  // namespace

GraphMemory::~GraphMemory() {
  Unmap(*this);
  all.erase(this);
  driver.allocations.erase(allocation->start);
  allocation->is_freed = true;
  DeviceMemoryOf(*this).GiveAddresses(allocation->start, allocation->reserved);
}

Status CaptureAllocation(const StreamRef& stream, const PoolState& pool, std::size_t bytes, DevicePointer* pointer) {
  Status status = CheckWork(*stream);
  if (status != kSuccess) return status;
  if (!pool.IsOnDevice()) return CheckUncaptured(*stream);
  DeviceMemory& device = driver.MemoryOf(pool.device);
  const std::size_t reserved = RoundUp(bytes, kGranule);
  std::uintptr_t start;
  if (reserved > device.total() || !device.TakeAddresses(reserved, &start)) return kErrorOutOfMemory;
  const auto memory = std::make_shared<GraphMemory>();
  memory->allocation = Publish(start, bytes, reserved, Kind::kPool, pool.device);
  memory->allocation->graph = memory;
  memory->allocation->accessors = pool.accessors;
  memory->allocation->is_allocated = false;
  memory->owner = stream->capture->graph.get();
  all.insert(memory.get());
  AddCapturedNode(stream, NodeOf(kNodeAllocation, memory, "an allocation of a graph", [allocation = memory->allocation] {
                    allocation->is_freed = false;
                    allocation->is_allocated = true;
                    FillWithGarbage(HostView(*allocation, allocation->start), allocation->bytes);
                  }));
  *pointer = start;
  return kSuccess;
}

Status CaptureFree(const StreamRef& stream, DevicePointer pointer) {
  const Status status = CheckWork(*stream);
  if (status != kSuccess) return status;
  const AllocationRef allocation = FindAllocation(pointer);
  const MemoryRef memory = allocation == nullptr ? nullptr : allocation->graph.lock();
  if (memory == nullptr || allocation->start != pointer) return kErrorInvalidValue;
  GraphState& graph = *stream->capture->graph;
  const bool is_owner = memory->owner == &graph;
  if (memory->is_freed_by_owner || (is_owner && memory->is_freed_elsewhere)) return kErrorInvalidValue;
  for (const NodeRef& node : graph.nodes) {
    if (node->type == kNodeFree && node->memory == memory) return kErrorInvalidValue;
  }
  (is_owner ? memory->is_freed_by_owner : memory->is_freed_elsewhere) = true;
  AddCapturedNode(stream, NodeOf(kNodeFree, memory, "a free of a graph", Free(memory)));
  return kSuccess;
}

Status FreeGraphMemory(const AllocationRef& allocation, const StreamRef& stream) {
  const MemoryRef memory = allocation->graph.lock();
  if (!IsLeft(memory)) {
    Report("MISUSE", "%s of %#lx, memory of a graph that no launch has left allocated", thread.function, allocation->start);
    return kErrorInvalidValue;
  }
  if (stream == nullptr) {
    Free(memory)();
  } else {
    Operation operation;
    operation.name = "cuMemFreeAsync";
    operation.run = Free(memory);
    const Status status = Submit(stream, std::move(operation));
    if (status != kSuccess) return status;
  }
  left.erase(memory);
  return kSuccess;
}

Status MapMemory(const ExecBody& body) {
  for (const NodeRef& node : body.nodes) {
    if (node->type == kNodeAllocation && !node->memory->is_mapped && !Map(*node->memory)) return kErrorOutOfMemory;
  }
  return kSuccess;
}

Status PrepareMemory(const ExecState& exec) {
  for (const NodeRef& node : exec.body->nodes) {
    if (node->type == kNodeAllocation && IsLeft(node->memory) && !exec.frees_on_launch) return kErrorInvalidValue;
    const bool is_foreign = node->type == kNodeFree && !node->memory->is_freed_by_owner;
    if (is_foreign && !IsLeft(node->memory)) {
      Report("MISUSE", "%s frees %#lx, memory of another graph that no launch has left allocated", thread.function,
             node->memory->allocation->start);
      return kErrorInvalidValue;
    }
  }
  return MapMemory(*exec.body);
}

void FreeLeftMemory(const ExecState& exec, Operation* begin) {
  std::vector<MemoryRef> freed;
  for (const NodeRef& node : exec.body->nodes) {
    if (node->type == kNodeAllocation && IsLeft(node->memory)) freed.push_back(node->memory);
  }
  if (freed.empty()) return;
  begin->run = [freed = std::move(freed)] {
    for (const MemoryRef& memory : freed) Free(memory)();
  };
}

void NoteMemory(const ExecBody& body) {
  for (const NodeRef& node : body.nodes) {
    if (node->type == kNodeAllocation && !node->memory->is_freed_by_owner) left.insert(node->memory);
    if (node->type == kNodeFree && !node->memory->is_freed_by_owner) left.erase(node->memory);
  }
}

void TrimGraphMemory(DeviceOrdinal device) {
  for (GraphMemory* memory : all) {
    const Allocation& allocation = *memory->allocation;
    const bool is_used = memory->launches > 0 || (allocation.is_allocated && !allocation.is_freed);
    if (allocation.device == device && !is_used) Unmap(*memory);
  }
}

}  // namespace cistern::strict
