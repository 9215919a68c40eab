#include "strict_driver/virtual_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>

#include "strict_driver/allocation.h"
#include "strict_driver/call.h"
#include "strict_driver/calls.h"
#include "strict_driver/capture.h"
#include "strict_driver/pool.h"
#include "strict_driver/report.h"
#include "strict_driver/settings.h"
#include "strict_driver/wait.h"

namespace cistern::strict {
namespace {

constexpr int kReserveFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
constexpr int kOnlyThere = 0x100000;  // MAP_FIXED_NOREPLACE, which headers may lack
constexpr int kSizeSeals = F_SEAL_SHRINK | F_SEAL_GROW;

// What cuMemCreate made, until its handle is released and nothing is mapped.
struct Memory {
  DeviceOrdinal device = 0;
  std::size_t offset = 0;
  std::size_t bytes = 0;
  int file = -1;  // of memory that can be exported, or was imported
  bool is_filled = false;
  ~Memory() {
    if (file >= 0) {
      close(file);
      driver.MemoryOf(device).Uncharge(bytes);
    } else if (bytes != 0) {
      driver.MemoryOf(device).GiveGranules(offset, bytes);
    }
  }
  void MapView(char* at) const {
    if (file < 0) return driver.MemoryOf(device).MapView(at, offset, bytes);
    if (mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE | MAP_FIXED, file, 0) == MAP_FAILED) std::abort();
  }
};

struct Mapping {
  std::shared_ptr<Memory> memory;
  AllocationRef allocation;
};

struct Reservation {
  char* view = nullptr;
  std::size_t bytes = 0;
  std::map<std::uintptr_t, Mapping> mappings;
};

std::map<std::uintptr_t, Reservation>& reservations = *new std::map<std::uintptr_t, Reservation>;
std::map<MemoryHandle, std::shared_ptr<Memory>>& handles = *new std::map<MemoryHandle, std::shared_ptr<Memory>>;
MemoryHandle last_handle = 0x100;

// Takes memory of its own for a file, or of another process. The file is closed if that fails.
Status AddWithFile(DeviceOrdinal device, int file, std::size_t bytes, bool is_filled, MemoryHandle* memory) {
  while (!driver.MemoryOf(device).TryCharge(bytes)) {
    if (ReclaimFromPools(device) != 0) continue;
    close(file);
    return kErrorOutOfMemory;
  }
  auto created = std::make_shared<Memory>();
  created->device = device;
  created->bytes = bytes;
  created->file = file;
  created->is_filled = is_filled;
  *memory = ++last_handle;
  handles[*memory] = std::move(created);
  return kSuccess;
}

// The reservation that a range lies in, or the end.
std::map<std::uintptr_t, Reservation>::iterator FindReservation(std::uintptr_t address, std::size_t bytes) {
  const auto after = reservations.upper_bound(address);
  if (after == reservations.begin()) return reservations.end();
  const auto found = std::prev(after);
  const std::size_t offset = address - found->first;
  return offset < found->second.bytes && bytes <= found->second.bytes - offset ? found : reservations.end();
}

void* Reserve(std::size_t bytes) {
  void* range = mmap(nullptr, bytes, PROT_NONE, kReserveFlags, -1, 0);
  return range == MAP_FAILED ? nullptr : range;
}

// At the wanted address if that is free; 0 stands for any.
char* ReserveAligned(std::size_t bytes, std::uintptr_t wanted) {
  if (wanted != 0 && wanted % kGranule == 0) {
    void* at = reinterpret_cast<void*>(wanted);
    void* range = mmap(at, bytes, PROT_NONE, kReserveFlags | kOnlyThere, -1, 0);
    if (range == at) return static_cast<char*>(range);
    if (range != MAP_FAILED) munmap(range, bytes);
  }
  void* range = Reserve(bytes + kGranule);
  if (range == nullptr) return nullptr;
  const std::uintptr_t begin = reinterpret_cast<std::uintptr_t>(range);
  const std::uintptr_t aligned = RoundUp(begin, kGranule);
  if (aligned != begin) munmap(range, aligned - begin);
  if (begin + kGranule != aligned) munmap(reinterpret_cast<void*>(aligned + bytes), begin + kGranule - aligned);
  return reinterpret_cast<char*>(aligned);
}

Status CheckProperties(const AllocationProperties* properties) {
  if (properties == nullptr || properties->type != kAllocationTypePinned) return kErrorInvalidValue;
  if (properties->location.type != kLocationDevice) return kErrorInvalidValue;
  if (properties->location.id < 0 || properties->location.id >= settings().devices) return kErrorInvalidDevice;
  if (!settings().has_virtual_memory) return kErrorNotSupported;
  const bool is_known = properties->handle_types == 0 || properties->handle_types == kHandleTypePosixDescriptor;
  return is_known && (properties->handle_types == 0 || settings().exports_memory) ? kSuccess : kErrorNotSupported;
}

}  // namespace

bool HasSharedMappings() {
  for (const auto& [start, reservation] : reservations) {
    for (const auto& [address, mapping] : reservation.mappings) {
      if (mapping.memory->file >= 0) return true;
    }
  }
  return false;
}

bool IsReserved(std::uintptr_t address) { return FindReservation(address, 1) != reservations.end(); }

char* VirtualHostView(std::uintptr_t address) {
  const auto reservation = FindReservation(address, 1);
  return reservation->second.view + (address - reservation->first);
}

std::vector<AllocationRef> FindMappings(std::uintptr_t address, std::size_t bytes, bool will_write) {
  std::vector<AllocationRef> found;
  std::uintptr_t next = address;
  while (next < address + bytes) {
    const AllocationRef allocation = FindAllocation(next);
    if (allocation == nullptr || allocation->kind != Kind::kVirtual || allocation->accessors.empty()) return {};
    if (will_write && allocation->is_read_only) return {};
    next = allocation->start + allocation->bytes;
    found.push_back(allocation);
  }
  return FindReservation(address, bytes) != reservations.end() ? found : std::vector<AllocationRef>();
}

namespace calls {

Status MemGetAllocationGranularity(std::size_t* bytes, const AllocationProperties* properties, int option) {
  STRICT_DRIVER_ENTER("cuMemGetAllocationGranularity", kInit);
  const Status status = CheckProperties(properties);
  if (status != kSuccess) return status;
  if (bytes == nullptr || (option != kGranularityMinimum && option != kGranularityRecommended)) return kErrorInvalidValue;
  *bytes = kGranule;
  return kSuccess;
}

Status MemAddressReserve(DevicePointer* address, std::size_t bytes, std::size_t alignment, DevicePointer wanted, unsigned long long flags) {
  STRICT_DRIVER_ENTER_UNSAFE("cuMemAddressReserve", kInit, CheckPotentiallyUnsafe);
  if (address == nullptr || bytes == 0 || bytes % kGranule != 0 || flags != 0) return kErrorInvalidValue;
  if ((alignment & (alignment - 1)) != 0) return kErrorInvalidValue;
  if (alignment > kGranule) {
    Report("NOTE", "an alignment of %zu bytes is not modelled", alignment);
    return kErrorNotSupported;
  }
  char* base = ReserveAligned(bytes, wanted);
  char* view = base == nullptr ? nullptr : static_cast<char*>(Reserve(bytes));
  if (view == nullptr) {
    if (base != nullptr) munmap(base, bytes);
    return kErrorOutOfMemory;
  }
  *address = reinterpret_cast<std::uintptr_t>(base);
  reservations[*address] = {view, bytes, {}};
  return kSuccess;
}

Status MemAddressFree(DevicePointer address, std::size_t bytes) {
  STRICT_DRIVER_ENTER_UNSAFE("cuMemAddressFree", kInit, CheckPotentiallyUnsafe);
  const auto found = reservations.find(address);
  if (found == reservations.end() || found->second.bytes != bytes || !found->second.mappings.empty()) {
    Report("MISUSE", "cuMemAddressFree of %zu bytes at %#llx, which are not a reservation without mappings", bytes, address);
    return kErrorInvalidValue;
  }
  munmap(reinterpret_cast<void*>(address), bytes);
  munmap(found->second.view, bytes);
  reservations.erase(found);
  return kSuccess;
}

Status MemCreate(MemoryHandle* memory, std::size_t bytes, const AllocationProperties* properties, unsigned long long flags) {
  STRICT_DRIVER_ENTER_UNSAFE("cuMemCreate", kInit, CheckPotentiallyUnsafe);
  Status status = CheckProperties(properties);
  if (status != kSuccess) return status;
  if (memory == nullptr || bytes == 0 || bytes % kGranule != 0 || flags != 0) return kErrorInvalidValue;
  const DeviceOrdinal device = properties->location.id;
  if (settings().allocation_waits) status = WaitForContext(call.lock, driver.ContextOf(device), call.function, true);
  if (status != kSuccess) return status;
  if (properties->handle_types != 0) {
    const int file = memfd_create("strict-driver-memory", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (file < 0 || ftruncate(file, static_cast<off_t>(bytes)) != 0 || fcntl(file, F_ADD_SEALS, kSizeSeals) != 0) std::abort();
    return AddWithFile(device, file, bytes, false, memory);
  }
  auto created = std::make_shared<Memory>();
  created->device = device;
  while (!driver.MemoryOf(device).TakeGranules(bytes, &created->offset)) {
    if (ReclaimFromPools(device) == 0) return kErrorOutOfMemory;
  }
  created->bytes = bytes;
  *memory = ++last_handle;
  handles[*memory] = std::move(created);
  return kSuccess;
}

Status MemRelease(MemoryHandle memory) {
  STRICT_DRIVER_ENTER_UNSAFE("cuMemRelease", kInit, CheckPotentiallyUnsafe);
  if (handles.erase(memory) == 1) return kSuccess;
  Report("MISUSE", "cuMemRelease of %#llx, which is not a handle", memory);
  return kErrorInvalidValue;
}

Status MemExportToShareableHandle(void* handle, MemoryHandle memory, int type, unsigned long long flags) {
  STRICT_DRIVER_ENTER_UNSAFE("cuMemExportToShareableHandle", kInit, CheckPotentiallyUnsafe);
  const auto found = handles.find(memory);
  if (handle == nullptr || found == handles.end() || found->second->file < 0 || type != kHandleTypePosixDescriptor || flags != 0) {
    Report("MISUSE", "cuMemExportToShareableHandle of %#llx, which is not a handle of memory that can be exported as a descriptor", memory);
    return kErrorInvalidValue;
  }
  const int descriptor = fcntl(found->second->file, F_DUPFD_CLOEXEC, 0);
  if (descriptor < 0) return kErrorOperatingSystem;
  *static_cast<int*>(handle) = descriptor;
  return kSuccess;
}

// The descriptor stays the caller's. Only files that a driver has exported have their size sealed.
Status MemImportFromShareableHandle(MemoryHandle* memory, void* handle, int type) {
  STRICT_DRIVER_ENTER_UNSAFE("cuMemImportFromShareableHandle", kContext, CheckPotentiallyUnsafe);
  if (memory == nullptr || type != kHandleTypePosixDescriptor) return kErrorInvalidValue;
  const int descriptor = static_cast<int>(reinterpret_cast<std::uintptr_t>(handle));
  const int seals = fcntl(descriptor, F_GET_SEALS);
  struct stat status;
  if (seals < 0 || (seals & kSizeSeals) != kSizeSeals || fstat(descriptor, &status) != 0) return kErrorInvalidValue;
  const auto bytes = static_cast<std::size_t>(status.st_size);
  if (bytes == 0 || bytes % kGranule != 0) return kErrorInvalidValue;
  const int file = fcntl(descriptor, F_DUPFD_CLOEXEC, 0);
  if (file < 0) return kErrorOperatingSystem;
  return AddWithFile(thread.current->device, file, bytes, true, memory);
}

Status MemMap(DevicePointer address, std::size_t bytes, std::size_t offset, MemoryHandle memory, unsigned long long flags) {
  STRICT_DRIVER_ENTER_UNSAFE("cuMemMap", kInit, CheckPotentiallyUnsafe);
  const auto reservation = FindReservation(address, bytes);
  const auto handle = handles.find(memory);
  const bool is_valid = reservation != reservations.end() && handle != handles.end() && address % kGranule == 0 && offset == 0 &&
                        bytes == handle->second->bytes && flags == 0;
  if (is_valid) {
    const auto next = reservation->second.mappings.lower_bound(address);
    const bool overlaps_next = next != reservation->second.mappings.end() && next->first < address + bytes;
    if (!overlaps_next && FindAllocation(address) == nullptr) {
      handle->second->MapView(reservation->second.view + (address - reservation->first));
      if (!handle->second->is_filled) FillWithGarbage(VirtualHostView(address), bytes);
      if (handle->second->file >= 0) handle->second->is_filled = true;
      const AllocationRef allocation = Publish(address, bytes, bytes, Kind::kVirtual, handle->second->device);
      reservation->second.mappings[address] = {handle->second, allocation};
      return kSuccess;
    }
  }
  Report("MISUSE", "cuMemMap of %zu bytes at %#llx, which are not free, reserved addresses for the memory", bytes, address);
  return kErrorInvalidValue;
}

// Waits for nothing: the caller must know that the memory is not in use.
Status MemUnmap(DevicePointer address, std::size_t bytes) {
  STRICT_DRIVER_ENTER_UNSAFE("cuMemUnmap", kInit, CheckPotentiallyUnsafe);
  const auto reservation = FindReservation(address, bytes);
  if (reservation == reservations.end() || reservation->second.mappings.count(address) == 0) {
    Report("MISUSE", "cuMemUnmap of %#llx, where nothing is mapped", address);
    return kErrorInvalidValue;
  }
  std::map<std::uintptr_t, Mapping>& mappings = reservation->second.mappings;
  const auto first = mappings.find(address);
  const auto end = mappings.lower_bound(address + bytes);
  std::uintptr_t next = address;
  for (auto mapping = first; mapping != end && mapping->first == next; ++mapping) next += mapping->second.allocation->bytes;
  if (next != address + bytes) {
    Report("MISUSE", "cuMemUnmap of %zu bytes at %#llx, which are not whole mappings", bytes, address);
    return kErrorInvalidValue;
  }
  mmap(VirtualHostView(address), bytes, PROT_NONE, kReserveFlags | MAP_FIXED, -1, 0);
  for (auto mapping = first; mapping != end; ++mapping) {
    driver.allocations.erase(mapping->first);
    mapping->second.allocation->is_freed = true;
  }
  mappings.erase(first, end);
  return kSuccess;
}

Status MemSetAccess(DevicePointer address, std::size_t bytes, const AccessDescription* descriptions, std::size_t count) {
  STRICT_DRIVER_ENTER_UNSAFE("cuMemSetAccess", kInit, CheckPotentiallyUnsafe);
  if (descriptions == nullptr || count == 0) return kErrorInvalidValue;
  for (std::size_t i = 0; i < count; ++i) {
    if (descriptions[i].location.type != kLocationDevice ||
        (descriptions[i].flags == kAccessRead) != (descriptions[0].flags == kAccessRead)) {
      Report("NOTE", "access of others than devices, and reading by some that others may write, is not modelled");
      return kErrorNotSupported;
    }
    if (descriptions[i].location.id < 0 || descriptions[i].location.id >= settings().devices) return kErrorInvalidDevice;
  }
  std::vector<AllocationRef> mapped;
  std::uintptr_t next = address;
  while (next < address + bytes) {
    const AllocationRef allocation = FindAllocation(next);
    if (allocation == nullptr || allocation->kind != Kind::kVirtual || allocation->start != next) break;
    next += allocation->bytes;
    mapped.push_back(allocation);
  }
  if (mapped.empty() || next != address + bytes) {
    Report("MISUSE", "cuMemSetAccess for %zu bytes at %#llx, which are not whole mappings", bytes, address);
    return kErrorInvalidValue;
  }
  for (const AllocationRef& allocation : mapped) {
    for (std::size_t i = 0; i < count; ++i) {
      const DeviceOrdinal device = descriptions[i].location.id;
      if (descriptions[i].flags != kAccessNone && device != allocation->device && !CanReach(device, allocation->device)) {
        Report("MISUSE", "cuMemSetAccess for device %d, which cannot access memory of device %d", device, allocation->device);
        return kErrorInvalidDevice;
      }
    }
  }
  for (const AllocationRef& allocation : mapped) {
    for (std::size_t i = 0; i < count; ++i) {
      const DeviceOrdinal device = descriptions[i].location.id;
      if (descriptions[i].flags != kAccessNone) {
        allocation->accessors.insert(device);
        allocation->is_read_only = descriptions[i].flags == kAccessRead;
      } else {
        allocation->accessors.erase(device);
      }
    }
  }
  return kSuccess;
}

}  // namespace calls
}  // namespace cistern::strict
