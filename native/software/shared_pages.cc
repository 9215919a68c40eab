#include "software/shared_pages.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <new>
#include <utility>

#include "software/write_gate.h"

namespace cistern::software {

Status SharedPages::Open(std::uint64_t base, std::uint64_t range_bytes) {
  const std::lock_guard<std::mutex> guard(mutex_);
  if (file_.IsOpen()) return kSuccess;
  if (!kHasMemoryFiles) return kErrorNotSupported;
  MemoryFile file = CreateMemoryFile(kDeviceFileName, range_bytes + kTrailerBytes);
  if (!file.IsOpen() || !FillRandom(nonce_, sizeof nonce_) || !file.Lock(kOwnerLock)) return kErrorOutOfMemory;
  void* trailer = file.Map(range_bytes, kTrailerBytes);
  if (trailer == nullptr) return kErrorOutOfMemory;
  auto* header = static_cast<FileHeader*>(trailer);
  std::memcpy(header->nonce, nonce_, sizeof nonce_);
  header->range_bytes = range_bytes;
  std::memcpy(header->magic, kDeviceFileMagic, sizeof kDeviceFileMagic);
  events_ = reinterpret_cast<EventSlot*>(static_cast<char*>(trailer) + kHeaderBytes);
  base_ = base;
  range_bytes_ = range_bytes;
  file_ = std::move(file);
  return kSuccess;
}

bool SharedPages::IsOwn(const unsigned char* nonce) {
  const std::lock_guard<std::mutex> guard(mutex_);
  return file_.IsOpen() && std::memcmp(nonce, nonce_, sizeof nonce_) == 0;
}

Status SharedPages::Share(std::uint64_t begin, std::uint64_t end) {
  const std::lock_guard<std::mutex> guard(mutex_);
  if (!file_.IsOpen()) return kErrorNotSupported;
  has_any_.store(true, std::memory_order_relaxed);
  const WriteGate::Shut nobody_writes(write_gate);
  while (begin < end) {
    const auto next = pages_.upper_bound(begin);
    const auto known = next == pages_.begin() ? pages_.end() : std::prev(next);
    if (known != pages_.end() && known->second > begin) {
      begin = known->second;
      continue;
    }
    const std::uint64_t to = next == pages_.end() ? end : std::min(end, next->first);
    const std::uint64_t offset = begin - base_;
    if (!file_.WriteTouched(begin, offset, to - begin) || !file_.MapAt(begin, offset, to - begin)) {
      file_.Discard(offset, to - begin);
      return kErrorOutOfMemory;
    }
    std::uint64_t first = begin;
    if (known != pages_.end() && known->second == begin) first = known->first;
    pages_[first] = to;
    if (next != pages_.end() && next->first == to) {
      pages_[first] = next->second;
      pages_.erase(next);
    }
    begin = pages_[first];
  }
  return kSuccess;
}

void SharedPages::Unshare(std::uint64_t begin, std::uint64_t end) {
  const std::lock_guard<std::mutex> guard(mutex_);
  auto known = pages_.upper_bound(begin);
  if (known != pages_.begin()) --known;
  while (known != pages_.end() && known->first < end) {
    const std::uint64_t first = std::max(begin, known->first);
    const std::uint64_t last = std::min(end, known->second);
    if (first >= last) {
      ++known;
      continue;
    }
    file_.Discard(first - base_, last - first);
    std::map<std::uint64_t, std::uint64_t> behind;  // pages that stay shared, behind others that do
    try {
      if (known->first < first && last < known->second) behind.emplace(last, known->second);
    } catch (const std::bad_alloc&) {
      ++known;  // they stay shared, and serve as well
      continue;
    }
    if (!MemoryFile::MapSparseAt(first, last - first)) {
      ++known;  // these, too
      continue;
    }
    if (known->first < first) {
      known->second = first;
      ++known;
      pages_.merge(behind);
      continue;
    }
    auto left = pages_.extract(known++);
    left.key() = last;
    if (last < left.mapped()) pages_.insert(std::move(left));
  }
  if (pages_.empty()) has_any_.store(false, std::memory_order_relaxed);
}

EventSlot* SharedPages::TakeEvent(std::uint32_t* index) {
  const std::lock_guard<std::mutex> guard(mutex_);
  if (free_events_.empty()) {
    if (used_events_ == kEventSlots) return nullptr;
    free_events_.push_back(used_events_++);
  }
  *index = free_events_.back();
  free_events_.pop_back();
  EventSlot& slot = events_[*index];
  slot.recorded.store(0, std::memory_order_relaxed);
  slot.completed.store(0, std::memory_order_relaxed);
  slot.generation.fetch_add(1, std::memory_order_release);
  return &slot;
}

void SharedPages::GiveEvent(std::uint32_t index) {
  const std::lock_guard<std::mutex> guard(mutex_);
  events_[index].generation.fetch_add(1, std::memory_order_release);
  free_events_.push_back(index);
}

}  // namespace cistern::software
