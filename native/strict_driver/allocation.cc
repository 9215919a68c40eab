#include "strict_driver/allocation.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>

#include "strict_driver/ipc.h"
#include "strict_driver/pool.h"
#include "strict_driver/report.h"
#include "strict_driver/settings.h"
#include "strict_driver/virtual_memory.h"

namespace cistern::strict {
namespace {

constexpr std::size_t kPage = 4096;
constexpr std::size_t kLargest = std::size_t{1} << 44;
constexpr int kGarbage = 0xa5;

bool IsInDeviceMemory(const Allocation& allocation) { return allocation.kind == Kind::kDevice || allocation.kind == Kind::kPool; }

}  // namespace

void FillWithGarbage(char* at, std::size_t bytes) {
  if (!settings().fills_new_memory) return;
  const std::size_t piece = std::min(bytes, kPage);
  std::memset(at, kGarbage, piece);
  std::memset(at + bytes - piece, kGarbage, piece);
}

AllocationRef FindAllocation(std::uintptr_t address) {
  const auto after = driver.allocations.upper_bound(address);
  if (after == driver.allocations.begin()) return nullptr;
  const AllocationRef& allocation = std::prev(after)->second;
  return allocation->Contains(address, 1) ? allocation : nullptr;
}

bool HasAccess(DeviceOrdinal device, const Allocation& allocation) {
  if (allocation.kind == Kind::kManaged) return true;
  if (allocation.kind == Kind::kPinned) return allocation.pool == nullptr || allocation.pool->accessors.count(device) != 0;
  if (allocation.kind == Kind::kVirtual) return allocation.accessors.count(device) != 0;
  if (allocation.device == device) return true;
  if (allocation.IsOfGraph()) return allocation.accessors.count(device) != 0;
  return (allocation.pool != nullptr ? allocation.pool->accessors.count(device)
                                     : driver.ContextOf(device)->peers.count(allocation.device)) != 0;
}

char* HostView(const Allocation& allocation, std::uintptr_t address) {
  if (allocation.kind == Kind::kVirtual) return VirtualHostView(address);
  if (allocation.kind == Kind::kImported) return allocation.foreign_view + (address - allocation.start);
  return IsInDeviceMemory(allocation) ? driver.MemoryOf(allocation.device).HostView(address) : reinterpret_cast<char*>(address);
}

AllocationRef Publish(std::uintptr_t start, std::size_t bytes, std::size_t reserved, Kind kind, DeviceOrdinal device) {
  auto allocation = std::make_shared<Allocation>();
  allocation->start = start;
  allocation->bytes = bytes;
  allocation->reserved = reserved;
  allocation->kind = kind;
  allocation->device = device;
  driver.allocations[start] = allocation;
  return allocation;
}

Status AllocateDeviceMemory(DeviceOrdinal device, std::size_t bytes, DevicePointer* pointer) {
  DeviceMemory& memory = driver.MemoryOf(device);
  std::size_t offset;
  std::size_t reserved;
  while (!memory.Take(bytes, &offset, &reserved)) {
    if (ReclaimFromPools(device) == 0) return kErrorOutOfMemory;
  }
  const std::uintptr_t start = memory.start() + offset;
  FillWithGarbage(memory.HostView(start), bytes);
  Publish(start, bytes, reserved, Kind::kDevice, device);
  *pointer = start;
  return kSuccess;
}

Status AllocateHostVisible(Kind kind, DeviceOrdinal device, std::size_t bytes, std::uintptr_t* pointer) {
  if (bytes > kLargest) return kErrorOutOfMemory;
  const std::size_t reserved = RoundUp(bytes, kPage);
  void* memory = mmap(nullptr, reserved, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return kErrorOutOfMemory;
  FillWithGarbage(static_cast<char*>(memory), bytes);
  *pointer = reinterpret_cast<std::uintptr_t>(memory);
  const AllocationRef allocation = Publish(*pointer, bytes, reserved, kind, device);
  if (kind == Kind::kManaged) allocation->pages.resize(reserved / kPage);
  return kSuccess;
}

void Release(const AllocationRef& allocation) {
  driver.allocations.erase(allocation->start);
  allocation->is_freed = true;
  if (allocation->slot != 0) {
    EndSlot(allocation->slot);
    if (IsOpenElsewhere(allocation->slot))
      Report("MISUSE", "the memory %#lx is freed while another process has it open", allocation->start);
  }
  if (allocation->kind == Kind::kDevice) {
    DeviceMemory& memory = driver.MemoryOf(allocation->device);
    memory.Give(allocation->start - memory.start(), allocation->bytes, allocation->reserved);
  } else if (!allocation->is_registered) {
    munmap(reinterpret_cast<void*>(allocation->start), allocation->reserved);
  }
}

void CheckLife(const AllocationRef& allocation, const char* use) {
  if (allocation == nullptr) return;
  if (!allocation->is_allocated) Report("ORDER", "%s runs before the allocation of its memory %#lx has", use, allocation->start);
  if (allocation->is_freed) Report("ORDER", "%s runs after the free of its memory %#lx", use, allocation->start);
}

}  // namespace cistern::strict
