// A set of small integers that answers "which is the largest member not above x?".
//
// Purpose: from an address in the middle of an allocation, find where the allocation starts.
// Structure: a bit per integer; above it, a bit per word of 64 that says whether the word holds any, and so on up to one word.
//
//     level 2                1
//     level 1        1 . . . . . . 1
//     level 0    .1....1.  ......  1.......
//
// Invariant: bit i of level n + 1 is set if and only if word i of level n is not zero.
// Cost: all calls O(log64 n), and a call whose word has other members touches only that word.
#ifndef CISTERN_SOFTWARE_BIT_TREE_H_
#define CISTERN_SOFTWARE_BIT_TREE_H_

#include <cstddef>
#include <cstdint>

#include "software/zeroed_array.h"

namespace cistern::software {

class BitTree {
 public:
  static constexpr std::uint64_t kNone = ~std::uint64_t{0};

  bool Allocate(std::uint64_t bits) {
    std::size_t words = 0;
    levels_ = 0;
    std::uint64_t remaining = bits;
    do {
      remaining = (remaining + 63) / 64;
      offsets_[levels_++] = words;
      words += remaining;
    } while (remaining > 1);
    return words_.Allocate(words);
  }

  void Set(std::uint64_t bit) {
    for (int level = 0; level < levels_; ++level) {
      std::uint64_t& word = Word(level, bit / 64);
      bool had_members = word != 0;
      word |= std::uint64_t{1} << (bit % 64);
      if (had_members) return;
      bit /= 64;
    }
  }

  void Clear(std::uint64_t bit) {
    for (int level = 0; level < levels_; ++level) {
      std::uint64_t& word = Word(level, bit / 64);
      word &= ~(std::uint64_t{1} << (bit % 64));
      if (word != 0) return;
      bit /= 64;
    }
  }

  std::uint64_t FindAtOrBelow(std::uint64_t bit) const {
    for (int level = 0; level < levels_; ++level) {
      std::uint64_t candidates = Word(level, bit / 64) & (~std::uint64_t{0} >> (63 - bit % 64));
      if (candidates != 0) return Descend(level, bit / 64 * 64 + Highest(candidates));
      // This word has nothing at or below: continue one level up, strictly before the word.
      if (bit / 64 == 0) return kNone;
      bit = bit / 64 - 1;
    }
    return kNone;
  }

 private:
  static constexpr int kMaxLevels = 8;

  static std::uint64_t Highest(std::uint64_t word) { return 63 - static_cast<std::uint64_t>(__builtin_clzll(word)); }
  std::uint64_t& Word(int level, std::uint64_t index) const { return words_[offsets_[level] + index]; }

  std::uint64_t Descend(int level, std::uint64_t bit) const {
    for (; level > 0; --level) bit = bit * 64 + Highest(Word(level - 1, bit));
    return bit;
  }

  ZeroedArray<std::uint64_t> words_;
  std::size_t offsets_[kMaxLevels] = {};
  int levels_ = 0;
};

}  // namespace cistern::software

#endif  // CISTERN_SOFTWARE_BIT_TREE_H_
