#include "software/calls.h"
#include "software/capture.h"
#include "software/host_memory.h"
#include "software/ipc.h"
#include "software/legacy_order.h"
#include "software/managed_memory.h"
#include "software/resolve.h"
#include "software/settings.h"
#include "software/transfer.h"
#include "software/virtual_memory.h"

namespace cistern::software::calls {
namespace {

// "Any CUDA API call may block or synchronize for various reasons."
void BeforeAllocating(Device& device) {
  if (IsStrict()) device.Synchronize();
}

// Allocates again after pools and managed memory have made room, as long as that helps.
template <typename Allocate>
Status MakingRoom(Device& device, std::uint64_t bytes, Allocate allocate) {
  Status status = allocate();
  if (status == kErrorOutOfMemory && ReclaimPools(device, Reclaim::kAll)) status = allocate();
  RoomInMemory room(device, bytes);
  while (status == kErrorOutOfMemory && room.Make()) status = allocate();
  return status;
}

// Plain memory may also be freed in stream order.
Status FreePlainAsync(Device& device, DevicePointer pointer, StreamState& stream) {
  std::uint32_t block;
  Status status = OrderWithLegacy(stream);
  if (status == kSuccess) status = device.memory.BeginFree(pointer, &block);
  if (status != kSuccess) return status;
  if (!IsIdle(stream)) {
    if (Submit(stream, FreeWork{&device, block}, nullptr) == kSuccess) return kSuccess;
    WaitForMark(CurrentMark(stream));
  }
  device.memory.FinishFree(block);
  return kSuccess;
}

struct DeviceAllocation {
  std::uint64_t start;
  bool is_plain;
  Pool pool;  // null for plain memory
};

// Memory of a device, except virtual and imported memory.
bool FindDeviceAllocation(std::uint64_t address, DeviceAllocation* allocation) {
  Device* device = FindDeviceByAddress(address);
  AddressInfo info;
  if (device == nullptr || !device->memory.Describe(address, 1, false, &info)) return false;
  if (!info.is_segment) {
    *allocation = {info.start, true, nullptr};
    return true;
  }
  PoolAllocation of_pool;
  if (!FindPoolAllocation(*device, address, &of_pool)) return false;
  *allocation = {of_pool.start, false, HandleOf<Pool>(*of_pool.pool)};
  return true;
}

// The device that the properties of virtual memory name.
Status ResolveProperties(const AllocationProperties* properties, Device** device) {
  if (!IsInitialized()) return kErrorNotInitialized;
  if (properties == nullptr || properties->type != kAllocationTypePinned) return kErrorInvalidValue;
  if (properties->location.type != kLocationDevice) return kErrorInvalidValue;
  *device = FindDevice(properties->location.id);
  if (*device == nullptr) return kErrorInvalidDevice;
  return properties->handle_types == 0 || properties->handle_types == kHandleTypePosixDescriptor ? kSuccess : kErrorNotSupported;
}

bool IsMemoryOf(const Device& device, DevicePointer pointer) {
  const AddressRange range = Classify(pointer, 1, false);
  return range.kind == AddressKind::kDevice && range.device == device.ordinal;
}

}  // namespace

Status MemGetInfo(std::size_t* free, std::size_t* total) {
  Device* device;
  Status status = RequireDevice(&device);
  if (status != kSuccess) return status;
  if (free == nullptr || total == nullptr) return kErrorInvalidValue;
  std::uint64_t free_bytes;
  std::uint64_t total_bytes;
  device->memory.GetInfo(&free_bytes, &total_bytes);
  *free = free_bytes;
  *total = total_bytes;
  return kSuccess;
}

Status MemAlloc(DevicePointer* pointer, std::size_t bytes) {
  Device* device;
  Status status = RequireDevice(&device);
  if (status != kSuccess) return status;
  if (pointer == nullptr || bytes == 0) return kErrorInvalidValue;
  BeforeAllocating(*device);
  std::uint64_t address;
  const std::uint64_t occupied = (bytes + kGranule - 1) / kGranule * kGranule;
  status = MakingRoom(*device, occupied, [&] { return device->memory.Allocate(bytes, &address); });
  if (status == kSuccess) *pointer = address;
  return status;
}

Status MemFree(DevicePointer pointer) {
  Device* current;
  Status status = RequireDevice(&current);
  if (status != kSuccess) return status;
  Device* device = FindDeviceByAddress(pointer);
  ImportedRangeInfo imported;
  if (device == nullptr && FindImportedRange(pointer, &imported)) return EndImport(pointer);
  if (device == nullptr) return FreeHostMemory(HostMemoryKind::kManaged, pointer);
  bool gives_back;
  status = FreeGraphMemory(pointer, &gives_back);
  if (status != kErrorNotFound && !(status == kSuccess && gives_back)) return status;
  std::uint32_t block;
  if (device->memory.BeginFree(pointer, &block) == kSuccess) {
    if (FreesWait()) device->Synchronize();
    device->memory.FinishFree(block);
    return kSuccess;
  }
  if (!StartsPoolAllocation(*device, pointer)) return kErrorInvalidValue;
  if (FreesWait()) device->Synchronize();
  return FreeToPool(*device, pointer, nullptr);
}

Status MemAllocManaged(DevicePointer* pointer, std::size_t bytes, unsigned flags) {
  constexpr unsigned kMemAttachHost = 2;
  Device* device;
  Status status = RequireDevice(&device);
  if (status != kSuccess) return status;
  if (pointer == nullptr || bytes == 0 || (flags != kMemAttachGlobal && flags != kMemAttachHost)) return kErrorInvalidValue;
  BeforeAllocating(*device);
  std::uint64_t address;
  status = AllocateHostMemory(HostMemoryKind::kManaged, device->ordinal, bytes, &address);
  if (status == kSuccess) *pointer = address;
  return status;
}

Status MemHostAlloc(void** pointer, std::size_t bytes, unsigned flags) {
  constexpr unsigned kAllFlags = 7;
  Device* device;
  Status status = RequireDevice(&device);
  if (status != kSuccess) return status;
  if (pointer == nullptr || bytes == 0 || flags > kAllFlags) return kErrorInvalidValue;
  BeforeAllocating(*device);
  std::uint64_t address;
  status = AllocateHostMemory(HostMemoryKind::kPinned, device->ordinal, bytes, &address);
  if (status == kSuccess) *pointer = reinterpret_cast<void*>(address);
  return status;
}

Status MemFreeHost(void* pointer) {
  Device* device;
  Status status = RequireDevice(&device);
  if (status != kSuccess) return status;
  return FreeHostMemory(HostMemoryKind::kPinned, reinterpret_cast<std::uint64_t>(pointer));
}

Status MemHostRegister(void* pointer, std::size_t bytes, unsigned flags) {
  constexpr unsigned kAllFlags = 15;
  Device* device;
  Status status = RequireDevice(&device);
  if (status != kSuccess) return status;
  if (pointer == nullptr || bytes == 0 || flags > kAllFlags) return kErrorInvalidValue;
  BeforeAllocating(*device);
  return RegisterHostMemory(device->ordinal, reinterpret_cast<std::uint64_t>(pointer), bytes);
}

Status MemHostUnregister(void* pointer) {
  Device* device;
  Status status = RequireDevice(&device);
  if (status != kSuccess) return status;
  if (pointer == nullptr) return kErrorInvalidValue;
  status = FreeHostMemory(HostMemoryKind::kRegistered, reinterpret_cast<std::uint64_t>(pointer));
  return status == kErrorInvalidValue ? Status{kErrorHostMemoryNotRegistered} : status;
}

namespace {

// What the memory of a pool with these properties is. Managed memory has no preferred location; the host has one NUMA node.
bool KindOfPool(const PoolProperties& properties, PoolKind* kind) {
  const auto [type, id] = properties.location;
  if (properties.alloc_type == kAllocationTypeManaged) {
    *kind = PoolKind::kManaged;
    return type == kLocationNone && properties.max_size == 0;
  }
  *kind = type == kLocationDevice ? PoolKind::kDevice : PoolKind::kPinned;
  if (properties.alloc_type != kAllocationTypePinned) return false;
  return type == kLocationDevice || type == kLocationHost || (type == kLocationHostNuma && id == 0);
}

}  // namespace

// A pool that is at no device takes its addresses from those of the current one.
Status MemPoolCreate(Pool* pool, const PoolProperties* properties) {
  if (!IsInitialized()) return kErrorNotInitialized;
  PoolKind kind;
  if (pool == nullptr || properties == nullptr || !KindOfPool(*properties, &kind)) return kErrorInvalidValue;
  const bool is_on_device = kind == PoolKind::kDevice;
  Device* current = thread_state.current != nullptr ? thread_state.current : FindDevice(0);
  Device* device = is_on_device ? FindDevice(properties->location.id) : current;
  if (device == nullptr) return kErrorInvalidValue;
  const bool is_exportable = properties->handle_types == kHandleTypePosixDescriptor && is_on_device;
  if (properties->handle_types != 0 && !is_exportable) return kErrorNotSupported;
  if (kind == PoolKind::kManaged && !HasConcurrentManagedAccess()) return kErrorNotSupported;
  Status status = device->Prepare();
  if (status == kSuccess && is_exportable) status = device->memory.OpenSharedPages();
  MemoryPool* state;
  if (status == kSuccess) status = CreatePool(*device, properties->max_size, kind, is_exportable, &state);
  if (status == kSuccess) *pool = HandleOf<Pool>(*state);
  return status;
}

namespace {

// A pool that a device has: its default one, or its current one.
Status PoolOfDevice(Pool* pool, DeviceOrdinal ordinal, Status (*find)(Device& device, MemoryPool** state)) {
  if (!IsInitialized()) return kErrorNotInitialized;
  Device* device = FindDevice(ordinal);
  if (device == nullptr) return kErrorInvalidDevice;
  if (pool == nullptr) return kErrorInvalidValue;
  Status status = device->Prepare();
  MemoryPool* state;
  if (status == kSuccess) status = find(*device, &state);
  if (status == kSuccess) *pool = HandleOf<Pool>(*state);
  return status;
}

// Whether the arrays of a batch describe one: each attribute is that of the copies from its first on.
bool IsBatch(const DevicePointer* destinations, const DevicePointer* sources, const std::size_t* sizes, std::size_t count,
             const CopyAttributes* attributes, const std::size_t* first_copies, std::size_t attribute_count) {
  if (destinations == nullptr || sources == nullptr || sizes == nullptr || attributes == nullptr || first_copies == nullptr) return false;
  if (attribute_count == 0 || attribute_count > count || first_copies[0] != 0) return false;
  for (std::size_t i = 0; i < attribute_count; ++i) {
    if (first_copies[i] >= count || (i > 0 && first_copies[i] <= first_copies[i - 1])) return false;
    if (attributes[i].source_order < kSourceOrderStream || attributes[i].source_order > kSourceOrderAny) return false;
  }
  return true;
}

}  // namespace

Status DeviceGetDefaultMemPool(Pool* pool, DeviceOrdinal ordinal) { return PoolOfDevice(pool, ordinal, DefaultPool); }

Status DeviceGetMemPool(Pool* pool, DeviceOrdinal ordinal) { return PoolOfDevice(pool, ordinal, CurrentPool); }

Status DeviceSetMemPool(DeviceOrdinal ordinal, Pool pool) {
  if (!IsInitialized()) return kErrorNotInitialized;
  Device* device = FindDevice(ordinal);
  if (device == nullptr) return kErrorInvalidDevice;
  MemoryPool* state;
  const Status status = ResolvePool(pool, &state);
  return status == kSuccess ? SetCurrentPool(*device, *state) : status;
}

Status MemPoolDestroy(Pool pool) {
  if (EndImportedPool(HandleBits(pool))) return kSuccess;
  MemoryPool* state;
  Status status = ResolvePool(pool, &state);
  return status == kSuccess ? DestroyPool(*state, HandleBits(pool)) : status;
}

Status MemPoolTrimTo(Pool pool, std::size_t bytes_to_keep) {
  MemoryPool* state;
  Status status = ResolvePool(pool, &state);
  return status == kSuccess ? TrimPool(*state, bytes_to_keep) : status;
}

Status MemPoolSetAccess(Pool pool, const AccessDescription* descriptions, std::size_t count) {
  MemoryPool* state;
  Status status = ResolvePool(pool, &state);
  if (status != kSuccess) return status;
  if (descriptions == nullptr || count == 0) return kErrorInvalidValue;
  for (std::size_t i = 0; i < count; ++i) {
    status = SetPoolAccess(*state, descriptions[i]);
    if (status != kSuccess) return status;
  }
  return kSuccess;
}

Status MemPoolSetAttribute(Pool pool, int attribute, void* value) {
  MemoryPool* state;
  Status status = ResolvePool(pool, &state);
  if (status != kSuccess) return status;
  return value != nullptr ? SetPoolAttribute(*state, attribute, value) : kErrorInvalidValue;
}

Status MemPoolGetAttribute(Pool pool, int attribute, void* value) {
  MemoryPool* state;
  Status status = ResolvePool(pool, &state);
  if (status != kSuccess) return status;
  return value != nullptr ? GetPoolAttribute(*state, attribute, value) : kErrorInvalidValue;
}

Status MemAllocFromPoolAsync(DevicePointer* pointer, std::size_t bytes, Pool pool, Stream stream) {
  MemoryPool* state;
  StreamState* stream_state;
  Status status = ResolvePool(pool, &state);
  if (status == kSuccess) status = ResolveStreamToUse(stream, &stream_state);
  if (status != kSuccess) return status;
  if (pointer == nullptr || bytes == 0) return kErrorInvalidValue;
  std::uint64_t address;
  if (IsCapturing(*stream_state)) {
    status = CaptureAllocation(*stream_state, bytes, &address);
  } else {
    status = CheckUnsafeCall();
    if (status == kSuccess) status = AllocateFromPool(*state, *stream_state, bytes, &address);
  }
  if (status == kSuccess) *pointer = address;
  return status;
}

Status MemFreeAsync(DevicePointer pointer, Stream stream) {
  StreamState* stream_state;
  Status status = ResolveStreamToUse(stream, &stream_state);
  if (status != kSuccess) return status;
  Device* device = FindDeviceByAddress(pointer);
  if (device == nullptr) return kErrorInvalidValue;
  if (IsCapturing(*stream_state)) return CaptureFree(*stream_state, pointer);
  status = CheckUnsafeCall();
  if (status != kSuccess) return status;
  bool gives_back;
  status = FreeGraphMemory(pointer, &gives_back);
  if (status != kErrorNotFound) return status == kSuccess && gives_back ? FreePlainAsync(*device, pointer, *stream_state) : status;
  status = FreeToPool(*device, pointer, stream_state);
  return status == kErrorInvalidValue ? FreePlainAsync(*device, pointer, *stream_state) : status;
}

Status MemGetAllocationGranularity(std::size_t* bytes, const AllocationProperties* properties, int option) {
  Device* device;
  Status status = ResolveProperties(properties, &device);
  if (status != kSuccess) return status;
  if (bytes == nullptr || (option != kGranularityMinimum && option != kGranularityRecommended)) return kErrorInvalidValue;
  *bytes = kVirtualGranularity;
  return kSuccess;
}

Status MemAddressReserve(DevicePointer* address, std::size_t bytes, std::size_t alignment, DevicePointer wanted, unsigned long long flags) {
  if (!IsInitialized()) return kErrorNotInitialized;
  if (address == nullptr || flags != 0) return kErrorInvalidValue;
  std::uint64_t reserved;
  Status status = ReserveAddresses(bytes, alignment, wanted, &reserved);
  if (status == kSuccess) *address = reserved;
  return status;
}

Status MemAddressFree(DevicePointer address, std::size_t bytes) {
  return IsInitialized() ? FreeAddresses(address, bytes) : kErrorNotInitialized;
}

Status MemCreate(MemoryHandle* memory, std::size_t bytes, const AllocationProperties* properties, unsigned long long flags) {
  Device* device;
  Status status = ResolveProperties(properties, &device);
  if (status != kSuccess) return status;
  if (memory == nullptr || flags != 0) return kErrorInvalidValue;
  status = device->Prepare();
  if (status != kSuccess) return status;
  BeforeAllocating(*device);
  const bool is_exportable = properties->handle_types != 0;
  return MakingRoom(*device, bytes, [&] { return CreateMemory(*device, bytes, is_exportable, memory); });
}

Status MemExportToShareableHandle(void* handle, MemoryHandle memory, int type, unsigned long long flags) {
  if (!IsInitialized()) return kErrorNotInitialized;
  if (handle == nullptr || type != kHandleTypePosixDescriptor || flags != 0) return kErrorInvalidValue;
  return ExportMemoryHandle(memory, static_cast<int*>(handle));
}

Status MemImportFromShareableHandle(MemoryHandle* memory, void* handle, int type) {
  Device* device;
  const Status status = RequireDevice(&device);
  if (status != kSuccess) return status;
  if (memory == nullptr || type != kHandleTypePosixDescriptor) return kErrorInvalidValue;
  const int descriptor = static_cast<int>(reinterpret_cast<std::uintptr_t>(handle));
  return MakingRoom(*device, kVirtualGranularity, [&] { return ImportMemoryHandle(*device, descriptor, memory); });
}

Status MemRelease(MemoryHandle memory) { return IsInitialized() ? ReleaseMemory(memory) : kErrorNotInitialized; }

Status MemMap(DevicePointer address, std::size_t bytes, std::size_t offset, MemoryHandle memory, unsigned long long flags) {
  if (!IsInitialized()) return kErrorNotInitialized;
  return offset == 0 && flags == 0 ? MapMemory(address, bytes, memory) : kErrorInvalidValue;
}

Status MemUnmap(DevicePointer address, std::size_t bytes) { return IsInitialized() ? UnmapMemory(address, bytes) : kErrorNotInitialized; }

// Access to read only is granted to all devices of a call, or to none.
Status MemSetAccess(DevicePointer address, std::size_t bytes, const AccessDescription* descriptions, std::size_t count) {
  if (!IsInitialized()) return kErrorNotInitialized;
  if (descriptions == nullptr || count == 0) return kErrorInvalidValue;
  std::uint32_t granted = 0;
  std::uint32_t taken = 0;
  bool is_read_only = false;
  for (std::size_t i = 0; i < count; ++i) {
    const auto [location, flags] = descriptions[i];
    if (location.type != kLocationDevice || (flags != kAccessNone && flags != kAccessRead && flags != kAccessReadWrite)) {
      return kErrorInvalidValue;
    }
    if (FindDevice(location.id) == nullptr) return kErrorInvalidDevice;
    if (flags != descriptions[0].flags && flags != kAccessNone && descriptions[0].flags != kAccessNone) return kErrorNotSupported;
    is_read_only = is_read_only || flags == kAccessRead;
    (flags == kAccessNone ? taken : granted) |= 1U << location.id;
  }
  return GrantAccess(address, bytes, granted, taken, is_read_only);
}

Status MemcpyAsync(DevicePointer destination, DevicePointer source, std::size_t bytes, Stream stream) {
  StreamState* state;
  Status status = ResolveStreamToUse(stream, &state);
  return status == kSuccess ? Copy(destination, source, bytes, *state, false) : status;
}

// Needs no access of one device to the other: the driver can copy through the host.
Status MemcpyPeerAsync(DevicePointer destination, Context destination_context, DevicePointer source, Context source_context,
                       std::size_t bytes, Stream stream) {
  StreamState* state;
  Status status = ResolveStreamOutsideCapture(stream, &state);
  if (status != kSuccess) return status;
  const Device* to = FindDeviceOf(destination_context);
  const Device* from = FindDeviceOf(source_context);
  if (to == nullptr || from == nullptr || !to->IsRetained() || !from->IsRetained()) return kErrorInvalidContext;
  if (bytes == 0) return kSuccess;
  if (!IsMemoryOf(*to, destination) || !IsMemoryOf(*from, source)) return kErrorInvalidValue;
  return Copy(destination, source, bytes, *state, true);
}

// The copies of a batch are in no order among each other: the last is made first.
Status MemcpyBatchAsync(DevicePointer* destinations, DevicePointer* sources, std::size_t* sizes, std::size_t count,
                        CopyAttributes* attributes, std::size_t* first_copies, std::size_t attribute_count, Stream stream) {
  StreamState* state;
  // A driver has been seen to leave the capture valid (rapidsai/rmm#2518), which is not documented.
  Status status = ResolveStreamOutsideCapture(stream, &state);
  if (status != kSuccess) return status;
  if (state->role == StreamRole::kLegacy) return kErrorInvalidValue;
  if (!IsBatch(destinations, sources, sizes, count, attributes, first_copies, attribute_count)) return kErrorInvalidValue;
  for (std::size_t i = 0; i < count; ++i) {
    status = CheckCopy(destinations[i], sources[i], sizes[i], *state);
    if (status != kSuccess) return status;
  }
  for (std::size_t i = count; i-- > 0 && status == kSuccess;) status = Copy(destinations[i], sources[i], sizes[i], *state, false);
  return status;
}

Status MemsetD8Async(DevicePointer destination, unsigned char value, std::size_t bytes, Stream stream) {
  StreamState* state;
  Status status = ResolveStreamToUse(stream, &state);
  return status == kSuccess ? Fill(destination, value, true, bytes, *state) : status;
}

Status MemsetD32Async(DevicePointer destination, unsigned value, std::size_t count, Stream stream) {
  StreamState* state;
  Status status = ResolveStreamToUse(stream, &state);
  return status == kSuccess ? Fill(destination, value, false, count, *state) : status;
}

Status MemAdvise(DevicePointer pointer, std::size_t bytes, int advice, MemLocation location) {
  return AdviseManaged(pointer, bytes, advice, location);
}

// The request is reported from now on, whether it has been served or not, as by the driver.
Status MemPrefetchAsync(DevicePointer pointer, std::size_t bytes, MemLocation location, unsigned flags, Stream stream) {
  StreamState* state;
  Status status = ResolveStreamOutsideCapture(stream, &state);
  if (status != kSuccess) return status;
  if (flags != 0) return kErrorInvalidValue;
  if (!HasConcurrentManagedAccess()) return kErrorInvalidDevice;
  status = NotePrefetch(pointer, bytes, location);
  if (status != kSuccess) return status;
  return Submit(*state, PrefetchWork{pointer, bytes, location.type == kLocationHost ? kHostPlace : location.id}, nullptr);
}

Status MemRangeGetAttribute(void* data, std::size_t data_size, int attribute, DevicePointer pointer, std::size_t bytes) {
  return QueryManaged(data, data_size, attribute, pointer, bytes);
}

Status PointerGetAttribute(void* data, int attribute, DevicePointer pointer) {
  if (data == nullptr) return kErrorInvalidValue;
  AddressRange range = Classify(pointer, 1, false);
  if (range.kind == AddressKind::kInvalid || range.kind == AddressKind::kPageable) return kErrorInvalidValue;
  switch (attribute) {
    case kPointerMemoryType:
      // Managed memory counts as device memory; is-managed distinguishes it.
      *static_cast<unsigned*>(data) = range.kind == AddressKind::kPinned ? kMemoryTypeHost : kMemoryTypeDevice;
      return kSuccess;
    case kPointerIsManaged:
      *static_cast<unsigned*>(data) = range.kind == AddressKind::kManaged ? 1 : 0;
      return kSuccess;
    case kPointerDeviceOrdinal:
      *static_cast<int*>(data) = range.device;
      return kSuccess;
    case kPointerIsLegacyIpcCapable: {
      DeviceAllocation found;
      *static_cast<int*>(data) = FindDeviceAllocation(pointer, &found) && found.is_plain ? 1 : 0;
      return kSuccess;
    }
    case kPointerPool: {
      DeviceAllocation found;
      *static_cast<Pool*>(data) = FindDeviceAllocation(pointer, &found) ? found.pool : nullptr;
      return kSuccess;
    }
    case kPointerAccessFlags: {
      Device* current;
      const Status status = RequireDevice(&current);
      if (status != kSuccess) return status;
      *static_cast<int*>(data) = HasAccess(*current, range) ? kAccessReadWrite : kAccessNone;
      return kSuccess;
    }
    case kPointerRangeStart: {
      DeviceAllocation found;
      HostRangeInfo info;
      const bool is_device = FindDeviceAllocation(pointer, &found);
      if (!is_device && !FindHostMemory(pointer, &info)) return kErrorNotSupported;
      *static_cast<DevicePointer*>(data) = is_device ? found.start : info.start;
      return kSuccess;
    }
    default:
      return kErrorInvalidValue;
  }
}

}  // namespace cistern::software::calls
