#include "software/host_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <mutex>

#include "software/device.h"
#include "software/settings.h"

namespace cistern::software {
namespace {

constexpr std::uint64_t kPage = 4096;
constexpr int kHostId = -1;
constexpr int kNoId = -2;

struct Advice {
  bool is_read_mostly = false;
  int preferred = kNoId;
  int last_prefetch = kNoId;
  unsigned accessed_by = 0;  // bit 0 the host, bit n + 1 device n
};

using Runs = std::map<std::uint64_t, Advice>;  // by first page

struct Range {
  HostMemoryKind kind;
  int device;
  std::uint64_t bytes;  // whole pages
  Runs runs;            // managed only
};

struct Registry {
  std::mutex mutex;
  std::map<std::uint64_t, Range> ranges;  // by address
  std::uint64_t bytes = 0;
};

Registry& TheRegistry() {
  static Registry* registry = new Registry;
  return *registry;
}

// The registry's mutex must be held.
std::map<std::uint64_t, Range>::iterator Find(Registry& registry, std::uint64_t address) {
  auto found = registry.ranges.upper_bound(address);
  if (found == registry.ranges.begin()) return registry.ranges.end();
  --found;
  return address - found->first < found->second.bytes ? found : registry.ranges.end();
}

// Makes a run start at the page.
Runs::iterator Split(Range& range, std::uint64_t page) {
  if (page * kPage >= range.bytes) return range.runs.end();
  auto run = std::prev(range.runs.upper_bound(page));
  return run->first == page ? run : range.runs.emplace(page, run->second).first;
}

// Calls change(Advice&) on every run of the pages that [address, address + bytes) touches.
template <typename Change>
Status ChangeRuns(std::uint64_t address, std::uint64_t bytes, Change change) {
  Registry& registry = TheRegistry();
  std::lock_guard<std::mutex> guard(registry.mutex);
  auto found = Find(registry, address);
  if (found == registry.ranges.end() || found->second.kind != HostMemoryKind::kManaged || bytes == 0) return kErrorInvalidValue;
  std::uint64_t offset = address - found->first;
  if (bytes > found->second.bytes - offset) return kErrorInvalidValue;
  Range& range = found->second;
  auto first = Split(range, offset / kPage);
  auto last = Split(range, (offset + bytes + kPage - 1) / kPage);
  for (auto run = first; run != last; ++run) change(run->second);
  return kSuccess;
}

// The location's id, or kNoId if there is no such place.
int IdOf(MemLocation location) {
  if (location.type == kLocationHost) return kHostId;
  return location.type == kLocationDevice && FindDevice(location.id) != nullptr ? location.id : kNoId;
}

template <typename Value>
int CommonId(Runs::const_iterator first, Runs::const_iterator last, Value value) {
  int common = value(first->second);
  for (; first != last; ++first) {
    if (value(first->second) != common) return kNoId;
  }
  return common;
}

}  // namespace

Status AllocateHostMemory(HostMemoryKind kind, int device, std::uint64_t bytes, std::uint64_t* address) {
  if (bytes > MachineMemory()) return kErrorOutOfMemory;
  bytes = (bytes + kPage - 1) / kPage * kPage;
  Registry& registry = TheRegistry();
  std::lock_guard<std::mutex> guard(registry.mutex);
  if (bytes > MachineMemory() - registry.bytes) return kErrorOutOfMemory;
  void* mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) return kErrorOutOfMemory;
  *address = reinterpret_cast<std::uint64_t>(mapped);
  Range& range = registry.ranges[*address];
  range = {kind, device, bytes, {}};
  if (kind == HostMemoryKind::kManaged) range.runs[0] = {};
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
  for (int i = 0; i < DeviceCount(); ++i) FindDevice(i)->Synchronize();
  std::lock_guard<std::mutex> guard(registry.mutex);
  auto found = find();
  if (found == registry.ranges.end()) return kErrorInvalidValue;
  munmap(reinterpret_cast<void*>(address), found->second.bytes);
  registry.bytes -= found->second.bytes;
  registry.ranges.erase(found);
  return kSuccess;
}

bool FindHostMemory(std::uint64_t address, HostRangeInfo* info) {
  Registry& registry = TheRegistry();
  std::lock_guard<std::mutex> guard(registry.mutex);
  auto found = Find(registry, address);
  if (found == registry.ranges.end()) return false;
  *info = {found->second.kind, found->second.device, found->first, found->first + found->second.bytes - address};
  return true;
}

Status AdviseManaged(std::uint64_t address, std::uint64_t bytes, int advice, MemLocation location) {
  bool needs_location = advice == kAdviseSetPreferredLocation || advice == kAdviseSetAccessedBy || advice == kAdviseUnsetAccessedBy;
  int id = IdOf(location);
  if (advice < kAdviseSetReadMostly || advice > kAdviseUnsetAccessedBy || (needs_location && id == kNoId)) return kErrorInvalidValue;
  unsigned bit = needs_location ? 1u << (id + 1) : 0;
  return ChangeRuns(address, bytes, [=](Advice& run) {
    switch (advice) {
      case kAdviseSetReadMostly:
      case kAdviseUnsetReadMostly:
        run.is_read_mostly = advice == kAdviseSetReadMostly;
        break;
      case kAdviseSetPreferredLocation:
      case kAdviseUnsetPreferredLocation:
        run.preferred = advice == kAdviseSetPreferredLocation ? id : kNoId;
        break;
      case kAdviseSetAccessedBy:
        run.accessed_by |= bit;
        break;
      default:
        run.accessed_by &= ~bit;
    }
  });
}

Status NotePrefetch(std::uint64_t address, std::uint64_t bytes, MemLocation location) {
  int id = IdOf(location);
  if (id == kNoId) return kErrorInvalidValue;
  return ChangeRuns(address, bytes, [id](Advice& run) { run.last_prefetch = id; });
}

Status QueryManaged(void* data, std::size_t data_size, int attribute, std::uint64_t address, std::uint64_t bytes) {
  if (data == nullptr || data_size == 0 || data_size % sizeof(int) != 0) return kErrorInvalidValue;
  if (attribute != kRangeAccessedBy && data_size != sizeof(int)) return kErrorInvalidValue;
  Registry& registry = TheRegistry();
  std::lock_guard<std::mutex> guard(registry.mutex);
  auto found = Find(registry, address);
  if (found == registry.ranges.end() || found->second.kind != HostMemoryKind::kManaged || bytes == 0) return kErrorInvalidValue;
  const Range& range = found->second;
  std::uint64_t offset = address - found->first;
  if (bytes > range.bytes - offset) return kErrorInvalidValue;
  auto first = std::prev(range.runs.upper_bound(offset / kPage));
  auto last = range.runs.upper_bound((offset + bytes - 1) / kPage);
  int* values = static_cast<int*>(data);
  switch (attribute) {
    case kRangeReadMostly:
      *values = CommonId(first, last, [](const Advice& run) { return run.is_read_mostly ? 1 : 0; }) == 1 ? 1 : 0;
      return kSuccess;
    case kRangePreferredLocation:
      *values = CommonId(first, last, [](const Advice& run) { return run.preferred; });
      return kSuccess;
    case kRangeLastPrefetchLocation:
      *values = CommonId(first, last, [](const Advice& run) { return run.last_prefetch; });
      return kSuccess;
    case kRangeAccessedBy: {
      unsigned common = ~0u;
      for (; first != last; ++first) common &= first->second.accessed_by;
      int* end = values + data_size / sizeof(int);
      for (int id = kHostId; id < kMaxDevices && values != end; ++id) {
        if ((common >> (id + 1) & 1) != 0) *values++ = id;
      }
      std::fill(values, end, kNoId);
      return kSuccess;
    }
    default:
      return kErrorInvalidValue;
  }
}

}  // namespace cistern::software
