#include <vector>

#include "addon/bindings.h"
#include "addon/captures.h"
#include "addon/memory.h"
#include "addon/orphans.h"

namespace cistern {
namespace {

Status FindPool(Environment& environment, const Napi::CallbackInfo& info, PoolEntry** pool, std::uint64_t* handle) {
  if (!ReadInteger(info[0], handle)) return kInvalidArgument;
  return environment.pools.Find(static_cast<double>(*handle), pool);
}

bool IsIntAttribute(int attribute) {
  return attribute >= kPoolReuseFollowEventDependencies && attribute <= kPoolReuseAllowInternalDependencies;
}

bool IsPoolAttribute(int attribute) { return attribute >= kPoolReuseFollowEventDependencies && attribute <= kPoolUsedHigh; }

// Memory that is still allocated from a pool and no longer has an owner.
std::vector<Orphan> TakeMemoryOf(Environment& environment, std::uint64_t pool) {
  std::vector<Orphan> orphans;
  environment.allocations.ForEach([&](const Allocation& allocation) {
    if (allocation.owner == pool) orphans.push_back(OrphanOf(environment, allocation));
  });
  for (const Orphan& orphan : orphans) environment.allocations.Erase(environment.allocations.Find(orphan.address));
  return orphans;
}

// Whether the device answers that it has pools of this kind. A driver that has the pools but not yet the attribute, as those for
// CUDA 12.6 to 12.8, refuses the question, which leaves it open.
Status CheckPools(Environment& environment, int device, int attribute, bool if_open, bool* has_pools) {
  int value = 0;
  const Status status = environment.Counted<Call::kDeviceGetAttribute>(&value, attribute, environment.DriverDevice(device));
  *has_pools = status == kSuccess ? value != 0 : if_open;
  return status == kErrorInvalidValue ? Status{kSuccess} : status;
}

// Where a pool of pinned memory has its pages: at the NUMA node, or anywhere on the host. Drivers before CUDA 13 have only pools of
// a node; then it is the one that is closest to the device.
Status LocatePinned(Environment& environment, int device, bool has_node, int node, MemLocation* location) {
  bool has_pools = false;
  Status status = kSuccess;
  if (!has_node) status = CheckPools(environment, device, kAttributeHostMemoryPoolsSupported, false, &has_pools);
  if (status != kSuccess) return status;
  if (has_pools) {
    *location = {kLocationHost, 0};
    return kSuccess;
  }
  status = CheckPools(environment, device, kAttributeHostNumaMemoryPoolsSupported, true, &has_pools);
  if (status == kSuccess && !has_pools) status = kErrorNotSupported;
  if (status != kSuccess) return status;
  if (!has_node) {
    status = environment.Counted<Call::kDeviceGetAttribute>(&node, int{kAttributeHostNumaId}, environment.DriverDevice(device));
    if (status == kErrorInvalidValue) status = kErrorNotSupported;
    // -1: the machine has no nodes to tell apart.
    if (node < 0) node = 0;
  }
  *location = {kLocationHostNuma, node};
  return status;
}

}  // namespace

Status AllocateAsync(Environment& environment) {
  std::uint64_t bytes;
  if (!environment.In(0, &bytes) || bytes == 0) return kInvalidArgument;
  PoolEntry* pool;
  StreamEntry* stream;
  const double pool_handle = environment.In(1);
  const double stream_handle = environment.In(2);
  Status status = environment.pools.Find(pool_handle, &pool);
  if (status == kSuccess) status = environment.streams.Find(stream_handle, &stream);
  if (status != kSuccess) return status;
  if (!environment.allocations.Reserve()) return kHostOutOfMemory;
  const RelaxedContextScope context(environment, stream->device);
  if (context.status() != kSuccess) return context.status();

  // A graph would own the memory.
  status = CheckNotCapturedHere(environment, *stream);
  if (status != kSuccess) return status;
  DevicePointer address = 0;
  status = environment.WithReclaim([&] {
    return environment.Counted<Call::kMemAllocFromPoolAsync>(&address, static_cast<std::size_t>(bytes), pool->pool, stream->stream);
  });
  if (status != kSuccess) return status;
  if (address > kMaxSafeInteger) {
    environment.driver->MemFreeAsync(address, stream->stream);
    return kAddressTooLarge;
  }
  environment.allocations.Insert({address, bytes, static_cast<std::uint64_t>(pool_handle), static_cast<std::uint64_t>(stream_handle)});
  environment.Out(1, static_cast<double>(address));
  return kSuccess;
}

Status DeallocateAsync(Environment& environment) {
  std::uint64_t address, bytes;
  if (!environment.In(0, &address) || !environment.In(1, &bytes)) return kInvalidArgument;
  PoolEntry* pool;
  StreamEntry* stream;
  const double pool_handle = environment.In(2);
  Status status = environment.pools.Find(pool_handle, &pool);
  if (status == kSuccess) status = environment.streams.Find(environment.In(3), &stream);
  if (status != kSuccess) return status;
  Allocation* allocation;
  status = FindAllocation(environment, address, bytes, static_cast<std::uint64_t>(pool_handle), &allocation);
  if (status != kSuccess) return status;
  const RelaxedContextScope context(environment, stream->device);
  if (context.status() != kSuccess) return context.status();
  status = CheckNotCapturedHere(environment, *stream);
  if (status != kSuccess) return status;
  status = environment.Counted<Call::kMemFreeAsync>(static_cast<DevicePointer>(address), stream->stream);
  if (status == kSuccess) environment.allocations.Erase(allocation);
  return status;
}

Status CreatePool(Environment& environment, const Napi::CallbackInfo& info) {
  int device;
  std::uint64_t release_threshold, maximum, kind_number;
  bool is_exportable;
  if (!ReadInt(info[0], &device) || !ReadLimit(info[1], &release_threshold) || !ReadInteger(info[2], &kind_number)) return kInvalidArgument;
  if (!ReadBoolean(info[3], &is_exportable) || !ReadLimit(info[4], &maximum)) return kInvalidArgument;
  const bool has_node = !info[5].IsUndefined();
  int node = 0;
  if (has_node && (!ReadInt(info[5], &node) || node < 0)) return kInvalidArgument;
  if (kind_number > static_cast<std::uint64_t>(MemoryKind::kPinnedHost)) return kInvalidArgument;
  const auto kind = static_cast<MemoryKind>(kind_number);
  if (environment.driver == nullptr) return kNoBackend;
  if (!environment.HasDevice(device)) return kInvalidArgument;
  environment.ReapOrphans();
  const RelaxedContextScope context(environment, device);
  if (context.status() != kSuccess) return context.status();

  PoolProperties properties{};
  properties.alloc_type = kind == MemoryKind::kManaged ? kAllocationTypeManaged : kAllocationTypePinned;
  if (kind == MemoryKind::kDevice) properties.location = {kLocationDevice, environment.DriverDevice(device)};
  Status status = kSuccess;
  if (kind == MemoryKind::kPinnedHost) status = LocatePinned(environment, device, has_node, node, &properties.location);
  if (status != kSuccess) return status;
  if (is_exportable) properties.handle_types = kHandleTypePosixDescriptor;
  // 0 is the driver's own limit.
  if (maximum != UINT64_MAX) properties.max_size = static_cast<std::size_t>(maximum);
  Pool pool = nullptr;
  status = environment.Counted<Call::kMemPoolCreate>(&pool, static_cast<const PoolProperties*>(&properties));
  if (status != kSuccess) return status;
  std::uint64_t handle = 0;
  status = environment.Counted<Call::kMemPoolSetAttribute>(pool, int{kPoolReleaseThreshold}, static_cast<void*>(&release_threshold));
  if (status == kSuccess && kind == MemoryKind::kDevice) status = GivePoolAccess(environment, pool, device);
  if (status == kSuccess && kind == MemoryKind::kPinnedHost) status = GiveHostPoolAccess(environment, pool);
  if (status == kSuccess) {
    handle = environment.pools.Add({pool, device, true, kind == MemoryKind::kDevice});
    if (handle == 0) status = kHostOutOfMemory;
  }
  if (status != kSuccess) {
    environment.Counted<Call::kMemPoolDestroy>(pool);
    return status;
  }
  environment.Out(1, static_cast<double>(handle));
  return kSuccess;
}

Status OpenPool(Environment& environment, const Napi::CallbackInfo& info) {
  int device;
  std::uint64_t address;
  bool is_current;
  if (!ReadInt(info[0], &device) || !ReadInteger(info[1], &address) || !ReadBoolean(info[2], &is_current)) return kInvalidArgument;
  if (environment.driver == nullptr) return kNoBackend;
  if (!environment.HasDevice(device)) return kInvalidArgument;
  const RelaxedContextScope context(environment, device);
  if (context.status() != kSuccess) return context.status();
  Pool pool = reinterpret_cast<Pool>(static_cast<std::uintptr_t>(address));
  Status status = kSuccess;
  if (is_current) {
    status = environment.Counted<Call::kDeviceGetMemPool>(&pool, environment.DriverDevice(device));
  } else if (pool == nullptr) {
    status = environment.Counted<Call::kDeviceGetDefaultMemPool>(&pool, environment.DriverDevice(device));
  }
  // The software device recognises a handle that is not one of its pools. CUDA may do so, and only CUDA could.
  std::uint64_t threshold = 0;
  if (status == kSuccess) {
    status = environment.Counted<Call::kMemPoolGetAttribute>(pool, int{kPoolReleaseThreshold}, static_cast<void*>(&threshold));
  }
  if (status != kSuccess) return status;
  const std::uint64_t handle = environment.pools.Add({pool, device, false, true});
  if (handle == 0) return kHostOutOfMemory;
  environment.Out(1, static_cast<double>(handle));
  return kSuccess;
}

Status MakePoolCurrent(Environment& environment, const Napi::CallbackInfo& info) {
  PoolEntry* pool;
  std::uint64_t handle;
  const Status status = FindPool(environment, info, &pool, &handle);
  if (status != kSuccess) return status;
  const RelaxedContextScope context(environment, pool->device);
  if (context.status() != kSuccess) return context.status();
  return environment.Counted<Call::kDeviceSetMemPool>(environment.DriverDevice(pool->device), pool->pool);
}

Status PoolAddress(Environment& environment, const Napi::CallbackInfo& info) {
  PoolEntry* pool;
  std::uint64_t handle;
  const Status status = FindPool(environment, info, &pool, &handle);
  if (status != kSuccess) return status;
  const std::uintptr_t address = reinterpret_cast<std::uintptr_t>(pool->pool);
  if (address > kMaxSafeInteger) return kAddressTooLarge;
  environment.Out(1, static_cast<double>(address));
  return kSuccess;
}

Status DestroyPool(Environment& environment, const Napi::CallbackInfo& info) {
  PoolEntry* pool;
  std::uint64_t handle;
  Status status = FindPool(environment, info, &pool, &handle);
  if (status != kSuccess) return status;
  const RelaxedContextScope context(environment, pool->device);
  if (context.status() != kSuccess) return context.status();
  std::vector<Orphan> orphans = TakeMemoryOf(environment, handle);
  if (orphans.empty()) {
    if (pool->owned) status = environment.Counted<Call::kMemPoolDestroy>(pool->pool);
    if (status == kSuccess) environment.pools.Remove(handle);
    return status;
  }
  // Any stream of the device may be using that memory, and the streams that it was allocated on may
  // be gone. So it is freed once the device has run all of its work; if that may never happen,
  // because JavaScript stalls a stream, at a later call.
  if (pool->owned) orphans.push_back({OrphanKind::kPool, pool->device, reinterpret_cast<std::uintptr_t>(pool->pool)});
  LeaveOrphans(environment, std::move(orphans));
  environment.pools.Remove(handle);
  environment.ReapOrphans();
  return kSuccess;
}

Status PoolAllocations(Environment& environment, const Napi::CallbackInfo& info, Napi::Value* result) {
  PoolEntry* pool;
  std::uint64_t handle;
  const Status status = FindPool(environment, info, &pool, &handle);
  if (status != kSuccess) return status;
  std::vector<double> pairs;
  environment.allocations.ForEach([&](const Allocation& allocation) {
    if (allocation.owner != handle) return;
    pairs.push_back(static_cast<double>(allocation.address));
    pairs.push_back(static_cast<double>(allocation.bytes));
  });
  Napi::Float64Array array = Napi::Float64Array::New(info.Env(), pairs.size());
  for (std::size_t i = 0; i < pairs.size(); i++) array[i] = pairs[i];
  *result = array;
  return kSuccess;
}

Status TrimPool(Environment& environment, const Napi::CallbackInfo& info) {
  PoolEntry* pool;
  std::uint64_t handle, bytes_to_keep;
  if (!ReadLimit(info[1], &bytes_to_keep)) return kInvalidArgument;
  const Status status = FindPool(environment, info, &pool, &handle);
  if (status != kSuccess) return status;
  const RelaxedContextScope context(environment, pool->device);
  if (context.status() != kSuccess) return context.status();
  return environment.Counted<Call::kMemPoolTrimTo>(pool->pool, static_cast<std::size_t>(bytes_to_keep));
}

Status PoolAttribute(Environment& environment, const Napi::CallbackInfo& info) {
  PoolEntry* pool;
  std::uint64_t handle;
  int attribute;
  if (!ReadInt(info[1], &attribute) || !IsPoolAttribute(attribute)) return kInvalidArgument;
  Status status = FindPool(environment, info, &pool, &handle);
  if (status != kSuccess) return status;
  const RelaxedContextScope context(environment, pool->device);
  if (context.status() != kSuccess) return context.status();
  int flag = 0;
  std::uint64_t number = 0;
  void* value = IsIntAttribute(attribute) ? static_cast<void*>(&flag) : &number;
  status = environment.Counted<Call::kMemPoolGetAttribute>(pool->pool, attribute, value);
  if (status != kSuccess) return status;
  environment.Out(1, IsIntAttribute(attribute) ? flag : FromLimit(number));
  return kSuccess;
}

Status SetPoolAttribute(Environment& environment, const Napi::CallbackInfo& info) {
  PoolEntry* pool;
  std::uint64_t handle, number;
  int attribute;
  if (!ReadInt(info[1], &attribute) || !IsPoolAttribute(attribute) || !ReadLimit(info[2], &number)) return kInvalidArgument;
  if (IsIntAttribute(attribute) && number > 1) return kInvalidArgument;
  // The current sizes can only be read, and the high-water marks can only be reset.
  if (attribute == kPoolReservedCurrent || attribute == kPoolUsedCurrent) return kInvalidArgument;
  if ((attribute == kPoolReservedHigh || attribute == kPoolUsedHigh) && number != 0) return kInvalidArgument;
  const Status status = FindPool(environment, info, &pool, &handle);
  if (status != kSuccess) return status;
  const RelaxedContextScope context(environment, pool->device);
  if (context.status() != kSuccess) return context.status();
  int flag = static_cast<int>(number);
  void* value = IsIntAttribute(attribute) ? static_cast<void*>(&flag) : &number;
  return environment.Counted<Call::kMemPoolSetAttribute>(pool->pool, attribute, value);
}

}  // namespace cistern
