#include "addon/allocation_registry.h"

#include <algorithm>
#include <new>

namespace cistern {

bool AllocationRegistry::WasErased(std::uint64_t address) const {
  if (address == 0) return false;
  const std::uint64_t* end = erased_.get() + std::min(erased_count_, capacity_);
  return std::find(static_cast<const std::uint64_t*>(erased_.get()), end, address) != end;
}

bool AllocationRegistry::Grow() {
  constexpr std::size_t kFirstCapacity = 1024;
  const std::size_t capacity = capacity_ == 0 ? kFirstCapacity : 2 * capacity_;
  std::unique_ptr<Allocation[]> entries(new (std::nothrow) Allocation[capacity]());
  std::unique_ptr<std::uint64_t[]> erased(new (std::nothrow) std::uint64_t[capacity]());
  if (entries == nullptr || erased == nullptr) return false;

  const std::size_t old_capacity = capacity_;
  const std::size_t remembered = std::min(erased_count_, old_capacity);
  for (std::size_t index = 0; index < remembered; ++index) {
    erased[index] = erased_[(erased_count_ - remembered + index) & (old_capacity - 1)];
  }
  const std::unique_ptr<Allocation[]> old = std::move(entries_);
  entries_ = std::move(entries);
  erased_ = std::move(erased);
  erased_count_ = remembered;
  capacity_ = capacity;
  shift_ = 64 - __builtin_ctzll(capacity);
  size_ = 0;
  for (std::size_t index = 0; index < old_capacity; ++index) {
    if (old[index].address != 0) Insert(old[index]);
  }
  return true;
}

}  // namespace cistern
