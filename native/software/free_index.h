// Free blocks by size: finds the smallest one that is large enough.
//
// Structure: one list for each size below 128 granules (64 KiB), with a bit that says whether it is
// empty, and one search tree for everything larger, keyed by (size, start). The tree is a treap: a
// binary search tree by key and a heap by priority. A block's priority is a hash of its index,
// which keeps the tree balanced in expectation without stored balance data.
//
//     bits   .1..1...1          tree        (900, a)
//             |  |   |                     /        \.
//            [1][4] [8]               (300, c)    (900, f)
//
// Invariants: a free block is in exactly one index; the block found has the least size that fits,
// and among large ones the lowest start.
// Cost: below 128 granules O(1); above O(log n) expected for n large free blocks. No memory of its
// own: the links are in the blocks.
#ifndef CISTERN_SOFTWARE_FREE_INDEX_H_
#define CISTERN_SOFTWARE_FREE_INDEX_H_

#include <cstdint>

#include "software/block.h"

namespace cistern::software {

class FreeIndex {
 public:
  void Insert(Block* blocks, std::uint32_t id) {
    if (blocks[id].size < kBins) {
      InsertSmall(blocks, id);
    } else {
      InsertLarge(blocks, id);
    }
  }

  void Remove(Block* blocks, std::uint32_t id) {
    if (blocks[id].size < kBins) {
      RemoveSmall(blocks, id);
    } else {
      RemoveLarge(blocks, id);
    }
  }

  // The block of the least size >= size, or 0.
  std::uint32_t FindBestFit(const Block* blocks, std::uint64_t size) const {
    if (size < kBins) {
      std::uint64_t word = size / 64;
      std::uint64_t found = occupied_[word] & (~std::uint64_t{0} << (size % 64));
      if (found == 0 && word == 0) {
        word = 1;
        found = occupied_[1];
      }
      if (found != 0) return bins_[word * 64 + static_cast<std::uint64_t>(__builtin_ctzll(found))];
    }
    return FindLarge(blocks, size);
  }

 private:
  static constexpr std::uint64_t kBins = 128;

  void InsertSmall(Block* blocks, std::uint32_t id) {
    std::uint64_t bin = blocks[id].size;
    blocks[id].left = 0;
    blocks[id].right = bins_[bin];
    if (bins_[bin] != 0) blocks[bins_[bin]].left = id;
    bins_[bin] = id;
    occupied_[bin / 64] |= std::uint64_t{1} << (bin % 64);
  }

  void RemoveSmall(Block* blocks, std::uint32_t id) {
    Block& block = blocks[id];
    if (block.right != 0) blocks[block.right].left = block.left;
    if (block.left != 0) {
      blocks[block.left].right = block.right;
      return;
    }
    bins_[block.size] = block.right;
    if (block.right == 0) occupied_[block.size / 64] &= ~(std::uint64_t{1} << (block.size % 64));
  }

  void InsertLarge(Block* blocks, std::uint32_t id);
  void RemoveLarge(Block* blocks, std::uint32_t id);
  std::uint32_t FindLarge(const Block* blocks, std::uint64_t size) const;

  std::uint64_t occupied_[kBins / 64] = {};
  std::uint32_t bins_[kBins] = {};
  std::uint32_t root_ = 0;
};

}  // namespace cistern::software

#endif  // CISTERN_SOFTWARE_FREE_INDEX_H_
