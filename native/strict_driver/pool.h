// The driver's own pools (cuMemPool…): chunks of 32 MiB, whose blocks become free again only once a
// synchronization has seen their frees. Chunks of managed and of pinned memory belong to no device: any device's
// synchronization sees their frees.
#ifndef CISTERN_STRICT_DRIVER_POOL_H_
#define CISTERN_STRICT_DRIVER_POOL_H_

#include "strict_driver/state.h"

namespace cistern::strict {

constexpr std::size_t kManagedPage = 4096;

Status AllocateFromPool(const PoolRef& pool, std::size_t bytes, const StreamRef& stream, DevicePointer* pointer);

// Without a stream the memory is free at once.
Status FreeToPool(const AllocationRef& allocation, const StreamRef& stream);

// The effect of a synchronization: completed frees are seen, and memory above the release
// thresholds goes back to the device.
void ObserveFrees(DeviceOrdinal device);

// Gives back chunks without used blocks, until no more than `keep` bytes are reserved. Returns the
// number of bytes given back.
std::size_t ReleaseChunks(PoolState& pool, std::size_t keep);

// For an allocation that finds no memory: takes back everything that the device's pools hold
// unused.
std::size_t ReclaimFromPools(DeviceOrdinal device);

void DestroyPool(const PoolRef& pool);

}  // namespace cistern::strict

#endif  // CISTERN_STRICT_DRIVER_POOL_H_
