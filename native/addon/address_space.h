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
// Memory is mapped in pieces of one page or more, and only whole pieces can be unmapped:
//
//     pieces   |       8 pages       |       8 pages       |
//     blocks   |  block  | kept |      block      |  kept  |
//
// A page that was freed while others of its piece are in use is kept: it is neither a hole nor used until the rest of the piece
// is free, and the piece is unmapped. A page of a block without a piece is absent: its memory was returned, and its address waits for
// new memory.
//
// Invariants: blocks, ranges being freed, kept ranges and holes do not overlap and, rounded up to pages, tile the
// reservation; two holes are never adjacent; pieces cover no page of a hole, and each kept range lies within one.
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
  using Extent = std::pair<std::uint64_t, std::uint64_t>;  // begin and end

  AddressSpace(int device, std::uint64_t base, std::uint64_t bytes, std::uint64_t page_bytes);
  AddressSpace(const AddressSpace&) = delete;
  AddressSpace& operator=(const AddressSpace&) = delete;

  // Makes a block of the first bytes of the lowest hole that fits. False if there is none.
  bool Allocate(std::uint64_t bytes, std::uint64_t* address);
  // kSuccess if the range can be freed, otherwise the reason why not. For a wrong size,
  // `right_bytes` is the one that would free the block from the address on.
  Status CheckFree(std::uint64_t address, std::uint64_t bytes, std::uint64_t* right_bytes) const;
  // Takes out of use a range that can be freed.
  void BeginFree(std::uint64_t address, std::uint64_t bytes);
  // A piece that has to be unmapped, and then removed, for the free that has begun at an address. False, and the free has ended, if
  // there is none.
  bool NextToUnmap(std::uint64_t address, Extent* piece);
  // Takes every block out of use, and calls complete(begin) for each range whose free has not
  // ended. No other thread may use this object any more.
  template <typename Complete>
  void FreeAll(Complete&& complete) {
    std::vector<std::uint64_t> ranges;
    for (const auto& [begin, block] : blocks_) ranges.push_back(begin);
    for (const std::uint64_t begin : ranges) BeginFree(begin, blocks_.at(begin) - begin);
    ranges.clear();
    for (const auto& [begin, range] : freeing_) ranges.push_back(begin);
    for (const std::uint64_t begin : ranges) complete(begin);
  }
  // Nothing was unmapped, and the range stays in use.
  void CancelFree(std::uint64_t address, std::uint64_t bytes);

  // Before a piece is mapped, and after it was unmapped.
  void AddPiece(std::uint64_t begin, std::uint64_t end);
  void RemovePiece(std::uint64_t begin);

  // Calls visit(begin, end) for every piece.
  template <typename Visitor>
  void ForEachPiece(Visitor&& visit) const {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& [begin, end] : pieces_) visit(begin, end);
  }
  bool HasMapped() const;
  bool IsMapped(std::uint64_t address, std::uint64_t bytes) const;
  std::vector<Extent> PiecesWithin(const Extent& run) const;
  // Pieces with pages of blocks.
  std::vector<Extent> PiecesOfBlocks() const;

  // Blocks, adjacent ones as one.
  std::vector<Extent> LiveExtents() const;
  // Runs of pages of blocks that are absent, or that are not.
  std::vector<Extent> PagesOfBlocks(bool are_absent) const;
  std::uint64_t AbsentBytes() const;
  std::uint64_t KeptBytes() const;

  const int device;
  const std::uint64_t base;
  const std::uint64_t bytes;
  const std::uint64_t page_bytes;
  bool is_read_only = false;  // of the environment's thread: all of it may be read, and not written

 private:
  using Ranges = std::map<std::uint64_t, std::uint64_t>;  // end by begin

  std::uint64_t PageEnd(std::uint64_t end) const { return base + (end - base + page_bytes - 1) / page_bytes * page_bytes; }
  bool IsPageBoundary(std::uint64_t address) const { return (address - base) % page_bytes == 0; }
  Ranges::const_iterator BlockAt(std::uint64_t address) const;
  void Cut(std::uint64_t at);
  Ranges::const_iterator FirstPieceAfter(std::uint64_t address) const;
  bool IsKept(std::uint64_t begin, std::uint64_t end) const;
  void InsertHole(Ranges::node_type range);
  void FinishFree(Ranges::node_type freed);

  mutable std::mutex mutex_;
  Ranges blocks_;
  Ranges freeing_;
  Ranges kept_;
  Ranges holes_;
  Ranges pieces_;
  std::vector<Ranges::node_type> spares_;  // two for each free that has begun, for what it keeps at its ends
  std::uint64_t highest_end_;              // everything below has been allocated once
};

}  // namespace cistern

#endif  // CISTERN_ADDON_ADDRESS_SPACE_H_
