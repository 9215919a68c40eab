#include "addon/virtual_memory.h"

#include <memory>

#include "addon/bindings.h"
#include "addon/host_functions.h"
#include "addon/orphans.h"

namespace cistern {
namespace {

using SpaceRef = std::shared_ptr<AddressSpace>;

Status FindSpace(Environment& environment, const Napi::CallbackInfo& info, SpaceRef* space, std::uint64_t* handle) {
  if (!ReadInteger(info[0], handle)) return kInvalidArgument;
  SpaceRef* found;
  const Status status = environment.address_spaces.Find(static_cast<double>(*handle), &found);
  if (status == kSuccess) *space = *found;
  return status;
}

AllocationProperties PropertiesOf(const Environment& environment, int device) {
  constexpr int kPinnedAllocation = 1;
  AllocationProperties properties{};
  properties.type = kPinnedAllocation;
  properties.location = {kLocationDevice, environment.DriverDevice(device)};
  return properties;
}

// cuMemUnmap takes whole mappings, and each page is one.
template <typename Unmap>
Status UnmapPages(const AddressSpace& space, AddressSpace::Range* range, Unmap&& unmap) {
  while (range->mapped_begin < range->mapped_end) {
    const Status status = unmap(range->mapped_begin, space.page_bytes);
    if (status != kSuccess) return status;
    range->mapped_begin += space.page_bytes;
  }
  return kSuccess;
}

Status CountedUnmap(Environment& environment, const AddressSpace& space, AddressSpace::Range* range) {
  return UnmapPages(space, range, [&](std::uint64_t address, std::uint64_t bytes) {
    return environment.Counted<Call::kMemUnmap>(DevicePointer{address}, static_cast<std::size_t>(bytes));
  });
}

void LeaveRange(const Environment& environment, const SpaceRef& space, std::uint64_t address, AddressSpace::Range* range) {
  LeaveOrphans(environment.backend, {{OrphanKind::kPages, space->device, address, space, range}});
}

// Creates the memory of a page. The mapping keeps it, so that unmapping frees it.
Status MapPage(Environment& environment, const AddressSpace& space, std::uint64_t address) {
  const AllocationProperties properties = PropertiesOf(environment, space.device);
  const std::size_t bytes = static_cast<std::size_t>(space.page_bytes);
  MemoryHandle memory = 0;
  Status status = environment.Counted<Call::kMemCreate>(&memory, bytes, &properties, 0ULL);
  if (status != kSuccess) return status;
  status = environment.Counted<Call::kMemMap>(DevicePointer{address}, bytes, std::size_t{0}, memory, 0ULL);
  const Status released = environment.Counted<Call::kMemRelease>(memory);
  if (released != kSuccess) LeaveOrphans(environment.backend, {{OrphanKind::kMemoryHandle, space.device, memory}});
  return status;
}

Status MapPages(Environment& environment, const AddressSpace& space, std::uint64_t address, std::uint64_t page_end,
                std::uint64_t* mapped_end) {
  for (*mapped_end = address; *mapped_end < page_end; *mapped_end += space.page_bytes) {
    const Status status = MapPage(environment, space, *mapped_end);
    if (status != kSuccess) return status;
  }
  const AccessDescription access{{kLocationDevice, environment.DriverDevice(space.device)}, kAccessReadWrite};
  const std::size_t bytes = static_cast<std::size_t>(page_end - address);
  return environment.Counted<Call::kMemSetAccess>(DevicePointer{address}, bytes, &access, std::size_t{1});
}

Status AllocateRange(Environment& environment, const SpaceRef& space, std::uint64_t bytes, std::uint64_t* address) {
  if (!space->Allocate(bytes, address)) return kOutOfAddresses;
  const std::uint64_t pages = (bytes + space->page_bytes - 1) / space->page_bytes;
  std::uint64_t mapped_end = *address;
  const Status status = MapPages(environment, *space, *address, *address + pages * space->page_bytes, &mapped_end);
  if (status == kSuccess) return status;
  AddressSpace::Range* range = space->BeginFree(*address, bytes);
  range->mapped_end = mapped_end;
  if (CountedUnmap(environment, *space, range) == kSuccess) {
    space->FinishFree(*address);
  } else {
    LeaveRange(environment, space, *address, range);
  }
  return status;
}

// Frees a range that no queued work uses. If the driver refuses before anything was unmapped, the
// range stays in use; if it refuses later, the rest is freed later.
Status FreeIdle(Environment& environment, const SpaceRef& space, std::uint64_t address, std::uint64_t bytes) {
  AddressSpace::Range* range = space->BeginFree(address, bytes);
  const Status status = CountedUnmap(environment, *space, range);
  if (status == kSuccess) {
    space->FinishFree(address);
    return status;
  }
  if (range->mapped_begin == address) {
    space->CancelFree(address, bytes);
    return status;
  }
  LeaveRange(environment, space, address, range);
  return kSuccess;
}

}  // namespace

void CompleteFree(const DriverTable& driver, AddressSpace& space, std::uint64_t address, AddressSpace::Range* range) {
  const Status status =
      UnmapPages(space, range, [&](std::uint64_t at, std::uint64_t bytes) { return driver.MemUnmap(at, static_cast<std::size_t>(bytes)); });
  if (status == kSuccess) space.FinishFree(address);
}

void FreeAddressSpace(const DriverTable& driver, const AddressSpace& space) {
  space.ForEachMapped([&](std::uint64_t begin, std::uint64_t end) {
    for (std::uint64_t page = begin; page < end; page += space.page_bytes) {
      driver.MemUnmap(page, static_cast<std::size_t>(space.page_bytes));
    }
  });
  driver.MemAddressFree(space.base, static_cast<std::size_t>(space.bytes));
}

Status ReserveAddresses(Environment& environment, const Napi::CallbackInfo& info) {
  int device;
  std::uint64_t bytes;
  if (!ReadInt(info[0], &device) || !ReadInteger(info[1], &bytes) || bytes == 0) return kInvalidArgument;
  if (environment.driver == nullptr) return kNoBackend;
  if (!environment.HasDevice(device)) return kInvalidArgument;
  environment.ReapOrphans();
  const ContextScope context(environment, device);
  if (context.status() != kSuccess) return context.status();

  int is_supported = 0;
  Status status = environment.Counted<Call::kDeviceGetAttribute>(&is_supported, int{kAttributeVirtualMemoryManagementSupported},
                                                                 environment.DriverDevice(device));
  if (status == kSuccess && is_supported == 0) status = kErrorNotSupported;
  if (status != kSuccess) return status;
  const AllocationProperties properties = PropertiesOf(environment, device);
  std::size_t page_bytes = 0;
  status = environment.Counted<Call::kMemGetAllocationGranularity>(&page_bytes, &properties, int{kGranularityRecommended});
  if (status != kSuccess) return status;
  if (page_bytes == 0) return kErrorUnknown;

  bytes = (bytes + page_bytes - 1) / page_bytes * page_bytes;
  DevicePointer base = 0;
  status = environment.WithReclaim([&] {
    return environment.Counted<Call::kMemAddressReserve>(&base, static_cast<std::size_t>(bytes), std::size_t{0}, DevicePointer{0}, 0ULL);
  });
  if (status != kSuccess) return status;
  std::uint64_t handle = 0;
  status = base > kMaxSafeInteger || bytes > kMaxSafeInteger - base ? kAddressTooLarge : kHostOutOfMemory;
  if (status == kHostOutOfMemory) handle = environment.address_spaces.Add(std::make_shared<AddressSpace>(device, base, bytes, page_bytes));
  if (handle == 0) {
    environment.Counted<Call::kMemAddressFree>(base, static_cast<std::size_t>(bytes));
    return status;
  }
  environment.Out(1, static_cast<double>(handle));
  environment.Out(2, static_cast<double>(page_bytes));
  environment.Out(3, static_cast<double>(bytes));
  return kSuccess;
}

Status FreeAddresses(Environment& environment, const Napi::CallbackInfo& info) {
  SpaceRef space;
  std::uint64_t handle;
  Status status = FindSpace(environment, info, &space, &handle);
  if (status != kSuccess) return status;
  const ContextScope context(environment, space->device);
  if (context.status() != kSuccess) return context.status();
  status = space->HasMapped() ? kErrorNotReady
                              : environment.Counted<Call::kMemAddressFree>(DevicePointer{space->base}, static_cast<std::size_t>(space->bytes));
  if (status != kSuccess) LeaveOrphans(environment.backend, {{OrphanKind::kAddressSpace, space->device, space->base, space}});
  environment.address_spaces.Remove(handle);
  environment.ReapOrphans();
  return kSuccess;
}

Status AllocateVirtual(Environment& environment, const Napi::CallbackInfo& info) {
  SpaceRef space;
  std::uint64_t handle, bytes, address;
  if (!ReadInteger(info[1], &bytes) || bytes == 0) return kInvalidArgument;
  Status status = FindSpace(environment, info, &space, &handle);
  if (status != kSuccess) return status;
  status = BeforeAllocating(environment);
  if (status != kSuccess) return status;
  const ContextScope context(environment, space->device);
  if (context.status() != kSuccess) return context.status();
  status = AllocateRange(environment, space, bytes, &address);
  if ((status == kErrorOutOfMemory || status == kOutOfAddresses) && environment.ReapOrphans()) {
    status = AllocateRange(environment, space, bytes, &address);
  }
  if (status == kSuccess) environment.Out(1, static_cast<double>(address));
  return status;
}

Status DeallocateVirtual(Environment& environment, const Napi::CallbackInfo& info) {
  SpaceRef space;
  std::uint64_t handle, address, bytes;
  if (!ReadInteger(info[1], &address) || !ReadInteger(info[2], &bytes)) return kInvalidArgument;
  Status status = FindSpace(environment, info, &space, &handle);
  if (status != kSuccess) return status;
  std::uint64_t right_bytes = 0;
  status = space->CheckFree(address, bytes, &right_bytes);
  if (status == kWrongSize) environment.Out(1, static_cast<double>(right_bytes));
  if (status != kSuccess) return status;
  // As in Deallocate of plain memory: the free waits for the device, unless that might never end.
  if (environment.running_host_functions > 0 || environment.unreleased_holds == 0) {
    status = BeforeWaitingForDevice(environment);
    if (status != kSuccess) return status;
  }
  environment.ReapOrphans();
  const std::unique_lock<std::mutex> no_stalls = stalls.Exclude();
  if (!no_stalls.owns_lock()) {
    LeaveRange(environment, space, address, space->BeginFree(address, bytes));
    return kSuccess;
  }
  const ContextScope context(environment, space->device);
  if (context.status() != kSuccess) return context.status();
  status = environment.Counted<Call::kCtxSynchronize>();
  return status == kSuccess ? FreeIdle(environment, space, address, bytes) : status;
}

}  // namespace cistern
