#include "interpose/book.h"

#include <sys/mman.h>

namespace cistern::interpose {

Entry* Book::Find(std::uint64_t key) {
  if (capacity_ == 0) return nullptr;
  for (std::size_t i = PlaceOf(key); entries_[i].key != 0; i = (i + 1) & (capacity_ - 1)) {
    if (entries_[i].key == key) return &entries_[i];
  }
  return nullptr;
}

Entry* Book::Add(std::uint64_t key) {
  std::size_t i = 0;
  const auto look = [&] {
    for (i = PlaceOf(key); entries_[i].key != 0 && entries_[i].key != key;) i = (i + 1) & (capacity_ - 1);
    return entries_[i].key == key;
  };
  if (capacity_ > 0 && look()) return &entries_[i];
  if (count_ + 1 > capacity_ / 2) {
    if (!Grow()) return nullptr;
    look();
  }
  entries_[i] = {};
  entries_[i].key = key;
  count_++;
  return &entries_[i];
}

// Entries behind it move up if they could not be found otherwise.
void Book::Remove(Entry* entry) {
  const std::size_t mask = capacity_ - 1;
  std::size_t hole = static_cast<std::size_t>(entry - entries_);
  for (std::size_t i = (hole + 1) & mask; entries_[i].key != 0; i = (i + 1) & mask) {
    if (((i - PlaceOf(entries_[i].key)) & mask) < ((i - hole) & mask)) continue;
    entries_[hole] = entries_[i];
    hole = i;
  }
  entries_[hole].key = 0;
  count_--;
}

void Book::Clear() {
  if (entries_ != nullptr) munmap(entries_, capacity_ * sizeof(Entry));
  entries_ = nullptr;
  capacity_ = count_ = 0;
}

bool Book::Grow() {
  const std::size_t capacity = capacity_ == 0 ? 1024 : 2 * capacity_;
  void* memory = mmap(nullptr, capacity * sizeof(Entry), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return false;
  Book larger;
  larger.entries_ = static_cast<Entry*>(memory);
  larger.capacity_ = capacity;
  larger.shift_ = capacity_ == 0 ? 64 - 10 : shift_ - 1;
  for (std::size_t i = 0; i < capacity_; i++) {
    if (entries_[i].key != 0) *larger.Add(entries_[i].key) = entries_[i];
  }
  Clear();
  *this = larger;
  return true;
}

}  // namespace cistern::interpose
