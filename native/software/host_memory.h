// Memory outside the devices: pinned host memory, and managed memory with its advice.
//
// Both are mapped from the kernel and committed where they are written. Neither counts against a
// device's total: managed memory may exceed it, as on a GPU that pages. The machine's memory limits
// the sum of both.
//
// Advice is kept per page of 4 KiB as runs of equal pages:
//
//     managed range   [ page 0 ........ 9 | 10 ....... 63 | 64 ... ]
//     runs (start)      0: {device 0}       10: {host}      64: {}
//
// Invariants: the first run starts at page 0; neighbouring runs may be equal (a query folds them), none is empty.
// Cost: O(log r) to find a range among r, O(runs touched) to advise or query.
#ifndef CISTERN_SOFTWARE_HOST_MEMORY_H_
#define CISTERN_SOFTWARE_HOST_MEMORY_H_

#include <cstddef>
#include <cstdint>

#include "cuda/driver_table.h"

namespace cistern::software {

enum class HostMemoryKind { kPinned, kManaged };

Status AllocateHostMemory(HostMemoryKind kind, int device, std::uint64_t bytes, std::uint64_t* address);
// Synchronizes every device first: work in a queue may refer to the memory.
Status FreeHostMemory(HostMemoryKind kind, std::uint64_t address);

struct HostRangeInfo {
  HostMemoryKind kind;
  int device;                // current at the allocation
  std::uint64_t start;       // of its range
  std::uint64_t bytes_left;  // from the address to the end of its range
};
// False if the address is in neither.
bool FindHostMemory(std::uint64_t address, HostRangeInfo* info);

Status AdviseManaged(std::uint64_t address, std::uint64_t bytes, int advice, MemLocation location);
Status NotePrefetch(std::uint64_t address, std::uint64_t bytes, MemLocation location);
Status QueryManaged(void* data, std::size_t data_size, int attribute, std::uint64_t address, std::uint64_t bytes);

}  // namespace cistern::software

#endif  // CISTERN_SOFTWARE_HOST_MEMORY_H_
