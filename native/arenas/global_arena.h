// One block of memory for the whole process, allocated in superblocks.
//
//     block   [ tenant 1 | 2 | free, event a | 1 | free, event b | free ........ ]
//
// A tenant is an environment, or an arena for native threads. It takes whole superblocks for a stream,
// which waits for the events with which they were freed, and frees them with an event of its own. So it
// needs neither the tenant nor the stream that had them before.
//
// Memory that a tenant had when it ended stays its own until a living environment has waited for the
// devices, because no event covers it. Memory that it has handed over stays longer.
//
// Invariants: the ranges of an arena tile its block; an event is idle if no free range and no call
// needs it.
// One mutex guards all arenas. It is held for some steps through the ranges of an arena, and no driver
// is called meanwhile, since a driver call may wait for JavaScript of another thread.
#ifndef CISTERN_ARENAS_GLOBAL_ARENA_H_
#define CISTERN_ARENAS_GLOBAL_ARENA_H_

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "cuda/driver_table.h"
#include "cuda/native_status.h"

namespace cistern::arenas {

inline constexpr std::uint64_t kNobody = 0;

using Clock = std::chrono::steady_clock;

// An event that stands for frees.
struct FreeEvent {
  Event event;
  int device;
  int users;            // free ranges, and calls that wait for it
  std::uint64_t maker;  // the id of the tenant that created it, and counts its calls
};

struct Superblocks {
  std::uint64_t end = 0;          // a multiple of superblocks from the beginning of the block
  std::uint64_t asked_end = 0;    // where the allocation ends that they belong to
  std::uint64_t owner = kNobody;  // the id of a tenant, which may have ended
  FreeEvent* freed = nullptr;     // of free ones; null: nothing to wait for
};

// A tenant that returns superblocks immediately, on any thread, without JavaScript.
class NativeTenant {
 public:
  virtual ~NativeTenant() = default;
  // Frees superblocks that are wholly free. Calls the driver. No lock may be held. Those without events are only
  // free after a wait for the device, if it may wait.
  virtual void GiveBack(bool may_wait) = 0;
};

// What has an arena open, or superblocks of it.
struct Tenant {
  std::function<void()> ask;  // wakes its event loop; empty: a native one
  std::weak_ptr<NativeTenant> native;
  double thread = 0;  // as Node numbers threads
  std::uint64_t opens = 0;
  std::uint64_t bytes = 0;
  std::uint64_t peak_bytes = 0;
  // Numbers of requests: the last for which it was asked, which it has taken, and which it has
  // answered.
  std::uint64_t asked = 0;
  std::uint64_t taken = 0;
  std::uint64_t answered = 0;
  Clock::time_point unanswered_since;  // when it was first asked without having answered since
};

using Ranges = std::map<std::uint64_t, Superblocks>;

struct GlobalArena {
  std::string name;
  const DriverTable* backend = nullptr;
  int device = 0;
  std::uint64_t kind = 0;  // MemoryKind of addon/memory.h
  std::uint64_t bytes = 0;
  std::uint64_t superblock_bytes = 0;
  std::uint64_t opener = kNobody;  // the environment that is allocating the block
  std::uint64_t allocation = 0;    // what the driver gave
  std::uint64_t allocated_bytes = 0;
  std::uint64_t base = 0;
  Ranges ranges;                            // by beginning
  std::map<std::uint64_t, Tenant> tenants;  // by id
  std::list<FreeEvent> events;
  std::uint64_t used_bytes = 0;  // of living and ended tenants
  std::uint64_t peak_used_bytes = 0;
  std::uint64_t requests = 0;
  std::uint64_t freed_bytes = 0;  // since the start
  int giving_back = 0;            // native threads with superblocks in hand, which will be free soon

  bool IsReady() const { return allocation != 0; }
  // Nobody needs it any more.
  bool IsWithoutTenant() const { return IsReady() && tenants.empty(); }
  std::uint64_t RoundUp(std::uint64_t size) const { return (size + superblock_bytes - 1) / superblock_bytes * superblock_bytes; }
  bool IsBoundary(std::uint64_t address) const { return (address - base) % superblock_bytes == 0; }
  // The arena begins to hand out this block, from the first multiple of superblocks on.
  void Fill(std::uint64_t block, std::uint64_t block_bytes);
};

// The remains of an arena after its last tenant, to be freed after a wait for the devices.
struct EndedArena {
  const DriverTable* backend;
  int device;
  std::uint64_t kind;
  std::uint64_t allocation;  // 0: none
  std::uint64_t allocated_bytes;
  std::vector<FreeEvent> events;
  Stream stream = nullptr;
};

struct GlobalArenas {
  std::mutex mutex;
  std::condition_variable changed;  // superblocks were freed, or a tenant has answered or ended
  std::map<std::uint64_t, std::unique_ptr<GlobalArena>> by_number;
  std::uint64_t last_number = 0;
  std::atomic<bool> any_ended{false};  // whether ended tenants may have superblocks, or an arena may have no tenant
  // Keeps what is left of an arena whose last tenant was native, all or nothing. Any thread, with the mutex. Set before the
  // first such tenant.
  std::atomic<void (*)(const EndedArena&)> leave{nullptr};
};

GlobalArenas& AllArenas();

// The functions below need the mutex, unless they say otherwise. One that throws std::bad_alloc has changed nothing that
// counts.

// The range that an address lies in, or the end.
Ranges::iterator RangeAt(GlobalArena& arena, std::uint64_t address);

inline void ReleaseEvent(FreeEvent* freed) {
  if (freed != nullptr) freed->users -= 1;
}

// The smallest run of free superblocks that has room, the lowest of them; zero if there is none. Also
// the largest run.
std::uint64_t FindRoom(const GlobalArena& arena, std::uint64_t size, std::uint64_t* largest);

// Makes [begin, end) free after an event, of which the range becomes a user.
void FreeRange(GlobalArena& arena, std::uint64_t begin, std::uint64_t end, FreeEvent* freed);

// What is to be freed before an arena without a tenant is forgotten.
EndedArena WhatIsLeft(const GlobalArena& arena);

// Forgets a tenant that no longer needs an arena. True if it was the last: whoever looks for what ended tenants left then
// ends the arena. Throws nothing.
bool LeaveIfUnneeded(GlobalArenas& arenas, std::uint64_t number, std::uint64_t tenant);

// Leaves what is left of an arena without a tenant, and forgets it. If there is no host memory for that, it stays.
void LeaveArena(GlobalArenas& arenas, std::uint64_t number);

// Free superblocks that were taken, each with a use of its event, which passes to the caller. They are the nodes of
// the arena's own map, so that nothing needs memory to put them back.
using TakenRanges = Ranges;

// Takes free superblocks for a tenant, which are used once its stream waits for their events. Returns
// their address, or zero. They count as used after NoteTaken.
std::uint64_t TakeSuperblocks(std::uint64_t tenant, GlobalArena& arena, std::uint64_t size, TakenRanges* taken);

// The stream waits for their events.
void NoteTaken(std::uint64_t tenant, GlobalArena& arena, std::uint64_t size, const TakenRanges& taken);

// Undoes TakeSuperblocks. Throws nothing.
void PutBack(std::uint64_t tenant, GlobalArena& arena, std::uint64_t address, TakenRanges* taken);

// Calls wait(event) once for each event of free superblocks. The mutex must not be held: the events are
// not recorded again while a call uses them. Throws nothing itself.
template <typename Wait>
Status WaitForFrees(const TakenRanges& taken, Wait&& wait) {
  for (auto each = taken.begin(); each != taken.end(); ++each) {
    const FreeEvent* const freed = each->second.freed;
    const auto is_same = [&](const auto& other) { return other.second.freed == freed; };
    if (freed == nullptr || std::any_of(taken.begin(), each, is_same)) continue;
    const Status status = wait(freed->event);
    if (status != kSuccess) return status;
  }
  return kSuccess;
}

// An idle event of a device, or a new one that create(&event) makes, with the caller as its user. The
// mutex must not be held, and the caller be a tenant.
template <typename Create>
Status AcquireFreeEvent(std::uint64_t number, std::uint64_t tenant, int device, FreeEvent** freed, Create&& create) {
  GlobalArenas& arenas = AllArenas();
  {
    const std::lock_guard<std::mutex> lock(arenas.mutex);
    for (FreeEvent& each : arenas.by_number.at(number)->events) {
      if (each.users > 0 || each.device != device) continue;
      each.users = 1;
      *freed = &each;
      return kSuccess;
    }
  }
  std::list<FreeEvent> fresh;
  fresh.push_back({nullptr, device, 1, tenant});
  const Status status = create(&fresh.front().event);
  if (status != kSuccess) return status;
  const std::lock_guard<std::mutex> lock(arenas.mutex);
  std::list<FreeEvent>& events = arenas.by_number.at(number)->events;
  events.splice(events.end(), fresh);
  *freed = &events.back();
  return kSuccess;
}

// Lets every other native tenant of an arena return what it can. The mutex must not be held.
void LetNativeTenantsGiveBack(std::uint64_t number, std::uint64_t except, bool may_wait);

}  // namespace cistern::arenas

#endif  // CISTERN_ARENAS_GLOBAL_ARENA_H_
