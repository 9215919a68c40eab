// What one thread has of an arena: an index, the one of assembly/ in C++ (suballocation/index_functions.h), whose lanes hold what
// was freed on each stream.
//
//     index  [ lane of stream a | lane of stream b | lane that belongs to no stream ]
//
// All of it needs the lock of its thread's arena, and nothing here calls a driver.
#ifndef CISTERN_ARENAS_THREAD_ARENA_H_
#define CISTERN_ARENAS_THREAD_ARENA_H_

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <new>
#include <unordered_map>
#include <utility>
#include <vector>

#include "arenas/arena_events.h"
#include "cuda/native_status.h"
#include "suballocation/index_functions.h"

namespace cistern::arenas {

namespace index_of = suballocation;

// The key of memory that belongs to no stream.
inline constexpr std::uint64_t kCommonKey = 0;
inline constexpr std::uint64_t kLegacyKey = 1;
inline constexpr std::uint64_t kUnitBytes = 256;
inline constexpr std::uint64_t kMaximumUnits = 0x7fffffff;
inline constexpr std::size_t kUsualLanes = 64;
inline constexpr std::uint32_t kNobodyOfIndex = ~0u;

inline std::uint64_t UnitsOf(std::uint64_t bytes) { return (bytes + kUnitBytes - 1) / kUnitBytes; }

// What comes before memory of a lane may be used.
struct EventUse {
  ArenaEvent* event;
  std::uint64_t number;  // of the free or the wait; see lane_order.h
  bool is_awaited;       // by the lane's own stream
};

struct Lane {
  std::uint32_t lane = 0;       // in the index
  std::uint64_t key = 0;        // of the stream
  int pins = 0;                 // calls that have let go of the lock and come back to it
  bool is_held = false;         // under kOff: serves its own stream only
  bool is_unrecorded = false;   // under kDeferred, of the legacy default stream
  std::uint64_t last_free = 0;  // the number of the last free without an event
  std::vector<EventUse> before;
  std::size_t promised = 0;  // uses that calls which let go of the lock may put back into `before`
};

class ThreadArena {
 public:
  // Throws std::bad_alloc. `units_to_cut`: see LeaveLargeBlocksWhole.
  explicit ThreadArena(std::uint64_t units_to_cut)
      : index(index_of::createIndex(&module)),
        units_to_cut_(static_cast<std::uint32_t>(std::min(units_to_cut, kMaximumUnits))),
        no_lane_(index == 0 ? 0 : index_of::addLane(&module, index)) {
    if (no_lane_ == 0) throw std::bad_alloc();
  }

  // Beside a reserve, here of nothing, and while memory is scarce, here always, the index takes close fits only.
  void LeaveLargeBlocksWhole(bool is_left) {
    if (leaves_large_blocks_ == is_left) return;
    leaves_large_blocks_ = is_left;
    index_of::keepReserve(&module, index, is_left ? no_lane_ : 0, units_to_cut_, -1);
  }

  // The used block at an address, or 0.
  std::uint32_t UsedBlock(std::uint64_t address) { return index_of::usedBlock(&module, index, static_cast<double>(address)); }
  std::uint64_t AskedBytes(std::uint32_t block) { return static_cast<std::uint64_t>(index_of::askedBytes(&module, block)); }

  std::mutex mutex;
  index_of::IndexModule module;
  const std::uint32_t index;
  std::unordered_map<std::uint64_t, std::unique_ptr<Lane>> lanes;
  std::unordered_map<std::uint32_t, Lane*> by_lane;
  std::vector<std::uint32_t> spare_lanes;
  Lane* last = nullptr;
  std::size_t lanes_to_fold = kUsualLanes;
  std::atomic<std::uint64_t> last_number{0};
  std::atomic<std::uint64_t> idle_since{0};  // what was freed before this number is idle
  std::uint64_t live_bytes = 0;
  std::uint64_t live_allocations = 0;
  std::unordered_map<std::uint64_t, std::uint64_t> claims;  // by address: who has the memory
  std::atomic<std::uint64_t> superblocks{0};

 private:
  const std::uint32_t units_to_cut_;
  const std::uint32_t no_lane_;  // never has memory
  bool leaves_large_blocks_ = false;
};

// Runs a body whose exceptions become statuses.
template <typename Body>
Status Guarded(Body&& body) {
  try {
    return body();
  } catch (const index_of::Trap&) {
    return kBrokenIndex;
  } catch (const std::exception&) {  // std::bad_alloc, std::system_error
    return kHostOutOfMemory;
  }
}

inline bool IsEmpty(ThreadArena& arena, const Lane& lane) { return index_of::isEmpty(&arena.module, arena.index, lane.lane) != 0; }

// Under kOff: whether a lane serves its own stream only.
void Hold(ThreadArena& arena, Lane& lane, bool is_held);

// Makes room in a lane for uses that are added later without asking for memory.
inline void MakeRoom(Lane& lane, std::size_t uses) { lane.before.reserve(lane.before.size() + lane.promised + uses); }

inline void Retain(const std::vector<EventUse>& uses) {
  for (const EventUse& use : uses) use.event->users.fetch_add(1);
}

// Adds what comes before memory that joins a lane, which has room. The event's user passes on unless false is returned.
bool AddBefore(Lane& lane, const EventUse& use);

// Moves all memory of a lane, with its order, to another.
void JoinLane(ThreadArena& arena, Lane& from, Lane& to, ArenaEvents& events);

// Lets the memory of streams, which may have ended, belong to none, where all wait for it.
void FoldLanes(ThreadArena& arena, ArenaEvents& events);

// The lane of a stream, which may be new.
Lane& LaneOf(ThreadArena& arena, std::uint64_t key, ArenaEvents& events);

// A block is free, in a lane. NoteFree: all of that but for the index.
void FreeBlock(ThreadArena& arena, std::uint64_t address, std::uint64_t bytes, std::uint32_t block, const Lane& lane);
void NoteFree(ThreadArena& arena, std::uint64_t address, std::uint64_t bytes);

}  // namespace cistern::arenas

#endif  // CISTERN_ARENAS_THREAD_ARENA_H_
