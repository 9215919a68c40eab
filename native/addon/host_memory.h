// Memory of kind 'host': the operating system's, not the driver's.
#ifndef CISTERN_ADDON_HOST_MEMORY_H_
#define CISTERN_ADDON_HOST_MEMORY_H_

#include <cstdint>

namespace cistern {

// Null if the host has no memory left. The alignment is a power of two.
void* AllocateHostMemory(std::uint64_t bytes, std::uint64_t alignment);
// The pointer must come from AllocateHostMemory, in any environment of the process.
void FreeHostMemory(void* pointer);
// Memory of another owner that may be used like that of AllocateHostMemory, until it is taken back.
// The same range can be lent several times. Throws std::bad_alloc.
void LendHostMemory(std::uint64_t address, std::uint64_t bytes);
void TakeBackHostMemory(std::uint64_t address, std::uint64_t bytes);
// True if the whole range lies inside one live allocation of AllocateHostMemory, or inside memory that
// was lent.
bool InHostMemory(std::uint64_t address, std::uint64_t bytes);

}  // namespace cistern

#endif  // CISTERN_ADDON_HOST_MEMORY_H_
