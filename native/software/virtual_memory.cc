#include "software/virtual_memory.h"

#include <atomic>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "platform/memory.h"
#include "platform/memory_file.h"
#include "software/device.h"
#include "software/settings.h"

namespace cistern::software {
namespace {

constexpr char kFileName[] = "cistern-memory";
constexpr std::uint64_t kMaxReservation = std::uint64_t{1} << 46;

// Lives as long as its handle or its mapping.
struct Memory {
  explicit Memory(Device& owner) : device(owner) {}
  ~Memory() { device.memory.Refund(bytes); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  Device& device;
  std::uint64_t bytes = 0;  // charged
  bool was_mapped = false;
  MemoryFile file;  // open if the memory is exportable or imported
};

struct Mapping {
  std::shared_ptr<Memory> memory;
  std::uint32_t accessors = 0;  // a bit for each device
  bool is_read_only = false;
};
using Mappings = std::map<std::uint64_t, Mapping>;  // by address

struct Reservation {
  std::uint64_t bytes;
  Mappings mappings;
};

struct AddressRegistry {
  std::mutex mutex;
  std::map<std::uint64_t, Reservation> reservations;  // by address
  std::map<MemoryHandle, std::shared_ptr<Memory>> memory;
  MemoryHandle last_handle = 0;
  // Contents that were moved out of the pages: of these addresses and bytes, one after the other.
  MemoryFile moved;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> moved_ranges;
};

// Lets Classify skip the registry if the process reserves nothing.
std::atomic<int> reservation_count{0};

AddressRegistry& TheAddresses() {
  static AddressRegistry* registry = new AddressRegistry;
  return *registry;
}

bool IsWhole(std::uint64_t number) { return number % kVirtualGranularity == 0; }

// The reservation that the range lies in, or the end. The registry's mutex must be held.
std::map<std::uint64_t, Reservation>::iterator Find(AddressRegistry& registry, std::uint64_t address, std::uint64_t bytes) {
  auto found = registry.reservations.upper_bound(address);
  if (found == registry.reservations.begin()) return registry.reservations.end();
  --found;
  const std::uint64_t offset = address - found->first;
  const bool is_within = offset < found->second.bytes && bytes <= found->second.bytes - offset;
  return is_within ? found : registry.reservations.end();
}

// The first of the mappings that tile the range exactly, or null. The registry's mutex must be
// held.
Mappings* FindTiled(AddressRegistry& registry, std::uint64_t address, std::uint64_t bytes) {
  const auto reservation = Find(registry, address, bytes);
  if (reservation == registry.reservations.end() || bytes == 0) return nullptr;
  Mappings& mappings = reservation->second.mappings;
  std::uint64_t next = address;
  for (auto mapping = mappings.find(address); next < address + bytes; ++mapping) {
    if (mapping == mappings.end() || mapping->first != next) return nullptr;
    next += mapping->second.memory->bytes;
  }
  return next == address + bytes ? &mappings : nullptr;
}

MemoryHandle AddMemory(std::shared_ptr<Memory> memory) {
  AddressRegistry& registry = TheAddresses();
  const std::lock_guard<std::mutex> guard(registry.mutex);
  registry.memory.emplace(++registry.last_handle, std::move(memory));
  return registry.last_handle;
}

bool SetProtection(std::uint64_t address, const Mapping& mapping, std::uint32_t accessors, bool is_read_only) {
  if (accessors == mapping.accessors && is_read_only == mapping.is_read_only) return true;
  const auto change = accessors == 0 ? DenyAccess : is_read_only ? AllowReading : AllowAccess;
  return change(address, mapping.memory->bytes);
}

}  // namespace

Status ReserveAddresses(std::uint64_t bytes, std::uint64_t alignment, std::uint64_t wanted, std::uint64_t* address) {
  if (bytes == 0 || !IsWhole(bytes) || (alignment & (alignment - 1)) != 0) return kErrorInvalidValue;
  if (bytes > kMaxReservation || alignment > kMaxReservation) return kErrorOutOfMemory;
  if (alignment < kVirtualGranularity) alignment = kVirtualGranularity;
  AddressRegistry& registry = TheAddresses();
  const std::lock_guard<std::mutex> guard(registry.mutex);
  void* range = wanted != 0 && wanted % alignment == 0 ? ReservePagesAt(wanted, bytes) : nullptr;
  if (range == nullptr) range = ReservePages(bytes, alignment);
  if (range == nullptr) return kErrorOutOfMemory;
  *address = reinterpret_cast<std::uintptr_t>(range);
  registry.reservations[*address] = {bytes, {}};
  reservation_count.fetch_add(1, std::memory_order_release);
  return kSuccess;
}

Status FreeAddresses(std::uint64_t address, std::uint64_t bytes) {
  AddressRegistry& registry = TheAddresses();
  const std::lock_guard<std::mutex> guard(registry.mutex);
  const auto found = registry.reservations.find(address);
  if (found == registry.reservations.end() || found->second.bytes != bytes) return kErrorInvalidValue;
  if (!found->second.mappings.empty()) return kErrorInvalidValue;
  UnmapPages(reinterpret_cast<void*>(address), bytes);
  registry.reservations.erase(found);
  reservation_count.fetch_sub(1, std::memory_order_release);
  return kSuccess;
}

Status CreateMemory(Device& device, std::uint64_t bytes, bool is_exportable, MemoryHandle* memory) {
  if (bytes == 0 || !IsWhole(bytes)) return kErrorInvalidValue;
  auto created = std::make_shared<Memory>(device);
  if (!device.memory.Charge(bytes)) return kErrorOutOfMemory;
  created->bytes = bytes;
  if (is_exportable) {
    created->file = CreateMemoryFile(kFileName, bytes);
    if (!created->file.IsOpen()) return kErrorOperatingSystem;
  }
  *memory = AddMemory(std::move(created));
  return kSuccess;
}

Status ExportMemoryHandle(MemoryHandle memory, int* descriptor) {
  AddressRegistry& registry = TheAddresses();
  const std::lock_guard<std::mutex> guard(registry.mutex);
  const auto found = registry.memory.find(memory);
  if (found == registry.memory.end() || !found->second->file.IsOpen()) return kErrorInvalidValue;
  *descriptor = found->second->file.Duplicate();
  return *descriptor >= 0 ? kSuccess : kErrorOperatingSystem;
}

Status ImportMemoryHandle(Device& device, int descriptor, MemoryHandle* memory) {
  auto imported = std::make_shared<Memory>(device);
  switch (AdoptMemoryFile(descriptor, kVirtualGranularity, &imported->file)) {
    case OpenResult::kOpened:
      break;
    case OpenResult::kForeign:
      return kErrorInvalidValue;
    default:
      return kErrorOperatingSystem;
  }
  const auto bytes = static_cast<std::uint64_t>(imported->file.Size());
  if (!IsWhole(bytes)) return kErrorInvalidValue;
  if (!device.memory.Charge(bytes)) return kErrorOutOfMemory;
  imported->bytes = bytes;
  *memory = AddMemory(std::move(imported));
  return kSuccess;
}

Status ReleaseMemory(MemoryHandle memory) {
  AddressRegistry& registry = TheAddresses();
  const std::lock_guard<std::mutex> guard(registry.mutex);
  return registry.memory.erase(memory) == 1 ? kSuccess : kErrorInvalidValue;
}

Status MapMemory(std::uint64_t address, std::uint64_t bytes, MemoryHandle memory) {
  AddressRegistry& registry = TheAddresses();
  const std::lock_guard<std::mutex> guard(registry.mutex);
  const auto found = registry.memory.find(memory);
  const auto reservation = Find(registry, address, bytes);
  if (found == registry.memory.end() || found->second->bytes != bytes || !IsWhole(address)) return kErrorInvalidValue;
  if (reservation == registry.reservations.end()) return kErrorInvalidValue;
  const MemoryFile& file = found->second->file;
  if (found->second->was_mapped && !file.IsOpen()) return kErrorNotSupported;
  Mappings& mappings = reservation->second.mappings;
  const auto next = mappings.lower_bound(address);
  if (next != mappings.end() && next->first < address + bytes) return kErrorInvalidValue;
  if (next != mappings.begin() && std::prev(next)->first + std::prev(next)->second.memory->bytes > address) return kErrorInvalidValue;
  if (file.IsOpen() && !(file.MapAt(address, 0, bytes) && DenyAccess(address, bytes))) return kErrorOutOfMemory;
  mappings[address].memory = found->second;
  found->second->was_mapped = true;
  return kSuccess;
}

Status GrantAccess(std::uint64_t address, std::uint64_t bytes, std::uint32_t granted, std::uint32_t taken, bool is_read_only) {
  AddressRegistry& registry = TheAddresses();
  const std::lock_guard<std::mutex> guard(registry.mutex);
  Mappings* mappings = FindTiled(registry, address, bytes);
  if (mappings == nullptr) return kErrorInvalidValue;
  const auto end = mappings->lower_bound(address + bytes);
  for (auto mapping = mappings->find(address); mapping != end; ++mapping) {
    const int owner = mapping->second.memory->device.ordinal;
    for (int device = 0; device < kMaxDevices; ++device) {
      if ((granted >> device & 1) != 0 && device != owner && !CanReach(device, owner)) return kErrorInvalidDevice;
    }
  }
  for (auto mapping = mappings->find(address); mapping != end; ++mapping) {
    Mapping& each = mapping->second;
    const std::uint32_t accessors = (each.accessors | granted) & ~taken;
    const bool will_be_read_only = granted != 0 ? is_read_only : each.is_read_only;
    if (!SetProtection(mapping->first, each, accessors, will_be_read_only)) return kErrorOutOfMemory;
    each.accessors = accessors;
    each.is_read_only = will_be_read_only;
  }
  return kSuccess;
}

Status UnmapMemory(std::uint64_t address, std::uint64_t bytes) {
  AddressRegistry& registry = TheAddresses();
  {
    const std::lock_guard<std::mutex> guard(registry.mutex);
    if (FindTiled(registry, address, bytes) == nullptr) return kErrorInvalidValue;
  }
  WaitToFree();
  const std::lock_guard<std::mutex> guard(registry.mutex);
  Mappings* mappings = FindTiled(registry, address, bytes);
  if (mappings == nullptr) return kErrorInvalidValue;
  if (!ResetPages(address, bytes)) return kErrorOutOfMemory;
  mappings->erase(mappings->find(address), mappings->lower_bound(address + bytes));
  return kSuccess;
}

bool IsVirtualMemoryShared() {
  AddressRegistry& registry = TheAddresses();
  const std::lock_guard<std::mutex> guard(registry.mutex);
  for (const auto& [start, reservation] : registry.reservations) {
    for (const auto& [address, mapping] : reservation.mappings) {
      if (mapping.memory->file.IsOpen()) return true;
    }
  }
  return false;
}

bool KeepVirtualMemory() {
  AddressRegistry& registry = TheAddresses();
  const std::lock_guard<std::mutex> guard(registry.mutex);
  std::uint64_t bytes = 0;
  for (const auto& [start, reservation] : registry.reservations) {
    for (const auto& [address, mapping] : reservation.mappings) bytes += mapping.memory->bytes;
  }
  if (bytes == 0) return true;
  registry.moved = CreateMemoryFile("cistern-checkpoint", bytes);
  if (!registry.moved.IsOpen()) return false;
  std::uint64_t offset = 0;
  for (const auto& [start, reservation] : registry.reservations) {
    for (const auto& [address, mapping] : reservation.mappings) {
      const std::uint64_t size = mapping.memory->bytes;
      if (!AllowAccess(address, size) || !registry.moved.WriteTouched(address, offset, size) || !ResetPages(address, size)) return false;
      registry.moved_ranges.emplace_back(address, size);
      offset += size;
    }
  }
  return true;
}

bool RestoreVirtualMemory() {
  AddressRegistry& registry = TheAddresses();
  const std::lock_guard<std::mutex> guard(registry.mutex);
  bool is_whole = true;
  std::uint64_t offset = 0;
  for (const auto& [address, bytes] : registry.moved_ranges) {
    is_whole = AllowAccess(address, bytes) && registry.moved.ReadWritten(offset, address, bytes) && is_whole;
    offset += bytes;
    const Mapping& mapping = Find(registry, address, bytes)->second.mappings.at(address);
    if (mapping.accessors == 0) DenyAccess(address, bytes);
  }
  registry.moved_ranges.clear();
  registry.moved = MemoryFile();
  return is_whole;
}

bool FindVirtualMemory(std::uint64_t address, std::uint64_t bytes, VirtualRangeInfo* info) {
  if (reservation_count.load(std::memory_order_acquire) == 0) return false;
  AddressRegistry& registry = TheAddresses();
  const std::lock_guard<std::mutex> guard(registry.mutex);
  const auto reservation = Find(registry, address, 1);
  if (reservation == registry.reservations.end()) return false;
  *info = {0, -1, false};
  const Mappings& mappings = reservation->second.mappings;
  auto mapping = mappings.upper_bound(address);
  if (mapping == mappings.begin()) return true;
  --mapping;
  if (address - mapping->first >= mapping->second.memory->bytes) return true;
  info->device = mapping->second.memory->device.ordinal;
  std::uint64_t next = mapping->first;
  std::uint32_t accessors = ~0U;
  for (; mapping != mappings.end() && mapping->first == next; ++mapping) {
    accessors &= mapping->second.accessors;
    info->is_read_only = info->is_read_only || mapping->second.is_read_only;
    next += mapping->second.memory->bytes;
    if (next - address >= bytes) {
      info->accessors = accessors;
      break;
    }
  }
  return true;
}

}  // namespace cistern::software
