// Memory outside the devices: pinned host memory, and managed memory, whose pages are at a device
// only by account (managed_memory.h).
//
// Both are mapped from the kernel and committed where they are written. The machine's memory limits
// the sum of both; managed memory may exceed that of the devices, as on a GPU that pages.
// Cost: O(log r) to find a range among r.
#ifndef CISTERN_SOFTWARE_HOST_MEMORY_H_
#define CISTERN_SOFTWARE_HOST_MEMORY_H_

#include <cstdint>

#include "cuda/driver_table.h"

namespace cistern::software {

enum class HostMemoryKind { kPinned, kManaged, kRegistered };  // the last is the program's own

Status AllocateHostMemory(HostMemoryKind kind, int device, std::uint64_t bytes, std::uint64_t* address);
// Synchronizes every device first: work in a queue may refer to the memory.
Status FreeHostMemory(HostMemoryKind kind, std::uint64_t address);

// Counts as pinned from now on, until it is freed as kRegistered; the program maps and unmaps it.
Status RegisterHostMemory(int device, std::uint64_t address, std::uint64_t bytes);

// Managed memory that has its addresses elsewhere (memory_pool.h) counts against the machine's
// memory too. False if there is not as much left.
bool ChargeHostMemory(std::uint64_t bytes);
void RefundHostMemory(std::uint64_t bytes);

struct HostRangeInfo {
  HostMemoryKind kind;
  int device;                // current at the allocation
  std::uint64_t start;       // of its range
  std::uint64_t bytes_left;  // from the address to the end of its range
};
// False if the address is in neither.
bool FindHostMemory(std::uint64_t address, HostRangeInfo* info);

}  // namespace cistern::software

#endif  // CISTERN_SOFTWARE_HOST_MEMORY_H_
