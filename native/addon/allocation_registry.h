// The live allocations of one environment, by address.
//
// An open-addressing table with linear probing. Its size is a power of two, and it is at most half
// full. Erasing shifts later entries back, so no markers of deleted entries accumulate:
//
//   index:   …  4    5    6    7  …          home(a) = 4, home(b) = 4, home(c) = 5
//   entry:      a    b    c    -
//   erase a:    b    c    -    -             every entry stays reachable from its home without crossing an empty slot
//
// A ring next to it keeps the addresses that were freed last, as many as the table has slots. It
// distinguishes a double free from a foreign pointer, and is read only after a free has already
// failed.
//
// Invariants: 2 * size <= capacity; no address twice; address 0 marks an empty slot. Cost: O(1) expected.
#ifndef CISTERN_ADDON_ALLOCATION_REGISTRY_H_
#define CISTERN_ADDON_ALLOCATION_REGISTRY_H_

#include <cstddef>
#include <cstdint>
#include <memory>

namespace cistern {

struct Allocation {
  std::uint64_t address;
  std::uint64_t bytes;
  std::uint64_t owner;   // what may free it: see PlainOwner in memory.h; a pool's handle for stream-ordered memory
  std::uint64_t stream;  // the handle of the stream that it was allocated on; zero for plain memory
};

class AllocationRegistry {
 public:
  AllocationRegistry() = default;
  AllocationRegistry(const AllocationRegistry&) = delete;
  AllocationRegistry& operator=(const AllocationRegistry&) = delete;

  // Makes room for one more entry, so that the next Insert cannot fail. False if the host has no
  // memory left.
  bool Reserve() { return 2 * (size_ + 1) <= capacity_ || Grow(); }
  // Replaces an entry with the same address: if the driver returns an address again, it was freed
  // without our knowledge.
  void Insert(const Allocation& allocation);
  // Null if the address is not live. The pointer is valid until the next Insert or Erase.
  Allocation* Find(std::uint64_t address);
  void Erase(Allocation* allocation);
  // True if the address was live and is among the last ones erased.
  bool WasErased(std::uint64_t address) const;

  template <typename Visitor>
  void ForEach(Visitor&& visitor) const {
    for (std::size_t index = 0; index < capacity_; ++index) {
      if (entries_[index].address != 0) visitor(entries_[index]);
    }
  }

 private:
  // Addresses are multiples of 256, hence the shift before Fibonacci hashing.
  std::size_t Home(std::uint64_t address) const {
    return static_cast<std::size_t>((address >> 8) * std::uint64_t{0x9E3779B97F4A7C15} >> shift_);
  }
  bool Grow();

  std::unique_ptr<Allocation[]> entries_;
  std::unique_ptr<std::uint64_t[]> erased_;
  std::size_t capacity_ = 0;
  std::size_t size_ = 0;
  std::size_t erased_count_ = 0;
  int shift_ = 64;
};

inline Allocation* AllocationRegistry::Find(std::uint64_t address) {
  if (capacity_ == 0 || address == 0) return nullptr;
  for (std::size_t index = Home(address);; index = (index + 1) & (capacity_ - 1)) {
    if (entries_[index].address == address) return &entries_[index];
    if (entries_[index].address == 0) return nullptr;
  }
}

inline void AllocationRegistry::Insert(const Allocation& allocation) {
  std::size_t index = Home(allocation.address);
  while (entries_[index].address != 0 && entries_[index].address != allocation.address) index = (index + 1) & (capacity_ - 1);
  if (entries_[index].address == 0) size_ += 1;
  entries_[index] = allocation;
}

inline void AllocationRegistry::Erase(Allocation* allocation) {
  const std::size_t mask = capacity_ - 1;
  erased_[erased_count_++ & mask] = allocation->address;
  size_ -= 1;
  std::size_t hole = static_cast<std::size_t>(allocation - entries_.get());
  for (std::size_t index = (hole + 1) & mask; entries_[index].address != 0; index = (index + 1) & mask) {
    const std::size_t displacement = (index - Home(entries_[index].address)) & mask;
    if (displacement >= ((index - hole) & mask)) {
      entries_[hole] = entries_[index];
      hole = index;
    }
  }
  entries_[hole].address = 0;
}

}  // namespace cistern

#endif  // CISTERN_ADDON_ALLOCATION_REGISTRY_H_
