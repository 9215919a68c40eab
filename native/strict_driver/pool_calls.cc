#include <cstdint>
#include <utility>

#include "strict_driver/call.h"
#include "strict_driver/calls.h"
#include "strict_driver/capture.h"
#include "strict_driver/graph_memory.h"
#include "strict_driver/pool.h"
#include "strict_driver/report.h"
#include "strict_driver/settings.h"
#include "strict_driver/stream.h"

namespace cistern::strict::calls {
namespace {

Status FindPool(Pool handle, PoolRef* pool) {
  *pool = driver.pools.Find(handle);
  if (*pool != nullptr) return kSuccess;
  Report("MISUSE", "%s: %p is %s", thread.function, static_cast<void*>(handle),
         driver.pools.WasEverLive(handle) ? "a destroyed pool" : "not a pool");
  return kErrorInvalidValue;
}

// "For managed memory pools", the location is "the preferred location for all allocations created
// from the pool", or none; there is no IPC, no maximum, and "all devices on the system must have
// non-zero concurrentManagedAccess".
Status CheckManaged(const PoolProperties& properties, int* preferred) {
  if (settings().version < 13000 || properties.handle_types != 0 || properties.max_size != 0) return kErrorInvalidValue;
  const auto [type, id] = properties.location;
  if (type == kLocationNone) {
    *preferred = kNoLocation;
  } else if (type == kLocationHost) {
    *preferred = kHostLocation;
  } else if (type == kLocationDevice && id >= 0 && id < settings().devices) {
    *preferred = id;
  } else {
    return kErrorInvalidValue;
  }
  return settings().has_concurrent_managed_access ? kSuccess : Status{kErrorNotSupported};
}

// Pools of the host as a whole are for CUDA 13, those of a NUMA node for CUDA 12.6. The machine has one node.
bool IsPlaceOfHost(MemLocation location) {
  if (location.type == kLocationHost) return settings().version >= 13000;
  return location.type == kLocationHostNuma && location.id == 0 && settings().version >= 12060;
}

bool IsAllZero(const PoolProperties& properties) {
  for (const unsigned char byte : properties.reserved) {
    if (byte != 0) return false;
  }
  return properties.security_attributes == nullptr && properties.usage == 0;
}

Status CheckDeviceWithPools(DeviceOrdinal device) {
  if (device < 0 || device >= settings().devices) return kErrorInvalidDevice;
  return settings().has_pools ? kSuccess : kErrorNotSupported;
}

Pool DefaultPoolOf(DeviceOrdinal device) {
  Pool& own = driver.default_pools[device];
  if (own == nullptr) {
    auto state = std::make_shared<PoolState>();
    state->device = device;
    driver.all_pools.insert(state);
    own = state->handle = static_cast<Pool>(driver.pools.Add(state));
  }
  return own;
}

}  // namespace

Status MemPoolCreate(Pool* pool, const PoolProperties* properties) {
  STRICT_DRIVER_ENTER_UNSAFE("cuMemPoolCreate", kInit, CheckPotentiallyUnsafe);
  if (!settings().has_pools) return kErrorNotSupported;
  if (pool == nullptr || properties == nullptr || !IsAllZero(*properties)) return kErrorInvalidValue;
  auto state = std::make_shared<PoolState>();
  const MemLocation location = properties->location;
  if (properties->alloc_type == kAllocationTypeManaged) {
    const Status status = CheckManaged(*properties, &state->preferred);
    if (status != kSuccess) return status;
    state->device = kNoLocation;
  } else {
    const bool is_on_device = location.type == kLocationDevice && location.id >= 0 && location.id < settings().devices;
    if (properties->alloc_type != kAllocationTypePinned || (!is_on_device && !IsPlaceOfHost(location))) return kErrorInvalidValue;
    const int handle_types = location.type == kLocationHost ? 0 : int{kHandleTypePosixDescriptor};
    if ((properties->handle_types & ~handle_types) != 0) return kErrorNotSupported;
    state->device = is_on_device ? location.id : DeviceOrdinal{kHostLocation};
    state->max_bytes = properties->max_size;
    state->is_exportable = properties->handle_types != 0 && is_on_device;
  }
  driver.all_pools.insert(state);
  *pool = state->handle = static_cast<Pool>(driver.pools.Add(state));
  return kSuccess;
}

Status DeviceGetDefaultMemPool(Pool* pool, DeviceOrdinal device) {
  STRICT_DRIVER_ENTER("cuDeviceGetDefaultMemPool", kInit);
  const Status status = CheckDeviceWithPools(device);
  if (status != kSuccess || pool == nullptr) return pool == nullptr ? kErrorInvalidValue : status;
  *pool = DefaultPoolOf(device);
  return kSuccess;
}

Status DeviceGetMemPool(Pool* pool, DeviceOrdinal device) {
  STRICT_DRIVER_ENTER("cuDeviceGetMemPool", kInit);
  const Status status = CheckDeviceWithPools(device);
  if (status != kSuccess || pool == nullptr) return pool == nullptr ? kErrorInvalidValue : status;
  const auto set = driver.current_pools.find(device);
  *pool = set != driver.current_pools.end() ? set->second : DefaultPoolOf(device);
  return kSuccess;
}

Status DeviceSetMemPool(DeviceOrdinal device, Pool pool) {
  STRICT_DRIVER_ENTER("cuDeviceSetMemPool", kInit);
  Status status = CheckDeviceWithPools(device);
  PoolRef state;
  if (status == kSuccess) status = FindPool(pool, &state);
  if (status != kSuccess) return status;
  if (state->device != device) {
    Report("MISUSE", "cuDeviceSetMemPool: %p is no pool of device %d", static_cast<void*>(pool), device);
    return kErrorInvalidValue;
  }
  driver.current_pools[device] = pool;
  return kSuccess;
}

Status MemPoolDestroy(Pool pool) {
  STRICT_DRIVER_ENTER_UNSAFE("cuMemPoolDestroy", kInit, CheckPerhapsUnsafe);
  PoolRef state;
  const Status status = FindPool(pool, &state);
  if (status != kSuccess) return status;
  const auto own = driver.default_pools.find(state->device);
  if (own != driver.default_pools.end() && own->second == pool) {
    Report("MISUSE", "cuMemPoolDestroy: %p is the default pool of device %d", static_cast<void*>(pool), state->device);
    return kErrorInvalidValue;
  }
  const auto set = driver.current_pools.find(state->device);
  if (set != driver.current_pools.end() && set->second == pool) driver.current_pools.erase(set);
  driver.pools.Remove(pool);
  DestroyPool(state);
  return kSuccess;
}

Status MemPoolTrimTo(Pool pool, std::size_t bytes_to_keep) {
  STRICT_DRIVER_ENTER_UNSAFE("cuMemPoolTrimTo", kInit, CheckPerhapsUnsafe);
  PoolRef state;
  const Status status = FindPool(pool, &state);
  // "IPC Export Pool Limitations": for these it has no effect, and the release threshold is ignored.
  if (status == kSuccess && !state->is_exportable) ReleaseChunks(*state, bytes_to_keep);
  return status;
}

// "Default accessibility of the pool from the host or the device itself cannot be revoked": nor is a device
// given access that it cannot have.
Status MemPoolSetAccess(Pool pool, const AccessDescription* descriptions, std::size_t count) {
  STRICT_DRIVER_ENTER_UNSAFE("cuMemPoolSetAccess", kInit, CheckPerhapsUnsafe);
  PoolRef state;
  const Status status = FindPool(pool, &state);
  if (status != kSuccess) return status;
  if (descriptions == nullptr || count == 0) return kErrorInvalidValue;
  for (std::size_t i = 0; i < count; ++i) {
    const auto [location, flags] = descriptions[i];
    if (state->IsManaged() || location.type != kLocationDevice || (flags != kAccessNone && flags != kAccessReadWrite))
      return kErrorInvalidValue;
    if (location.id < 0 || location.id >= settings().devices) return kErrorInvalidDevice;
    if (location.id == state->device && flags == kAccessNone) return kErrorInvalidValue;
    if (location.id == state->device || flags == kAccessNone || !state->IsOnDevice() || CanReach(location.id, state->device)) continue;
    Report("MISUSE", "cuMemPoolSetAccess for device %d, which cannot access memory of device %d", location.id, state->device);
    return kErrorInvalidDevice;
  }
  for (std::size_t i = 0; i < count; ++i) {
    if (descriptions[i].flags == kAccessReadWrite) {
      state->accessors.insert(descriptions[i].location.id);
    } else {
      state->accessors.erase(descriptions[i].location.id);
    }
  }
  return kSuccess;
}

Status MemPoolSetAttribute(Pool pool, int attribute, void* value) {
  STRICT_DRIVER_ENTER_UNSAFE("cuMemPoolSetAttribute", kInit, CheckPotentiallyUnsafe);
  PoolRef state;
  const Status status = FindPool(pool, &state);
  if (status != kSuccess) return status;
  if (value == nullptr) return kErrorInvalidValue;
  const int flag = *static_cast<int*>(value);
  switch (attribute) {
    case kPoolReuseFollowEventDependencies:
      state->follows_events = flag;
      return kSuccess;
    case kPoolReuseAllowOpportunistic:
      state->is_opportunistic = flag;
      return kSuccess;
    case kPoolReuseAllowInternalDependencies:
      state->adds_dependencies = flag;
      return kSuccess;
    case kPoolReleaseThreshold:
      state->release_threshold = *static_cast<std::uint64_t*>(value);
      return kSuccess;
    case kPoolReservedHigh:
      if (*static_cast<std::uint64_t*>(value) != 0) return kErrorInvalidValue;
      state->reserved_high = state->reserved;
      return kSuccess;
    case kPoolUsedHigh:
      if (*static_cast<std::uint64_t*>(value) != 0) return kErrorInvalidValue;
      state->used_high = state->used;
      return kSuccess;
    default:
      return kErrorInvalidValue;
  }
}

Status MemPoolGetAttribute(Pool pool, int attribute, void* value) {
  STRICT_DRIVER_ENTER_UNSAFE("cuMemPoolGetAttribute", kInit, CheckPotentiallyUnsafe);
  PoolRef state;
  const Status status = FindPool(pool, &state);
  if (status != kSuccess) return status;
  if (value == nullptr) return kErrorInvalidValue;
  int* flag = static_cast<int*>(value);
  std::uint64_t* number = static_cast<std::uint64_t*>(value);
  switch (attribute) {
    case kPoolReuseFollowEventDependencies:
      *flag = state->follows_events;
      return kSuccess;
    case kPoolReuseAllowOpportunistic:
      *flag = state->is_opportunistic;
      return kSuccess;
    case kPoolReuseAllowInternalDependencies:
      *flag = state->adds_dependencies;
      return kSuccess;
    case kPoolReleaseThreshold:
      *number = state->release_threshold;
      return kSuccess;
    case kPoolReservedCurrent:
      *number = state->reserved;
      return kSuccess;
    case kPoolReservedHigh:
      *number = state->reserved_high;
      return kSuccess;
    case kPoolUsedCurrent:
      *number = state->used;
      return kSuccess;
    case kPoolUsedHigh:
      *number = state->used_high;
      return kSuccess;
    default:
      return kErrorInvalidValue;
  }
}

Status MemAllocFromPoolAsync(DevicePointer* pointer, std::size_t bytes, Pool pool, Stream stream) {
  STRICT_DRIVER_ENTER("cuMemAllocFromPoolAsync", kContext);
  PoolRef state;
  StreamRef stream_state;
  Status status = FindPool(pool, &state);
  if (status == kSuccess) status = FindStream(stream, &stream_state, false);
  if (status != kSuccess) return status;
  if (pointer == nullptr || bytes == 0) return kErrorInvalidValue;
  if (state->foreign_table != 0) {
    Report("MISUSE", "cuMemAllocFromPoolAsync from a pool of another process");
    return kErrorInvalidValue;
  }
  if (stream_state->capture != nullptr) return CaptureAllocation(stream_state, *state, bytes, pointer);
  status = CheckWork(*stream_state);
  if (status == kSuccess) status = CheckPotentiallyUnsafe();
  if (status != kSuccess) return status;
  return AllocateFromPool(state, bytes, stream_state, pointer);
}

}  // namespace cistern::strict::calls
