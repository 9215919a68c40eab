// Reserved addresses, and the blocks and holes in them.
//
//     base                                                                            base + bytes
//     | block | block |   hole   | block | being freed |                 hole                  |
//
// A block is allocated at the lowest hole that fits, so blocks that are allocated one after the
// other are adjacent unless an older hole fits. It begins at a multiple of the page size and ends
// where the request ended; the rest of its last page is unused. Any whole pages of adjacent blocks
// can be freed together: a free cuts blocks at page boundaries.
//
// A page of a block may be absent: its memory was returned, and its address waits for new memory.
//
// Invariants: blocks, ranges being freed and holes do not overlap and, rounded up to pages, tile the
// reservation; two holes are never adjacent; no page of a hole is absent.
// Cost: O(h) to allocate among h holes, O(log n + touched) to free among n blocks. No step of a free
// after BeginFree allocates memory.
#ifndef CISTERN_ADDON_ADDRESS_SPACE_H_
#define CISTERN_ADDON_ADDRESS_SPACE_H_

#include <cstdint>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "cuda/driver_table.h"

namespace cistern {

// Belongs to one environment. Another one may complete a free that could not be completed at once,
// hence the mutex. It is not held during driver calls.
class AddressSpace {
 public:
  struct Range {
    std::uint64_t end = 0;
    // While it is freed: the part that is still mapped.
    std::uint64_t mapped_begin = 0;
    std::uint64_t mapped_end = 0;
  };

  AddressSpace(int device, std::uint64_t base, std::uint64_t bytes, std::uint64_t page_bytes);
  AddressSpace(const AddressSpace&) = delete;
  AddressSpace& operator=(const AddressSpace&) = delete;

  // Makes a block of the first bytes of the lowest hole that fits. False if there is none.
  bool Allocate(std::uint64_t bytes, std::uint64_t* address);
  // kSuccess if the range can be freed, otherwise the reason why not. For a wrong size,
  // `right_bytes` is the one that would free the block from the address on.
  Status CheckFree(std::uint64_t address, std::uint64_t bytes, std::uint64_t* right_bytes) const;
  // Takes out of use a range that can be freed. The result is valid until the free ends.
  Range* BeginFree(std::uint64_t address, std::uint64_t bytes);
  // The range whose free has begun at an address and not ended, or null.
  Range* FindFreeing(std::uint64_t address);
  // The range is unmapped, and becomes a hole.
  void FinishFree(std::uint64_t address);
  // Takes every block out of use, and calls complete(begin) for each range whose free has not
  // ended. No other thread may use this object any more.
  template <typename Complete>
  void FreeAll(Complete&& complete) {
    std::vector<std::uint64_t> ranges;
    for (const auto& [begin, block] : blocks_) ranges.push_back(begin);
    for (const std::uint64_t begin : ranges) BeginFree(begin, blocks_.at(begin).end - begin);
    ranges.clear();
    for (const auto& [begin, range] : freeing_) ranges.push_back(begin);
    for (const std::uint64_t begin : ranges) complete(begin);
  }
  // Nothing was unmapped, and the range stays in use.
  void CancelFree(std::uint64_t address, std::uint64_t bytes);

  // Calls visit(begin, end) for every range of pages that are mapped.
  template <typename Visitor>
  void ForEachMapped(Visitor&& visit) const {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& [begin, block] : blocks_) VisitPresent(begin, PageEnd(block.end), visit);
    for (const auto& [begin, range] : freeing_) VisitPresent(range.mapped_begin, range.mapped_end, visit);
  }
  bool HasMapped() const;

  using Extent = std::pair<std::uint64_t, std::uint64_t>;  // begin and end
  // Blocks, adjacent ones as one.
  std::vector<Extent> LiveExtents() const;
  // Runs of pages of blocks that are absent, or that are not.
  std::vector<Extent> PagesOfBlocks(bool are_absent) const;
  std::uint64_t AbsentBytes() const;
  bool IsAbsent(std::uint64_t page) const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return IsAbsentLocked(page);
  }
  // Makes room to mark any page as absent, so that this cannot fail later.
  void PrepareAbsence();
  void SetAbsent(std::uint64_t begin, std::uint64_t end, bool are_absent);

  const int device;
  const std::uint64_t base;
  const std::uint64_t bytes;
  const std::uint64_t page_bytes;

 private:
  using Ranges = std::map<std::uint64_t, Range>;  // by begin

  std::uint64_t PageEnd(std::uint64_t end) const { return base + (end - base + page_bytes - 1) / page_bytes * page_bytes; }
  bool IsPageBoundary(std::uint64_t address) const { return (address - base) % page_bytes == 0; }
  Ranges::const_iterator BlockAt(std::uint64_t address) const;
  void Cut(std::uint64_t at);

  std::size_t PageNumber(std::uint64_t page) const { return static_cast<std::size_t>((page - base) / page_bytes); }
  void MarkAbsent(std::uint64_t begin, std::uint64_t end, bool are_absent);
  bool IsAbsentLocked(std::uint64_t page) const { return !absent_.empty() && absent_[PageNumber(page)]; }
  template <typename Visitor>
  void VisitPresent(std::uint64_t begin, std::uint64_t end, Visitor&& visit) const {
    VisitRuns(begin, end, [&](std::uint64_t run_begin, std::uint64_t run_end, bool are_absent) {
      if (!are_absent) visit(run_begin, run_end);
    });
  }
  // Calls visit(begin, end, are_absent) for the runs of pages between two page boundaries.
  template <typename Visitor>
  void VisitRuns(std::uint64_t begin, std::uint64_t end, Visitor&& visit) const {
    if (absent_.empty() && begin < end) visit(begin, end, false);
    if (absent_.empty()) return;
    for (std::uint64_t run = begin; run < end;) {
      std::uint64_t run_end = run;
      while (run_end < end && IsAbsentLocked(run_end) == IsAbsentLocked(run)) run_end += page_bytes;
      visit(run, run_end, IsAbsentLocked(run));
      run = run_end;
    }
  }

  mutable std::mutex mutex_;
  Ranges blocks_;
  Ranges freeing_;
  Ranges holes_;
  std::uint64_t highest_end_;  // everything below has been allocated once
  std::vector<bool> absent_;   // by page; empty until a page is first absent
};

}  // namespace cistern

#endif  // CISTERN_ADDON_ADDRESS_SPACE_H_
