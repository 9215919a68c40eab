#include "addon/memory.h"

#include <iterator>
#include <new>

#include "addon/bindings.h"
#include "addon/captures.h"
#include "addon/host_functions.h"
#include "addon/host_memory.h"
#include "platform/memory.h"

namespace cistern {
namespace {

constexpr std::uint64_t kMinHostAlignment = 256;
constexpr std::uint64_t kMaxHostAlignment = std::uint64_t{1} << 30;

Status AllocateHost(Environment& environment, std::uint64_t bytes, std::uint64_t alignment, std::uint64_t* address) {
  if (alignment < kMinHostAlignment || alignment > kMaxHostAlignment || (alignment & (alignment - 1)) != 0) return kInvalidArgument;
  environment.CountHostAllocation();
  void* pointer = AllocateHostMemory(bytes, alignment);
  if (pointer == nullptr && environment.ReapOrphans()) pointer = AllocateHostMemory(bytes, alignment);
  if (pointer == nullptr) return kHostOutOfMemory;
  *address = reinterpret_cast<std::uintptr_t>(pointer);
  return kSuccess;
}

// In a RelaxedModeScope.
Status Free(Environment& environment, MemoryKind kind, int device, std::uint64_t address, std::uint64_t bytes) {
  void* pointer = reinterpret_cast<void*>(static_cast<std::uintptr_t>(address));
  if (kind == MemoryKind::kHost) {
    environment.CountHostFree();
    FreeHostMemory(pointer);
    return kSuccess;
  }
  const ContextScope context(environment, device);
  if (context.status() != kSuccess) return context.status();
  if (kind == MemoryKind::kPinnedHost) return environment.Counted<Call::kMemFreeHost>(pointer);
  if (kind == MemoryKind::kRegisteredHost) return FreeRegistered(environment, true, address, bytes);
  return environment.Counted<Call::kMemFree>(static_cast<DevicePointer>(address));
}

// In one registration: a copy must not cross from one to another.
Status AllocateRegistered(Environment& environment, int device, std::uint64_t bytes, unsigned threads, std::uint64_t* address) {
  // The node that is closest to the device; -1 if there are none to tell apart.
  int node = -1;
  if (environment.driver->DeviceGetAttribute(&node, kAttributeHostNumaId, environment.DriverDevice(device)) != kSuccess) node = -1;
  void* pointer = MapPopulatedPages(bytes, threads, node);
  if (pointer == nullptr) return kErrorOutOfMemory;
  const unsigned flags = kHostRegisterPortable | kHostRegisterDeviceMap;
  const Status status = environment.Counted<Call::kMemHostRegister>(pointer, static_cast<std::size_t>(bytes), flags);
  if (status != kSuccess) UnmapPages(pointer, bytes);
  // As with confidential computing, which no attribute tells of.
  if (status == kErrorNotPermitted || status == kErrorNotSupported) environment.refuses_registration = true;
  *address = reinterpret_cast<std::uintptr_t>(pointer);
  return status;
}

// In a context of the device.
Status AllocateOfDriver(Environment& environment, MemoryKind kind, std::uint64_t bytes, std::uint64_t* address) {
  if (kind == MemoryKind::kPinnedHost) {
    void* pointer = nullptr;
    const unsigned flags = kHostAllocPortable | kHostAllocDeviceMap;
    const Status status = environment.Counted<Call::kMemHostAlloc>(&pointer, static_cast<std::size_t>(bytes), flags);
    *address = reinterpret_cast<std::uintptr_t>(pointer);
    return status;
  }
  DevicePointer pointer = 0;
  const Status status = kind == MemoryKind::kManaged ? environment.Counted<Call::kMemAllocManaged>(
                                                           &pointer, static_cast<std::size_t>(bytes), unsigned{kMemAttachGlobal})
                                                     : environment.Counted<Call::kMemAlloc>(&pointer, static_cast<std::size_t>(bytes));
  *address = pointer;
  return status;
}

// Runs `allocate` in a context of the device, and again once something that ended environments have left is freed.
template <typename Allocating>
Status WithContext(Environment& environment, int device, Allocating allocate) {
  const Status ready = BeforeAllocating(environment);
  if (ready != kSuccess) return ready;
  const RelaxedContextScope context(environment, device);
  return context.status() == kSuccess ? environment.WithReclaim(allocate) : context.status();
}

// Pinned memory that up to `threads` threads clear before it is registered; or, if that fails and `or_of_driver`, memory that the driver
// allocates and clears itself. Sets the kind.
Status AllocatePinned(Environment& environment, int device, std::uint64_t bytes, unsigned threads, bool or_of_driver, MemoryKind* kind,
                      std::uint64_t* address) {
  return WithContext(environment, device, [&] {
    if (!or_of_driver || !environment.refuses_registration) {
      *kind = MemoryKind::kRegisteredHost;
      const Status status = AllocateRegistered(environment, device, bytes, threads, address);
      if (status == kSuccess || !or_of_driver) return status;
    }
    *kind = MemoryKind::kPinnedHost;
    return AllocateOfDriver(environment, *kind, bytes, address);
  });
}

// In a RelaxedModeScope.
Status FreeLive(Environment& environment, int device, Allocation* allocation) {
  const Status status = Free(environment, KindOf(*allocation), device, allocation->address, allocation->bytes);
  if (status == kSuccess) Forget(environment, allocation);
  return status;
}

// Below this, an allocation is found only by its first address: looking for others would cost more than it spares.
constexpr std::uint64_t kLarge = std::uint64_t{1} << 20;

}  // namespace

void Remember(Environment& environment, const Allocation& allocation) {
  environment.allocations.Insert(allocation);
  if (allocation.bytes < kLarge) return;
  try {
    environment.large_allocations[allocation.address] = allocation;
  } catch (const std::bad_alloc&) {
    // The driver can be asked instead.
  }
}

void Forget(Environment& environment, Allocation* allocation) {
  if (allocation->bytes >= kLarge) environment.large_allocations.erase(allocation->address);
  environment.allocations.Erase(allocation);
}

const Allocation* FindAround(Environment& environment, std::uint64_t address, std::uint64_t bytes) {
  const Allocation* found = environment.allocations.Find(address);
  if (found == nullptr) {
    const auto after = environment.large_allocations.upper_bound(address);
    if (after != environment.large_allocations.begin()) found = &std::prev(after)->second;
  }
  const bool contains = found != nullptr && address - found->address <= found->bytes && bytes <= found->bytes - (address - found->address);
  return contains ? found : nullptr;
}

Status WaitBeforeFree(Environment& environment, double stream_handle) {
  StreamEntry* stream;
  if (environment.streams.Find(stream_handle, &stream) != kSuccess) return SynchronizeDevices(environment);
  const ContextScope context(environment, stream->device);
  if (context.status() != kSuccess) return context.status();
  const Status captured = CheckNotCapturedHere(environment, *stream);
  if (captured != kSuccess) return captured;
  const Status status = environment.Counted<Call::kStreamQuery>(stream->stream);
  return status == kErrorNotReady ? environment.Counted<Call::kStreamSynchronize>(stream->stream) : status;
}

Status FreeRegistered(Environment& environment, bool is_own, std::uint64_t address, std::uint64_t bytes) {
  void* pointer = reinterpret_cast<void*>(static_cast<std::uintptr_t>(address));
  const Status status = environment.CountedIf<Call::kMemHostUnregister>(is_own, pointer);
  if (status == kSuccess) UnmapPages(pointer, bytes);
  return status;
}

Status AllocatePlain(Environment& environment, MemoryKind kind, int device, std::uint64_t bytes, std::uint64_t* address) {
  return WithContext(environment, device, [&] { return AllocateOfDriver(environment, kind, bytes, address); });
}

Orphan OrphanOfPlain(MemoryKind kind, int device, std::uint64_t address, std::uint64_t bytes) {
  switch (kind) {
    case MemoryKind::kPinnedHost:
      return {OrphanKind::kPinnedMemory, device, address, bytes};
    case MemoryKind::kRegisteredHost:
      return {OrphanKind::kRegisteredMemory, device, address, bytes};
    case MemoryKind::kHost:
      return {OrphanKind::kHostMemory, device, address, bytes};
    default:
      return {OrphanKind::kMemory, device, address, bytes};
  }
}

Orphan OrphanOf(Environment& environment, const Allocation& allocation) {
  if ((allocation.owner & kPlainOwnerFlag) == 0) {
    return {OrphanKind::kPoolMemory, environment.pools.Peek(allocation.owner)->device, allocation.address, allocation.bytes};
  }
  const int device = static_cast<int>(allocation.owner & 0xFFFFFFFF);
  return OrphanOfPlain(KindOf(allocation), device, allocation.address, allocation.bytes);
}

Status Allocate(Environment& environment) {
  std::uint64_t bytes, kind_number;
  if (!environment.In(0, &bytes) || bytes == 0) return kInvalidArgument;
  if (!environment.In(1, &kind_number) || kind_number >= kMemoryKindCount) return kInvalidArgument;
  if (environment.driver == nullptr) return kNoBackend;
  int device;
  if (!ToInt(environment.In(2), &device) || !environment.HasDevice(device)) return kInvalidArgument;
  MemoryKind kind = static_cast<MemoryKind>(kind_number);
  std::uint64_t alignment = 0;
  if (kind == MemoryKind::kHost && !environment.In(3, &alignment)) return kInvalidArgument;
  int threads = 0;
  if (kind == MemoryKind::kPinnedHost && (!ToInt(environment.In(4), &threads) || threads < 0)) return kInvalidArgument;
  if (!environment.allocations.Reserve()) return kHostOutOfMemory;

  std::uint64_t address = 0;
  Status status;
  if (kind == MemoryKind::kHost) {
    status = AllocateHost(environment, bytes, alignment, &address);
  } else if (threads > 0) {
    status = AllocatePinned(environment, device, bytes, static_cast<unsigned>(threads), environment.In(5) != 0, &kind, &address);
  } else {
    status = AllocatePlain(environment, kind, device, bytes, &address);
  }
  if (status != kSuccess) return status;
  if (address > kMaxSafeInteger) {
    const RelaxedModeScope relaxed(environment.driver);
    Free(environment, kind, device, address, bytes);
    return kAddressTooLarge;
  }
  Remember(environment, {address, bytes, PlainOwner(kind, device), 0});
  environment.Out(1, static_cast<double>(address));
  return kSuccess;
}

Status Deallocate(Environment& environment) {
  std::uint64_t address, bytes, kind_number;
  if (!environment.In(0, &address) || !environment.In(1, &bytes)) return kInvalidArgument;
  if (!environment.In(2, &kind_number) || kind_number >= kMemoryKindCount) return kInvalidArgument;
  if (environment.driver == nullptr) return kNoBackend;
  int device;
  if (!ToInt(environment.In(3), &device) || !environment.HasDevice(device)) return kInvalidArgument;
  const MemoryKind kind = static_cast<MemoryKind>(kind_number);
  const double stream = environment.In(4);
  Allocation* allocation;
  Status status = FindAllocation(environment, address, bytes, PlainOwner(kind, device), &allocation);
  if (status == kForeignPointer && kind == MemoryKind::kPinnedHost) {
    status = FindAllocation(environment, address, bytes, PlainOwner(MemoryKind::kRegisteredHost, device), &allocation);
  }
  if (status != kSuccess) return status;
  if (kind == MemoryKind::kHost) return FreeLive(environment, device, allocation);
  if (environment.running_host_functions > 0 || environment.unreleased_holds == 0) {
    status = BeforeWaitingForDevice(environment);
    if (status != kSuccess) return status;
  }
  environment.ReapOrphans();
  // The free may wait for the device, and meanwhile keep every other thread out of the driver,
  // including one that is to end a stall.
  const std::unique_lock<std::mutex> no_stalls = stalls.Exclude();
  if (no_stalls.owns_lock()) {
    const RelaxedModeScope relaxed(environment.driver);
    status = WaitBeforeFree(environment, stream);
    return status == kSuccess ? FreeLive(environment, device, allocation) : status;
  }
  LeaveOrphans(environment, {OrphanOf(environment, *allocation)});
  Forget(environment, allocation);
  return kSuccess;
}

}  // namespace cistern
