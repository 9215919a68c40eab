// The unit of both the device's address space and the memory pools.
//
// Blocks of one address range form a chain in address order; they tile the range without gaps:
//
//     [ used ][ free ][ used ][ used ][      free      ]
//        <-previous  next->
//
// Invariants: block.start + block.size = next.start; Σ free + Σ used = size of the range.
// A block is identified by its index in the device's table of blocks; index 0 is no block.
#ifndef CISTERN_SOFTWARE_BLOCK_H_
#define CISTERN_SOFTWARE_BLOCK_H_

#include <atomic>
#include <cstdint>
#include <mutex>

#include "software/spin_lock.h"
#include "software/zeroed_array.h"

namespace cistern::software {

// Every allocation starts at a multiple of this many bytes, and occupies a multiple of it.
inline constexpr std::uint64_t kGranule = 512;

enum class BlockState : std::uint8_t { kUnused = 0, kFree, kUsed, kFreeing };

struct Block {
  std::uint64_t start;      // in granules from the start of the device's range
  std::uint64_t size;       // in granules
  std::uint64_t free_mark;  // pools, free blocks: the mark of the free on its stream; 0 if the mark is known to be reached
  std::uint32_t previous;
  std::uint32_t next;
  std::uint32_t left;  // free blocks: neighbours in a bin's list, or children in the tree of large blocks
  std::uint32_t right;
  std::uint32_t older;  // pools, free blocks with a mark: neighbours in the order of the frees of one stream
  std::uint32_t newer;
  std::uint32_t segment;             // pools: index of the segment within the pool
  std::atomic<std::uint32_t> owner;  // slot index of the pool, 0 for plain memory; read without a lock, checked under it
  BlockState state;
  bool is_paged;    // a segment of managed memory, whose pages are charged one by one
  bool is_touched;  // plain memory: device work has written here
};

// All blocks of one device. Block records are handed out in batches, so that pools rarely contend
// for the lock here.
class BlockTable {
 public:
  bool Allocate(std::uint64_t count) { return blocks_.Allocate(count); }
  Block* blocks() const { return blocks_.data(); }

  // Puts up to kBatch records, linked by `next`, into *head; false if none are left.
  bool TakeBatch(std::uint32_t* head) {
    std::lock_guard<SpinLock> guard(lock_);
    for (int taken = 0; taken < kBatch; ++taken) {
      std::uint32_t id = free_;
      if (id != 0) {
        free_ = blocks_[id].next;
      } else if (unused_ < blocks_.size()) {
        id = static_cast<std::uint32_t>(unused_++);
      } else {
        break;
      }
      blocks_[id].next = *head;
      *head = id;
    }
    return *head != 0;
  }

  void GiveBack(std::uint32_t id) {
    std::lock_guard<SpinLock> guard(lock_);
    blocks_[id].next = free_;
    free_ = id;
  }

 private:
  static constexpr int kBatch = 32;

  ZeroedArray<Block> blocks_;
  SpinLock lock_;
  std::uint64_t unused_ = 1;
  std::uint32_t free_ = 0;
};

// One owner's stock of unused block records, guarded by the owner's lock.
class BlockSource {
 public:
  void Attach(BlockTable* table) { table_ = table; }
  Block* blocks() const { return table_->blocks(); }

  // 0 if the device has no more.
  std::uint32_t Take() {
    if (free_ == 0 && !table_->TakeBatch(&free_)) return 0;
    std::uint32_t id = free_;
    free_ = blocks()[id].next;
    return id;
  }

  void Give(std::uint32_t id) {
    Block& block = blocks()[id];
    block.state = BlockState::kUnused;
    block.owner.store(0, std::memory_order_relaxed);
    block.next = free_;
    free_ = id;
  }

  void GiveAllBack() {
    while (free_ != 0) {
      std::uint32_t id = free_;
      free_ = blocks()[id].next;
      table_->GiveBack(id);
    }
  }

 private:
  BlockTable* table_ = nullptr;
  std::uint32_t free_ = 0;
};

// Cuts the first `size` granules off block `id` as block `front`, which takes its place in the
// chain. `id` keeps the rest.
inline void CutFront(Block* blocks, std::uint32_t id, std::uint32_t front, std::uint64_t size) {
  Block& rest = blocks[id];
  Block& cut = blocks[front];
  cut.start = rest.start;
  cut.size = size;
  cut.previous = rest.previous;
  cut.next = id;
  cut.segment = rest.segment;
  if (rest.previous != 0) blocks[rest.previous].next = front;
  rest.previous = front;
  rest.start += size;
  rest.size -= size;
}

// Extends block `id` over its next neighbour, whose record the caller then gives back.
inline void AbsorbNext(Block* blocks, std::uint32_t id) {
  Block& block = blocks[id];
  const Block& next = blocks[block.next];
  block.size += next.size;
  block.next = next.next;
  if (next.next != 0) blocks[next.next].previous = id;
}

}  // namespace cistern::software

#endif  // CISTERN_SOFTWARE_BLOCK_H_
