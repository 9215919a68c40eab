// The memory of one device: a reserved range of addresses, which the kernel commits where it is
// written.
//
// Structure: blocks (block.h) tile the range; free ones are in a FreeIndex. The range is several
// times the device's total, so that only the sum limits allocations: holes between allocations
// never make one fail that the total would allow.
//
//     range   | plain | free | segment of a pool          | plain |        free        |
//     inside                 | used | free | used |  free |              (memory_pool.h)
//
// In addition: for each granule, the block in use that starts there (to free a pointer in O(1)); a
// BitTree of the starts of plain allocations (to find the allocation around an address); and a map
// of the segments.
//
// Invariants: Σ plain + Σ unpaged segments + Σ charged = used; Σ managed pages = paged; used + paged <=
// total; free neighbours are merged; the range's blocks sum up to the range.
// Cost: O(1) below 64 KiB, else O(log n) for n free blocks; no system call except to give back
// pages that device work has written. A page shared by a touched and an untouched allocation is
// given back only if the touched one is freed last.
#ifndef CISTERN_SOFTWARE_DEVICE_MEMORY_H_
#define CISTERN_SOFTWARE_DEVICE_MEMORY_H_

#include <atomic>
#include <cstdint>
#include <map>

#include "cuda/driver_table.h"
#include "software/bit_tree.h"
#include "software/block.h"
#include "software/free_index.h"
#include "software/shared_pages.h"
#include "software/spin_lock.h"
#include "software/zeroed_array.h"

namespace cistern::software {

// Identifies a segment within a pool.
struct SegmentName {
  std::uint32_t pool;
  std::uint32_t index;
};

// What lies at an address.
struct AddressInfo {
  bool is_segment;
  SegmentName segment;
  std::uint64_t start;  // of the plain allocation
  std::uint64_t bytes;
};

class DeviceMemory {
 public:
  explicit DeviceMemory(std::uint64_t total_bytes) : total_(total_bytes) {}

  // Reserves the range, once. Before that, only GetInfo, SetTotal and Contains may be called.
  Status Reserve();

  Status Allocate(std::uint64_t bytes, std::uint64_t* address);
  // Takes the allocation that starts at the address out of use, as block *id, without making its
  // memory available yet.
  Status BeginFree(std::uint64_t address, std::uint32_t* id);
  void FinishFree(std::uint32_t id);

  // The same for pools. Describe returns the name for addresses in the segment. A segment of managed
  // memory does not count against the total; its pages do, while they are here.
  Status AllocateSegment(std::uint64_t bytes, SegmentName name, bool is_managed, std::uint32_t* id);
  void FreeSegment(std::uint32_t id, bool is_touched);

  // Makes the pages of the plain allocation that starts at the address shared (shared_pages.h), and
  // returns its size. The next one does so with a segment.
  Status ShareAllocation(std::uint64_t address, std::uint64_t* bytes);
  Status ShareSegment(std::uint32_t id);
  // Moves the contents of all memory but that of the host out of the pages, and in again (checkpoint.h). Nobody may use them
  // meanwhile, and none may be shared. False if there is not enough memory: some contents may be out then.
  bool MoveOut();
  bool MoveIn();
  Status OpenSharedPages() { return shared_pages_.Open(base_, range_bytes_.load(std::memory_order_relaxed)); }
  SharedPages& shared_pages() { return shared_pages_; }

  // Memory that has its addresses elsewhere (virtual_memory.h) counts against the total only. False
  // if there is not as much left.
  bool Charge(std::uint64_t bytes);
  void Refund(std::uint64_t bytes);

  // Pages of managed memory (managed_memory.h) count against the total too, but can be evicted: an
  // allocation that fails may succeed after that. TakePage is false if there is no room.
  bool TakePage(std::uint64_t bytes);
  void GivePage(std::uint64_t bytes);
  // Whether as much as this is left.
  bool Has(std::uint64_t bytes);
  // Whether less than this is left, and fewer pages could change that.
  bool Lacks(std::uint64_t bytes);

  // True if the range is plain memory within one allocation, or if it starts in a segment, which
  // the pool must then check.
  bool Describe(std::uint64_t address, std::uint64_t bytes, bool will_write, AddressInfo* info);

  bool Contains(std::uint64_t address) const {
    std::uint64_t bytes = range_bytes_.load(std::memory_order_acquire);  // published after base_, hence read before it
    return bytes != 0 && address - base_ < bytes;
  }
  void GetInfo(std::uint64_t* free, std::uint64_t* total);

  // In two steps, so that either all devices change or none: SetTotal with `is_trial` only says
  // whether it would succeed once enough pages are evicted.
  Status SetTotal(std::uint64_t bytes, bool is_trial);

  std::uint64_t AddressOf(std::uint64_t granule) const { return base_ + granule * kGranule; }
  std::uint64_t GranuleOf(std::uint64_t address) const { return (address - base_) / kGranule; }
  // The block in use that starts at the granule, or 0.
  std::atomic<std::uint32_t>& StartingAt(std::uint64_t granule) const { return starting_at_[granule]; }
  Block* blocks() const { return block_table_.blocks(); }
  BlockTable* block_table() { return &block_table_; }

 private:
  struct SegmentRange {
    std::uint64_t granules;
    SegmentName name;
    bool is_of_host;
  };

  bool TryReserve(std::uint64_t range_bytes);
  std::uint64_t Left() const { return total_ - used_ - paged_; }
  std::uint32_t TakeBlock(std::uint64_t bytes, bool is_paged, Status* status);
  void ReturnBlock(std::uint32_t id);
  void ReleasePages(std::uint64_t first, std::uint64_t last);
  void ReleaseInnerPages(const Block& block);
  Status Share(const Block& block);
  template <typename Action>
  bool ForEachMovable(Action&& action);

  std::uint64_t base_ = 0;
  std::atomic<std::uint64_t> range_bytes_{0};
  ZeroedArray<std::atomic<std::uint32_t>> starting_at_;
  BlockTable block_table_;
  SharedPages shared_pages_;

  SpinLock lock_;  // guards all below
  std::uint64_t total_;
  std::uint64_t used_ = 0;
  std::uint64_t paged_ = 0;
  FreeIndex free_;
  BlockSource source_;
  BitTree plain_starts_;
  std::map<std::uint64_t, SegmentRange> segments_;  // by start, in granules
  std::uint64_t used_end_ = 0;                      // no block beyond it was ever used; in granules
  MemoryFile moved_;                                // contents, each at the offset of its address
};

}  // namespace cistern::software

#endif  // CISTERN_SOFTWARE_DEVICE_MEMORY_H_
