// A hash table of what is allocated, in memory of its own: the program's allocator is never called.
#ifndef CISTERN_INTERPOSE_BOOK_H_
#define CISTERN_INTERPOSE_BOOK_H_

#include <cstddef>
#include <cstdint>

namespace cistern::interpose {

// What a key is of. Addresses of the same value may stand for different things.
enum class Class : std::uint8_t { kAddress = 1, kRegistered, kArray, kExternalMemory, kHandle, kMemory, kMapping, kPool, kStream, kStack };

struct Entry {
  std::uint64_t key;      // 0: free
  std::uint64_t bytes;    // or the index of a stream, a stack; the place of a pool
  std::uint64_t pointer;  // as it is recorded
  void* context;
  std::uint64_t memory;  // of a handle or a mapping: the number of its memory
  std::uint32_t limits;
  std::uint32_t handles;  // of memory: how many references there are, and how many mappings
  std::uint32_t mappings;
  std::uint16_t account;
  std::uint16_t stack;  // the number of its stack in the recording, or 0
  std::uint8_t layer;
  std::uint8_t way;  // the number of its label, or 0
};
static_assert(sizeof(Entry) == 64, "a line of a cache");

class Book {
 public:
  static std::uint64_t KeyOf(Class kind, std::uint64_t value) {
    return value << 4 | static_cast<std::uint64_t>(kind);  // addresses have fewer than 60 bits
  }

  // The entry is about to be looked for: it may be in no cache.
  void Expect(std::uint64_t key) const {
    if (capacity_ > 0) __builtin_prefetch(&entries_[PlaceOf(key)], 1);
  }
  Entry* Find(std::uint64_t key);
  // A new entry, or the one that there is; null if there is no memory for it.
  Entry* Add(std::uint64_t key);
  void Remove(Entry* entry);
  void Clear();

  // Calls `visit` with every entry. The book must not change meanwhile.
  template <typename Visit>
  void ForEach(Visit visit) const {
    for (std::size_t i = 0; i < capacity_; i++) {
      if (entries_[i].key != 0) visit(entries_[i]);
    }
  }

  // Calls `visit` with every entry until it returns true: then the entry is removed, and all are visited again.
  template <typename Visit>
  void RemoveAll(Visit visit) {
    for (std::size_t i = 0; i < capacity_; i++) {
      while (entries_[i].key != 0 && visit(entries_[i])) Remove(&entries_[i]);
    }
    // Removing may have moved entries to places before.
    for (std::size_t i = 0; i < capacity_; i++) {
      while (entries_[i].key != 0 && visit(entries_[i])) Remove(&entries_[i]);
    }
  }

 private:
  // The highest bits of a product with the golden ratio: addresses at equal distances come far from each other.
  std::size_t PlaceOf(std::uint64_t key) const { return static_cast<std::size_t>(key * 0x9e3779b97f4a7c15u >> shift_); }
  bool Grow();

  Entry* entries_ = nullptr;
  std::size_t capacity_ = 0;
  std::size_t count_ = 0;
  int shift_ = 0;  // 64 minus the number of bits of a place
};

}  // namespace cistern::interpose

#endif  // CISTERN_INTERPOSE_BOOK_H_
