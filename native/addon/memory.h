// Plain memory: who owns an allocation, and how it is freed after its environment has ended.
#ifndef CISTERN_ADDON_MEMORY_H_
#define CISTERN_ADDON_MEMORY_H_

#include <cstdint>

#include "addon/allocation_registry.h"
#include "addon/environment.h"
#include "addon/orphans.h"

namespace cistern {

// NativeMemoryKind of src/driver/native.ts; and, which only the addon tells apart from pinned host memory of the driver, such memory that
// is mapped here, and registered with the driver.
enum class MemoryKind : std::uint64_t { kDevice = 0, kManaged = 1, kPinnedHost = 2, kHost = 3, kRegisteredHost = 4 };
inline constexpr std::uint64_t kMemoryKindCount = 4;

// The owner of an allocation: a kind and a device, or the handle of a pool, which has the top bit clear.
inline constexpr std::uint64_t kPlainOwnerFlag = std::uint64_t{1} << 63;
inline std::uint64_t PlainOwner(MemoryKind kind, int device) {
  return kPlainOwnerFlag | static_cast<std::uint64_t>(kind) << 32 | static_cast<std::uint32_t>(device);
}

inline MemoryKind KindOf(const Allocation& allocation) { return static_cast<MemoryKind>((allocation.owner & ~kPlainOwnerFlag) >> 32); }

// Of plain memory: an allocation that has been made, and one that is about to be forgotten.
void Remember(Environment& environment, const Allocation& allocation);
void Forget(Environment& environment, Allocation* allocation);
// The live allocation that contains all of a range, if it begins there or is large and plain; or null.
const Allocation* FindAround(Environment& environment, std::uint64_t address, std::uint64_t bytes);

// Finds a live allocation that `owner` may free, or returns a status with the reason.
inline Status FindAllocation(Environment& environment, std::uint64_t address, std::uint64_t bytes, std::uint64_t owner,
                             Allocation** allocation) {
  *allocation = environment.allocations.Find(address);
  if (*allocation == nullptr) return environment.allocations.WasErased(address) ? kDoubleFree : kForeignPointer;
  if ((*allocation)->owner != owner) return kForeignPointer;
  if ((*allocation)->bytes != bytes) {
    environment.Out(1, static_cast<double>((*allocation)->bytes));
    return kWrongSize;
  }
  return kSuccess;
}

// Allocates memory of a kind other than host. May stop with kHostFunctionReady.
Status AllocatePlain(Environment& environment, MemoryKind kind, int device, std::uint64_t bytes, std::uint64_t* address);
// Gives memory that this has registered back to the system, if the driver lets go of it. In a context of its device.
Status FreeRegistered(Environment& environment, bool is_own, std::uint64_t address, std::uint64_t bytes);

// Before memory is freed or unmapped in the order of a stream: waits for what is queued there. A
// driver need not wait itself: cuMemFree "may perform implicit synchronization". Waits for all
// devices if the stream has ended, as a host function may have ended it meanwhile. While a stream is
// stalled, the wait might last forever. In a RelaxedModeScope, which the free then shares.
Status WaitBeforeFree(Environment& environment, double stream_handle);

Orphan OrphanOfPlain(MemoryKind kind, int device, std::uint64_t address, std::uint64_t bytes);
Orphan OrphanOf(Environment& environment, const Allocation& allocation);

}  // namespace cistern

#endif  // CISTERN_ADDON_MEMORY_H_
