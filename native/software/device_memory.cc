#include "software/device_memory.h"

#include <algorithm>
#include <mutex>

#include "platform/memory.h"
#include "platform/system.h"

namespace cistern::software {
namespace {

constexpr std::uint64_t kRangePerTotal = 4;
constexpr std::uint64_t kMinRange = std::uint64_t{1} << 30;
// Large allocations of CUDA have at least this alignment.
constexpr std::uint64_t kRangeAlignment = std::uint64_t{2} << 20;
constexpr std::uint64_t kMaxBlocks = std::uint64_t{1} << 27;

std::uint64_t RoundUp(std::uint64_t value, std::uint64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

}  // namespace

Status DeviceMemory::Reserve() {
  // Sized for a later, larger total too, up to what this machine could provide.
  std::uint64_t range = std::max({kRangePerTotal * total_, kRangePerTotal * MachineMemory(), kMinRange});
  for (range = RoundUp(range, kMinRange); range >= total_; range /= 2) {
    if (TryReserve(range)) return kSuccess;
  }
  return kErrorOutOfMemory;
}

bool DeviceMemory::TryReserve(std::uint64_t range_bytes) {
  std::uint64_t granules = range_bytes / kGranule;
  if (!starting_at_.Allocate(granules) || !plain_starts_.Allocate(granules) || !block_table_.Allocate(std::min(granules + 2, kMaxBlocks))) {
    return false;
  }
  void* range = MapSparsePages(range_bytes, kRangeAlignment);
  if (range == nullptr) return false;
  base_ = reinterpret_cast<std::uint64_t>(range);
  source_.Attach(&block_table_);
  std::uint32_t whole = source_.Take();
  Block& block = blocks()[whole];
  block.start = 0;
  block.size = granules;
  block.previous = 0;
  block.next = 0;
  block.state = BlockState::kFree;
  free_.Insert(blocks(), whole);
  range_bytes_.store(range_bytes, std::memory_order_release);
  return true;
}

// The lock must be held.
std::uint32_t DeviceMemory::TakeBlock(std::uint64_t bytes, bool is_paged, Status* status) {
  *status = kErrorOutOfMemory;
  if (bytes > (is_paged ? MachineMemory() : total_)) return 0;
  std::uint64_t granules = (bytes + kGranule - 1) / kGranule;
  if (!is_paged && granules * kGranule > Left()) return 0;
  std::uint32_t id = free_.FindBestFit(blocks(), granules);
  if (id == 0) return 0;
  std::uint32_t taken = id;
  if (blocks()[id].size > granules) {
    taken = source_.Take();
    if (taken == 0) return 0;
    free_.Remove(blocks(), id);
    CutFront(blocks(), id, taken, granules);
    free_.Insert(blocks(), id);
  } else {
    free_.Remove(blocks(), id);
  }
  Block& block = blocks()[taken];
  block.state = BlockState::kUsed;
  block.is_touched = false;
  block.is_paged = is_paged;
  if (!is_paged) used_ += granules * kGranule;
  used_end_ = std::max(used_end_, block.start + granules);
  *status = kSuccess;
  return taken;
}

// The lock must be held.
void DeviceMemory::ReturnBlock(std::uint32_t id) {
  Block* all = blocks();
  std::uint64_t start = all[id].start;
  std::uint64_t end = start + all[id].size;
  bool is_touched = all[id].is_touched || shared_pages_.Any();
  if (!all[id].is_paged) used_ -= all[id].size * kGranule;
  all[id].state = BlockState::kFree;
  std::uint32_t next = all[id].next;
  if (next != 0 && all[next].state == BlockState::kFree) {
    free_.Remove(all, next);
    AbsorbNext(all, id);
    source_.Give(next);
  }
  std::uint32_t previous = all[id].previous;
  if (previous != 0 && all[previous].state == BlockState::kFree) {
    free_.Remove(all, previous);
    AbsorbNext(all, previous);
    source_.Give(id);
    id = previous;
  }
  if (is_touched) {
    // The pages at both ends were shared with neighbours; those that are now wholly free can be
    // released too.
    std::uint64_t page = PageBytes();
    std::uint64_t free_from = RoundUp(AddressOf(all[id].start), page);
    std::uint64_t free_to = AddressOf(all[id].start + all[id].size) / page * page;
    std::uint64_t first_page = AddressOf(start) / page * page;
    std::uint64_t last_page = AddressOf(end) / page * page;
    if (AddressOf(start) % page != 0 && first_page >= free_from && first_page + page <= free_to) {
      ReleasePages(first_page, first_page + page);
    }
    if (AddressOf(end) % page != 0 && last_page != first_page && last_page >= free_from && last_page + page <= free_to) {
      ReleasePages(last_page, last_page + page);
    }
  }
  free_.Insert(all, id);
}

void DeviceMemory::ReleasePages(std::uint64_t first, std::uint64_t last) {
  if (first >= last) return;
  DiscardPages(first, last - first);
  if (shared_pages_.Any()) shared_pages_.Unshare(first, last);
}

// The lock must not be held, and nobody else may use the block yet: for a large range the kernel
// takes a while.
void DeviceMemory::ReleaseInnerPages(const Block& block) {
  std::uint64_t page = PageBytes();
  ReleasePages(RoundUp(AddressOf(block.start), page), AddressOf(block.start + block.size) / page * page);
}

Status DeviceMemory::Allocate(std::uint64_t bytes, std::uint64_t* address) {
  std::lock_guard<SpinLock> guard(lock_);
  Status status;
  std::uint32_t id = TakeBlock(bytes, false, &status);
  if (id == 0) return status;
  Block& block = blocks()[id];
  block.owner.store(0, std::memory_order_relaxed);
  StartingAt(block.start).store(id, std::memory_order_release);
  plain_starts_.Set(block.start);
  *address = AddressOf(block.start);
  return kSuccess;
}

Status DeviceMemory::BeginFree(std::uint64_t address, std::uint32_t* id) {
  if (!Contains(address) || address % kGranule != 0) return kErrorInvalidValue;
  std::uint64_t granule = GranuleOf(address);
  std::lock_guard<SpinLock> guard(lock_);
  *id = StartingAt(granule).load(std::memory_order_acquire);
  if (*id == 0) return kErrorInvalidValue;
  Block& block = blocks()[*id];
  if (block.owner.load(std::memory_order_relaxed) != 0 || block.state != BlockState::kUsed) return kErrorInvalidValue;
  block.state = BlockState::kFreeing;
  StartingAt(granule).store(0, std::memory_order_release);
  plain_starts_.Clear(granule);
  return kSuccess;
}

void DeviceMemory::FinishFree(std::uint32_t id) {
  if (blocks()[id].is_touched || shared_pages_.Any()) ReleaseInnerPages(blocks()[id]);
  std::lock_guard<SpinLock> guard(lock_);
  ReturnBlock(id);
}

Status DeviceMemory::AllocateSegment(std::uint64_t bytes, SegmentName name, bool is_managed, std::uint32_t* id) {
  std::lock_guard<SpinLock> guard(lock_);
  Status status;
  *id = TakeBlock(bytes, is_managed, &status);
  if (*id == 0) return status;
  const Block& block = blocks()[*id];
  segments_[block.start] = {block.size, name, is_managed};
  return kSuccess;
}

void DeviceMemory::FreeSegment(std::uint32_t id, bool is_touched) {
  Block& block = blocks()[id];
  block.is_touched = is_touched;
  if (is_touched || shared_pages_.Any()) ReleaseInnerPages(block);
  std::lock_guard<SpinLock> guard(lock_);
  segments_.erase(block.start);
  ReturnBlock(id);
}

Status DeviceMemory::ShareAllocation(std::uint64_t address, std::uint64_t* bytes) {
  if (!Contains(address) || address % kGranule != 0) return kErrorInvalidValue;
  std::uint32_t id;
  {
    std::lock_guard<SpinLock> guard(lock_);
    id = StartingAt(GranuleOf(address)).load(std::memory_order_acquire);
    if (id == 0) return kErrorInvalidValue;
    const Block& block = blocks()[id];
    if (block.owner.load(std::memory_order_relaxed) != 0 || block.state != BlockState::kUsed) return kErrorInvalidValue;
    *bytes = block.size * kGranule;
  }
  return Share(blocks()[id]);
}

Status DeviceMemory::ShareSegment(std::uint32_t id) { return Share(blocks()[id]); }

// Whole pages: those at the ends may be shared with neighbours.
Status DeviceMemory::Share(const Block& block) {
  const std::uint64_t page = PageBytes();
  Status status = OpenSharedPages();
  if (status == kSuccess) {
    status = shared_pages_.Share(AddressOf(block.start) / page * page, RoundUp(AddressOf(block.start + block.size), page));
  }
  return status;
}

// Calls action(address, bytes) for the whole pages between the segments of host memory, until it returns false.
template <typename Action>
bool DeviceMemory::ForEachMovable(Action&& action) {
  const std::uint64_t page = PageBytes();
  std::uint64_t begin = base_;
  const auto move_to = [&](std::uint64_t end) {
    const std::uint64_t from = RoundUp(begin, page);
    const std::uint64_t to = end / page * page;
    return from >= to || action(from, to - from);
  };
  for (const auto& [start, segment] : segments_) {
    if (!segment.is_of_host) continue;
    if (!move_to(AddressOf(start))) return false;
    begin = AddressOf(start + segment.granules);
  }
  return move_to(RoundUp(AddressOf(used_end_), page));
}

bool DeviceMemory::MoveOut() {
  const std::lock_guard<SpinLock> guard(lock_);
  if (used_end_ == 0) return true;
  moved_ = CreateMemoryFile("cistern-checkpoint", RoundUp(used_end_ * kGranule, PageBytes()));
  return moved_.IsOpen() && ForEachMovable([&](std::uint64_t address, std::uint64_t bytes) {
           if (!moved_.WriteTouched(address, address - base_, bytes)) return false;
           DiscardPages(address, bytes);
           return true;
         });
}

bool DeviceMemory::MoveIn() {
  const std::lock_guard<SpinLock> guard(lock_);
  if (!moved_.IsOpen()) return true;
  const bool is_whole = moved_.ReadWritten(0, base_, static_cast<std::uint64_t>(moved_.Size()));
  moved_ = MemoryFile();
  return is_whole;
}

bool DeviceMemory::Charge(std::uint64_t bytes) {
  std::lock_guard<SpinLock> guard(lock_);
  if (bytes > Left()) return false;
  used_ += bytes;
  return true;
}

void DeviceMemory::Refund(std::uint64_t bytes) {
  std::lock_guard<SpinLock> guard(lock_);
  used_ -= bytes;
}

bool DeviceMemory::TakePage(std::uint64_t bytes) {
  std::lock_guard<SpinLock> guard(lock_);
  if (bytes > Left()) return false;
  paged_ += bytes;
  return true;
}

void DeviceMemory::GivePage(std::uint64_t bytes) {
  std::lock_guard<SpinLock> guard(lock_);
  paged_ -= bytes;
}

bool DeviceMemory::Has(std::uint64_t bytes) {
  std::lock_guard<SpinLock> guard(lock_);
  return bytes <= Left();
}

bool DeviceMemory::Lacks(std::uint64_t bytes) {
  std::lock_guard<SpinLock> guard(lock_);
  return bytes > Left() && bytes <= total_ - used_;
}

bool DeviceMemory::Describe(std::uint64_t address, std::uint64_t bytes, bool will_write, AddressInfo* info) {
  std::uint64_t granule = GranuleOf(address);
  std::lock_guard<SpinLock> guard(lock_);
  auto segment = segments_.upper_bound(granule);
  if (segment != segments_.begin()) {
    --segment;
    if (granule - segment->first < segment->second.granules) {
      *info = {true, segment->second.name, 0, 0};
      return true;
    }
  }
  std::uint64_t start = plain_starts_.FindAtOrBelow(granule);
  if (start == BitTree::kNone) return false;
  Block& block = blocks()[StartingAt(start).load(std::memory_order_relaxed)];
  std::uint64_t end = AddressOf(block.start + block.size);
  if (address >= end || bytes > end - address) return false;
  if (will_write) block.is_touched = true;
  *info = {false, {}, AddressOf(block.start), block.size * kGranule};
  return true;
}

void DeviceMemory::GetInfo(std::uint64_t* free, std::uint64_t* total) {
  std::lock_guard<SpinLock> guard(lock_);
  *free = Left();
  *total = total_;
}

Status DeviceMemory::SetTotal(std::uint64_t bytes, bool is_trial) {
  std::lock_guard<SpinLock> guard(lock_);
  std::uint64_t range = range_bytes_.load(std::memory_order_relaxed);
  if (bytes < used_ + (is_trial ? 0 : paged_) || (range != 0 && bytes > range)) return kErrorInvalidValue;
  if (!is_trial) total_ = bytes;
  return kSuccess;
}

}  // namespace cistern::software
