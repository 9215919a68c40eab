#include "software/shared_pages.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <iterator>

#include "software/write_gate.h"

namespace cistern::software {

Status SharedPages::Open(std::uint64_t base, std::uint64_t range_bytes) {
  const std::lock_guard<std::mutex> guard(mutex_);
  if (file_.IsOpen()) return kSuccess;
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
    void* place = reinterpret_cast<void*>(begin);
    const off_t offset = static_cast<off_t>(begin - base_);
    if (!CopyTouched(begin, to) ||
        mmap(place, to - begin, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file_.descriptor(), offset) == MAP_FAILED) {
      Discard(begin, to);
      return kErrorOutOfMemory;
    }
    madvise(place, to - begin, MADV_DONTDUMP);
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
    void* place = reinterpret_cast<void*>(first);
    constexpr int kPrivate = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
    Discard(first, last);
    if (mmap(place, last - first, PROT_READ | PROT_WRITE, kPrivate, -1, 0) == MAP_FAILED) {
      ++known;  // they stay shared, and serve as well
      continue;
    }
    madvise(place, last - first, MADV_DONTDUMP);
    const std::uint64_t known_first = known->first;
    const std::uint64_t known_last = known->second;
    known = pages_.erase(known);
    if (known_first < first) pages_[known_first] = first;
    if (last < known_last) known = pages_.emplace(last, known_last).first;
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

// Copies the pages that have contents into the file: the others would take memory there.
bool SharedPages::CopyTouched(std::uint64_t begin, std::uint64_t end) const {
  constexpr std::uint64_t kHasContents = std::uint64_t{3} << 62;  // present, or swapped out
  constexpr std::uint64_t kEntriesAtOnce = 4096;
  const std::uint64_t page = static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
  const MemoryFile map(open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC));
  if (!map.IsOpen()) return Write(begin, end);
  std::vector<std::uint64_t> entries(std::min(kEntriesAtOnce, (end - begin) / page));
  std::uint64_t touched = end;  // where the touched pages that are not yet copied begin
  for (std::uint64_t address = begin; address < end;) {
    const std::uint64_t count = std::min<std::uint64_t>(entries.size(), (end - address) / page);
    const ssize_t read = pread(map.descriptor(), entries.data(), count * sizeof entries[0], static_cast<off_t>(address / page * 8));
    if (read != static_cast<ssize_t>(count * sizeof entries[0])) return Write(begin, end);
    for (std::uint64_t index = 0; index < count; ++index, address += page) {
      const bool has_contents = (entries[index] & kHasContents) != 0;
      if (has_contents && touched == end) touched = address;
      if (has_contents || touched == end) continue;
      if (!Write(touched, address)) return false;
      touched = end;
    }
  }
  return touched == end || Write(touched, end);
}

bool SharedPages::Write(std::uint64_t begin, std::uint64_t end) const {
  while (begin < end) {
    const ssize_t written =
        pwrite(file_.descriptor(), reinterpret_cast<const void*>(begin), end - begin, static_cast<off_t>(begin - base_));
    if (written <= 0) return false;
    begin += static_cast<std::uint64_t>(written);
  }
  return true;
}

void SharedPages::Discard(std::uint64_t begin, std::uint64_t end) const {
  fallocate(file_.descriptor(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(begin - base_),
            static_cast<off_t>(end - begin));
}

}  // namespace cistern::software
