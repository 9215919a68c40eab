#include "addon/virtual_memory.h"

#include <memory>
#include <vector>

#include "addon/bindings.h"
#include "addon/hand_overs.h"
#include "addon/host_functions.h"
#include "addon/memory.h"
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

// Takes whole pieces: cuMemUnmap does.
Status UnmapPiece(Environment& environment, bool is_counted, AddressSpace& space, const AddressSpace::Extent& piece) {
  const auto [begin, end] = piece;
  const Status status = environment.CountedIf<Call::kMemUnmap>(is_counted, DevicePointer{begin}, static_cast<std::size_t>(end - begin));
  if (status == kSuccess) space.RemovePiece(begin);
  return status;
}

// Unmaps what a free that has begun leaves without use, and ends it unless the driver refuses. `has_unmapped` may be null.
Status FinishFree(Environment& environment, bool is_counted, AddressSpace& space, std::uint64_t address, bool* has_unmapped) {
  AddressSpace::Extent piece;
  while (space.NextToUnmap(address, &piece)) {
    const Status status = UnmapPiece(environment, is_counted, space, piece);
    if (status != kSuccess) return status;
    if (has_unmapped != nullptr) *has_unmapped = true;
  }
  return kSuccess;
}

// Leaves a free that has begun to a later call.
void LeaveRange(const Environment& environment, const SpaceRef& space, std::uint64_t address) {
  LeaveOrphans(environment, {{OrphanKind::kPages, space->device, address, 0, space}});
}

// Memory for pages, which ends with this object unless it is mapped: a mapping keeps it, and
// unmapping then frees it.
class NewPages {
 public:
  NewPages(Environment& environment, AddressSpace& space) : environment_(environment), space_(space) {}
  ~NewPages() {
    for (const auto& [memory, bytes] : pieces_) {
      if (environment_.Counted<Call::kMemRelease>(memory) == kSuccess) continue;
      Guarded([&] {
        LeaveOrphans(environment_, {{OrphanKind::kMemoryHandle, space_.device, memory}});
        return Status{kSuccess};
      });
    }
  }
  NewPages(const NewPages&) = delete;
  NewPages& operator=(const NewPages&) = delete;

  // Each piece takes the driver the same time, however large it is, but only whole ones can be returned: up to an eighth of all.
  Status Create(std::uint64_t count) {
    const AllocationProperties properties = PropertiesOf(environment_, space_.device);
    std::uint64_t pages = 1;
    while (2 * pages <= count / 8) pages *= 2;
    for (; count > 0; count -= pages) {
      while (pages > count) pages /= 2;
      const auto bytes = static_cast<std::size_t>(pages * space_.page_bytes);
      pieces_.emplace_back(0, bytes);
      const Status status = environment_.Counted<Call::kMemCreate>(&pieces_.back().first, bytes, &properties, 0ULL);
      if (status == kSuccess) continue;
      pieces_.pop_back();
      return status;
    }
    return kSuccess;
  }

  // Maps the pieces one after the other. `end` is where mapping stopped.
  Status Map(std::uint64_t address, std::uint64_t* end) {
    *end = address;
    for (const auto& [memory, bytes] : pieces_) {
      space_.AddPiece(*end, *end + bytes);
      const Status status = environment_.Counted<Call::kMemMap>(DevicePointer{*end}, bytes, std::size_t{0}, memory, 0ULL);
      if (status != kSuccess) {
        space_.RemovePiece(*end);
        return status;
      }
      *end += bytes;
    }
    return kSuccess;
  }

 private:
  Environment& environment_;
  AddressSpace& space_;
  std::vector<std::pair<MemoryHandle, std::size_t>> pieces_;
};

// Makes mapped pages accessible.
Status GiveAccess(Environment& environment, int device, std::uint64_t begin, std::uint64_t end) {
  const std::vector<AccessDescription> access = AccessTo(environment, device, kAccessReadWrite);
  return environment.Counted<Call::kMemSetAccess>(DevicePointer{begin}, static_cast<std::size_t>(end - begin), access.data(),
                                                  access.size());
}

Status AllocateRange(Environment& environment, const SpaceRef& space, std::uint64_t bytes, std::uint64_t* address) {
  NewPages pages(environment, *space);
  if (bytes > space->bytes) return kOutOfAddresses;
  Status status = pages.Create((bytes + space->page_bytes - 1) / space->page_bytes);
  if (status != kSuccess) return status;
  if (!space->Allocate(bytes, address)) return kOutOfAddresses;
  std::uint64_t mapped_end;
  status = pages.Map(*address, &mapped_end);
  if (status == kSuccess) status = GiveAccess(environment, space->device, *address, mapped_end);
  if (status == kSuccess) return status;
  space->BeginFree(*address, bytes);
  // As any free, unmapping may wait for the device.
  const std::unique_lock<std::mutex> no_stalls = stalls.Exclude();
  if (!no_stalls.owns_lock() || FinishFree(environment, true, *space, *address, nullptr) != kSuccess) {
    LeaveRange(environment, space, *address);
  }
  return status;
}

// Frees a range that no queued work uses. If the driver refuses before anything was unmapped, the
// range stays in use; if it refuses later, the rest is freed later.
Status FreeIdle(Environment& environment, const SpaceRef& space, std::uint64_t address, std::uint64_t bytes) {
  space->BeginFree(address, bytes);
  bool has_unmapped = false;
  const Status status = FinishFree(environment, true, *space, address, &has_unmapped);
  if (status == kSuccess) return status;
  if (!has_unmapped) {
    space->CancelFree(address, bytes);
    return status;
  }
  LeaveRange(environment, space, address);
  return kSuccess;
}

// Before pages of live blocks are unmapped, or read for the last time: waits for everything that is queued
// on the devices. kErrorNotReady if something stalls a stream, so that the wait might last forever; kInUse
// if another environment has a part of the memory. Nothing can stall while the lock lives.
Status WaitBeforeSleep(Environment& environment, const AddressSpace& space, std::unique_lock<std::mutex>* no_stalls) {
  if (environment.running_host_functions > 0) return kErrorNotPermitted;
  if (environment.unreleased_holds > 0) return kErrorNotReady;
  Status status = BeforeWaitingForDevice(environment);
  if (status != kSuccess) return status;
  *no_stalls = stalls.Exclude();
  if (!no_stalls->owns_lock()) return kErrorNotReady;
  if (IsHandedOver(environment.backend, space.base, space.bytes)) return kInUse;
  return SynchronizeDevices(environment);
}

// Unmaps pieces of live blocks, whose addresses stay theirs.
Status UnmapPieces(Environment& environment, AddressSpace& space, const std::vector<AddressSpace::Extent>& pieces) {
  for (const AddressSpace::Extent& piece : pieces) {
    const Status status = UnmapPiece(environment, true, space, piece);
    if (status != kSuccess) return status;
  }
  return kSuccess;
}

// Maps new memory where pages of live blocks are absent. If that fails, the pages are absent again, but for
// those that the driver refuses to unmap.
Status MapAbsent(Environment& environment, AddressSpace& space) {
  const std::vector<AddressSpace::Extent> absent = space.PagesOfBlocks(true);
  std::vector<std::unique_ptr<NewPages>> all;
  for (const auto& [begin, end] : absent) {
    all.push_back(std::make_unique<NewPages>(environment, space));
    const Status status = all.back()->Create((end - begin) / space.page_bytes);
    if (status != kSuccess) return status;
  }
  Status status = kSuccess;
  std::vector<AddressSpace::Extent> mapped;
  for (std::size_t index = 0; index < absent.size() && status == kSuccess; ++index) {
    mapped.push_back(absent[index]);
    status = all[index]->Map(mapped.back().first, &mapped.back().second);
  }
  // Of all, since an earlier call may have left some without.
  for (const auto& [begin, end] : space.PagesOfBlocks(false)) {
    if (status == kSuccess) status = GiveAccess(environment, space.device, begin, end);
  }
  if (status == kSuccess) return status;
  // As any free, unmapping may wait for the device. Nothing uses the pages.
  const std::unique_lock<std::mutex> no_stalls = stalls.Exclude();
  if (no_stalls.owns_lock()) {
    for (const AddressSpace::Extent& run : mapped) UnmapPieces(environment, space, space.PiecesWithin(run));
  }
  return status;
}

}  // namespace

AllocationProperties PropertiesOf(const Environment& environment, int device) {
  AllocationProperties properties{};
  properties.type = kAllocationTypePinned;
  properties.location = {kLocationDevice, environment.DriverDevice(device)};
  return properties;
}

bool CompleteFree(Environment& environment, bool is_counted, AddressSpace& space, std::uint64_t address) {
  return FinishFree(environment, is_counted, space, address, nullptr) == kSuccess;
}

bool FreeAddressSpace(Environment& environment, bool is_counted, AddressSpace& space) {
  bool is_free = true;
  space.FreeAll([&](std::uint64_t address) { is_free = CompleteFree(environment, is_counted, space, address) && is_free; });
  if (!is_free) return false;
  return environment.CountedIf<Call::kMemAddressFree>(is_counted, DevicePointer{space.base}, static_cast<std::size_t>(space.bytes)) ==
         kSuccess;
}

Status ReserveAddresses(Environment& environment, const Napi::CallbackInfo& info) {
  int device;
  std::uint64_t bytes;
  if (!ReadInt(info[0], &device) || !ReadInteger(info[1], &bytes) || bytes == 0) return kInvalidArgument;
  if (environment.driver == nullptr) return kNoBackend;
  if (!environment.HasDevice(device)) return kInvalidArgument;
  environment.ReapOrphans();
  const RelaxedContextScope context(environment, device);
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
    return environment.Counted<Call::kMemAddressReserve>(&base, static_cast<std::size_t>(bytes), page_bytes, DevicePointer{0}, 0ULL);
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
  environment.Out(4, static_cast<double>(base));
  return kSuccess;
}

Status FreeAddresses(Environment& environment, const Napi::CallbackInfo& info) {
  SpaceRef space;
  std::uint64_t handle;
  Status status = FindSpace(environment, info, &space, &handle);
  if (status != kSuccess) return status;
  const RelaxedContextScope context(environment, space->device);
  if (context.status() != kSuccess) return context.status();
  status = space->HasMapped()
               ? Status{kErrorNotReady}
               : environment.Counted<Call::kMemAddressFree>(DevicePointer{space->base}, static_cast<std::size_t>(space->bytes));
  if (status != kSuccess) LeaveOrphans(environment, {{OrphanKind::kAddressSpace, space->device, space->base, space->bytes, space}});
  environment.address_spaces.Remove(handle);
  environment.ReapOrphans();
  return kSuccess;
}

Status LiveExtents(Environment& environment, const Napi::CallbackInfo& info, Napi::Value* result) {
  SpaceRef space;
  std::uint64_t handle;
  const Status status = FindSpace(environment, info, &space, &handle);
  if (status != kSuccess) return status;
  const std::vector<AddressSpace::Extent> extents = space->LiveExtents();
  Napi::Float64Array array = Napi::Float64Array::New(info.Env(), 2 * extents.size());
  for (std::size_t i = 0; i < extents.size(); i++) {
    array[2 * i] = static_cast<double>(extents[i].first);
    array[2 * i + 1] = static_cast<double>(extents[i].second - extents[i].first);
  }
  *result = array;
  return kSuccess;
}

Status AbsentBytes(Environment& environment, const Napi::CallbackInfo& info) {
  SpaceRef space;
  std::uint64_t handle;
  const Status status = FindSpace(environment, info, &space, &handle);
  if (status != kSuccess) return status;
  environment.Out(1, static_cast<double>(space->AbsentBytes()));
  environment.Out(2, static_cast<double>(space->KeptBytes()));
  return kSuccess;
}

Status AwaitBeforeSleep(Environment& environment, const Napi::CallbackInfo& info) {
  SpaceRef space;
  std::uint64_t handle;
  const Status status = FindSpace(environment, info, &space, &handle);
  std::unique_lock<std::mutex> no_stalls;
  return status == kSuccess ? WaitBeforeSleep(environment, *space, &no_stalls) : status;
}

Status UnmapVirtual(Environment& environment, const Napi::CallbackInfo& info) {
  SpaceRef space;
  std::uint64_t handle;
  Status status = FindSpace(environment, info, &space, &handle);
  if (status != kSuccess) return status;
  std::unique_lock<std::mutex> no_stalls;
  status = WaitBeforeSleep(environment, *space, &no_stalls);
  if (status != kSuccess) return status;
  const RelaxedContextScope context(environment, space->device);
  return context.status() == kSuccess ? UnmapPieces(environment, *space, space->PiecesOfBlocks()) : context.status();
}

Status MapVirtual(Environment& environment, const Napi::CallbackInfo& info) {
  SpaceRef space;
  std::uint64_t handle;
  Status status = FindSpace(environment, info, &space, &handle);
  if (status == kSuccess) status = BeforeAllocating(environment);
  if (status != kSuccess) return status;
  const RelaxedContextScope context(environment, space->device);
  if (context.status() != kSuccess) return context.status();
  return environment.WithReclaim([&] { return MapAbsent(environment, *space); });
}

Status AllocateVirtual(Environment& environment, const Napi::CallbackInfo& info) {
  SpaceRef space;
  std::uint64_t handle, bytes, address;
  if (!ReadInteger(info[1], &bytes) || bytes == 0) return kInvalidArgument;
  Status status = FindSpace(environment, info, &space, &handle);
  if (status != kSuccess) return status;
  status = BeforeAllocating(environment);
  if (status != kSuccess) return status;
  const RelaxedContextScope context(environment, space->device);
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
  double stream;
  if (!ReadInteger(info[1], &address) || !ReadInteger(info[2], &bytes) || !ReadNumber(info[3], &stream)) return kInvalidArgument;
  Status status = FindSpace(environment, info, &space, &handle);
  if (status != kSuccess) return status;
  std::uint64_t right_bytes = 0;
  status = space->CheckFree(address, bytes, &right_bytes);
  if (status == kWrongSize) environment.Out(1, static_cast<double>(right_bytes));
  if (status != kSuccess) return status;
  // As in Deallocate of plain memory: an unmapping may wait for the device.
  if (environment.running_host_functions > 0 || environment.unreleased_holds == 0) {
    status = BeforeWaitingForDevice(environment);
    if (status != kSuccess) return status;
  }
  environment.ReapOrphans();
  const std::unique_lock<std::mutex> no_stalls = stalls.Exclude();
  if (!no_stalls.owns_lock()) {
    space->BeginFree(address, bytes);
    LeaveRange(environment, space, address);
    return kSuccess;
  }
  const RelaxedModeScope relaxed(environment.driver);
  status = WaitBeforeFree(environment, stream);
  if (status != kSuccess) return status;
  const ContextScope context(environment, space->device);
  status = context.status();
  return status == kSuccess ? FreeIdle(environment, space, address, bytes) : status;
}

}  // namespace cistern
