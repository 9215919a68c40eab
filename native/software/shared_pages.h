// The pages of one device's memory that other processes may map.
//
//     device's range   | private pages | shared | private pages      | shared |   private     |
//                                          │                             │
//     file in memory   |     hole      | pages  |       hole         | pages  |     hole      | header | events |
//
// A device's memory is private to its process, which costs least. When an allocation is exported, the
// pages that it touches change over, with their contents, to a file in memory in which each page has
// the place that it has in the range. As with CUDA, neighbours in the same pages become visible too.
// When the pages are free again they change back, and the file gives its pages to the kernel.
//
// Invariants: a page of the range is mapped from the file if and only if it is in `pages_`; the file
// has no contents elsewhere. Cost: nothing until the first export, then one load for each free.
#ifndef CISTERN_SOFTWARE_SHARED_PAGES_H_
#define CISTERN_SOFTWARE_SHARED_PAGES_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <vector>

#include "cuda/driver_table.h"
#include "platform/memory_file.h"

namespace cistern::software {

inline constexpr char kDeviceFileName[] = "cistern-device";
// More than a process can export, so that events are not what it runs out of.
inline constexpr std::uint32_t kEventSlots = 1 << 17;

// Behind the range, at a page boundary.
struct FileHeader {
  char magic[8];
  unsigned char nonce[16];
  std::uint64_t range_bytes;
};
inline constexpr char kDeviceFileMagic[8] = {'c', 'i', 's', 't', 'd', 'e', 'v', '1'};

// An event that other processes can wait for. Recordings are numbered from 1, and all up to
// `completed` have happened. A new generation means that the event was destroyed.
struct alignas(64) EventSlot {
  std::atomic<std::uint64_t> generation;
  std::atomic<std::uint64_t> recorded;
  std::atomic<std::uint64_t> completed;
};

inline constexpr std::uint64_t kHeaderBytes = 1 << 16;  // a multiple of any page size
inline constexpr std::uint64_t kTrailerBytes = kHeaderBytes + kEventSlots * sizeof(EventSlot);

// Byte 0 of the file is locked as long as its process lives.
inline constexpr std::uint64_t kOwnerLock = 0;

class SharedPages {
 public:
  bool Any() const { return has_any_.load(std::memory_order_relaxed); }

  // Creates the file of a range, once. kErrorNotSupported on a system without such files.
  Status Open(std::uint64_t base, std::uint64_t range_bytes);
  // Makes whole pages shared, contents kept. Waits for copies and fills that are running.
  Status Share(std::uint64_t begin, std::uint64_t end);
  // Makes those of the pages that are shared private again, without their contents. Nobody may be
  // using them.
  void Unshare(std::uint64_t begin, std::uint64_t end);

  // Valid once Open has succeeded.
  const MemoryFile& file() const { return file_; }
  const unsigned char* nonce() const { return nonce_; }
  // Whether the nonce is that of this file; false before Open.
  bool IsOwn(const unsigned char* nonce);

  // An event in the file; null if there are no more.
  EventSlot* TakeEvent(std::uint32_t* index);
  void GiveEvent(std::uint32_t index);

 private:
  std::atomic<bool> has_any_{false};
  std::mutex mutex_;  // guards all below
  std::uint64_t base_ = 0;
  std::uint64_t range_bytes_ = 0;
  MemoryFile file_;
  unsigned char nonce_[16] = {};
  EventSlot* events_ = nullptr;
  std::vector<std::uint32_t> free_events_;
  std::uint32_t used_events_ = 0;
  std::map<std::uint64_t, std::uint64_t> pages_;  // begin -> end, addresses; not adjacent
};

}  // namespace cistern::software

#endif  // CISTERN_SOFTWARE_SHARED_PAGES_H_
