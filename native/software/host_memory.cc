#include "software/host_memory.h"

#include <map>
#include <mutex>

#include "platform/memory.h"
#include "platform/system.h"
#include "software/device.h"
#include "software/managed_memory.h"

namespace cistern::software {
namespace {

constexpr std::uint64_t kHostPage = 4096;

struct HostRange {
  HostMemoryKind kind;
  int device;
  std::uint64_t bytes;  // whole pages, unless it is the program's own
};

struct Registry {
  std::mutex mutex;
  std::map<std::uint64_t, HostRange> ranges;  // by address
  std::uint64_t bytes = 0;
};

Registry& TheRegistry() {
  static Registry* registry = new Registry;
  return *registry;
}

// The registry's mutex must be held.
std::map<std::uint64_t, HostRange>::iterator Find(Registry& registry, std::uint64_t address) {
  auto found = registry.ranges.upper_bound(address);
  if (found == registry.ranges.begin()) return registry.ranges.end();
  --found;
  return address - found->first < found->second.bytes ? found : registry.ranges.end();
}

}  // namespace

Status AllocateHostMemory(HostMemoryKind kind, int device, std::uint64_t bytes, std::uint64_t* address) {
  if (bytes > MachineMemory()) return kErrorOutOfMemory;
  bytes = (bytes + kHostPage - 1) / kHostPage * kHostPage;
  Registry& registry = TheRegistry();
  std::lock_guard<std::mutex> guard(registry.mutex);
  if (bytes > MachineMemory() - registry.bytes) return kErrorOutOfMemory;
  void* mapped = MapPages(bytes);
  if (mapped == nullptr) return kErrorOutOfMemory;
  *address = reinterpret_cast<std::uint64_t>(mapped);
  HostRange& range = registry.ranges[*address];
  range = {kind, device, bytes};
  if (kind == HostMemoryKind::kManaged) AddManagedRange(*address, bytes);
  registry.bytes += bytes;
  return kSuccess;
}

Status RegisterHostMemory(int device, std::uint64_t address, std::uint64_t bytes) {
  if (address + bytes < address) return kErrorInvalidValue;
  Registry& registry = TheRegistry();
  std::lock_guard<std::mutex> guard(registry.mutex);
  const auto next = registry.ranges.lower_bound(address);
  const bool overlaps =
      (next != registry.ranges.end() && next->first < address + bytes) || Find(registry, address) != registry.ranges.end();
  if (overlaps) return kErrorHostMemoryAlreadyRegistered;
  if (bytes > MachineMemory() - registry.bytes) return kErrorOutOfMemory;
  registry.ranges[address] = {HostMemoryKind::kRegistered, device, bytes};
  registry.bytes += bytes;
  return kSuccess;
}

Status FreeHostMemory(HostMemoryKind kind, std::uint64_t address) {
  Registry& registry = TheRegistry();
  auto find = [&registry, kind, address] {
    auto found = registry.ranges.find(address);
    return found != registry.ranges.end() && found->second.kind == kind ? found : registry.ranges.end();
  };
  {
    std::lock_guard<std::mutex> guard(registry.mutex);
    if (find() == registry.ranges.end()) return kErrorInvalidValue;
  }
  WaitToFree();
  std::lock_guard<std::mutex> guard(registry.mutex);
  auto found = find();
  if (found == registry.ranges.end()) return kErrorInvalidValue;
  if (kind == HostMemoryKind::kManaged) RemoveManagedRange(address);
  if (kind != HostMemoryKind::kRegistered) UnmapPages(reinterpret_cast<void*>(address), found->second.bytes);
  registry.bytes -= found->second.bytes;
  registry.ranges.erase(found);
  return kSuccess;
}

bool ChargeHostMemory(std::uint64_t bytes) {
  Registry& registry = TheRegistry();
  std::lock_guard<std::mutex> guard(registry.mutex);
  if (bytes > MachineMemory() - registry.bytes) return false;
  registry.bytes += bytes;
  return true;
}

void RefundHostMemory(std::uint64_t bytes) {
  Registry& registry = TheRegistry();
  std::lock_guard<std::mutex> guard(registry.mutex);
  registry.bytes -= bytes;
}

bool FindHostMemory(std::uint64_t address, HostRangeInfo* info) {
  Registry& registry = TheRegistry();
  std::lock_guard<std::mutex> guard(registry.mutex);
  auto found = Find(registry, address);
  if (found == registry.ranges.end()) return false;
  *info = {found->second.kind, found->second.device, found->first, found->first + found->second.bytes - address};
  return true;
}

}  // namespace cistern::software
