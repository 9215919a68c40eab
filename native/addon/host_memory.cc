#include "addon/host_memory.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <mutex>
#include <utility>

#include "platform/lasting.h"
#include "platform/memory.h"

namespace cistern {
namespace {

// Process-wide, since one worker may copy from memory that another one allocated.
struct HostRanges {
  std::mutex mutex;
  std::map<std::uint64_t, std::uint64_t> bytes_by_address;
  std::multimap<std::uint64_t, std::uint64_t> lent;  // may overlap
};

// Never destroyed: worker threads may still run while the process's static objects are destroyed.
HostRanges& AllRanges() {
  static Lasting<HostRanges> ranges;
  return *ranges;
}

std::uint64_t Address(const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer); }

}  // namespace

void* AllocateHostMemory(std::uint64_t bytes, std::uint64_t alignment) {
  void* pointer = AllocateAligned(bytes, alignment);
  if (pointer == nullptr) return nullptr;
  HostRanges& ranges = AllRanges();
  try {
    const std::lock_guard<std::mutex> lock(ranges.mutex);
    ranges.bytes_by_address[Address(pointer)] = bytes;
  } catch (...) {
    FreeAligned(pointer);
    return nullptr;
  }
  return pointer;
}

void FreeHostMemory(void* pointer) {
  HostRanges& ranges = AllRanges();
  {
    const std::lock_guard<std::mutex> lock(ranges.mutex);
    ranges.bytes_by_address.erase(Address(pointer));
  }
  FreeAligned(pointer);
}

bool InHostMemory(std::uint64_t address, std::uint64_t bytes) {
  HostRanges& ranges = AllRanges();
  const std::lock_guard<std::mutex> lock(ranges.mutex);
  const auto contains = [=](const std::pair<const std::uint64_t, std::uint64_t>& range) {
    const std::uint64_t offset = address - range.first;
    return offset <= range.second && bytes <= range.second - offset;
  };
  const auto range = ranges.bytes_by_address.upper_bound(address);
  if (range != ranges.bytes_by_address.begin() && contains(*std::prev(range))) return true;
  return std::any_of(ranges.lent.begin(), ranges.lent.upper_bound(address), contains);
}

void LendHostMemory(std::uint64_t address, std::uint64_t bytes) {
  HostRanges& ranges = AllRanges();
  const std::lock_guard<std::mutex> lock(ranges.mutex);
  ranges.lent.emplace(address, bytes);
}

void TakeBackHostMemory(std::uint64_t address, std::uint64_t bytes) {
  HostRanges& ranges = AllRanges();
  const std::lock_guard<std::mutex> lock(ranges.mutex);
  const auto [begin, end] = ranges.lent.equal_range(address);
  const auto range = std::find_if(begin, end, [=](const auto& each) { return each.second == bytes; });
  if (range != end) ranges.lent.erase(range);
}

}  // namespace cistern
