// How a ThreadSafeArena gives superblocks back to the global arena, and what it asks of others when it needs some.
#include <algorithm>
#include <utility>

#include "arenas/driver_scope.h"
#include "arenas/thread_safe_arena.h"
#include "cuda/relaxed_mode_scope.h"

namespace cistern::arenas {
namespace {

constexpr std::chrono::milliseconds kPause{1};

// A thread has superblocks in hand, which it is giving back to a global arena.
class GivingBackScope {
 public:
  explicit GivingBackScope(std::uint64_t number) : number_(number) { Count(1); }
  ~GivingBackScope() { Count(-1); }
  GivingBackScope(const GivingBackScope&) = delete;
  GivingBackScope& operator=(const GivingBackScope&) = delete;

 private:
  void Count(int change) const {
    const std::lock_guard<std::mutex> lock(AllArenas().mutex);
    AllArenas().by_number.at(number_)->giving_back += change;
  }

  const std::uint64_t number_;
};

void Raise(std::atomic<std::uint64_t>& value, std::uint64_t least) {
  std::uint64_t now = value.load();
  while (now < least && !value.compare_exchange_weak(now, least)) {
  }
}

}  // namespace

// Whether the stream's own lane has a block with enough whole superblocks for a request, wherever they begin in it.
bool ThreadSafeArena::HasWholeSuperblocks(ThreadArena& arena, const Place& place) {
  const std::uint64_t superblocks = (place.bytes + superblock_bytes_ - 1) / superblock_bytes_;
  const std::uint64_t units = (superblocks + 1) * superblock_bytes_ / kUnitBytes;
  if (units > kMaximumUnits) return false;
  const std::lock_guard<std::mutex> lock(arena.mutex);
  return index_of::canAllocate(&arena.module, arena.index, static_cast<std::uint32_t>(units), LaneOf(arena, place.key, events_).lane) != 0;
}

// Whether superblocks are used that another index of this resource has, or another tenant.
bool ThreadSafeArena::OthersHaveMemory(const ThreadArena& arena) const {
  const std::lock_guard<std::mutex> lock(AllArenas().mutex);
  return AllArenas().by_number.at(settings_.arena)->used_bytes > arena.superblocks * superblock_bytes_;
}

std::uint64_t ThreadSafeArena::FreedBytes() const {
  const std::lock_guard<std::mutex> lock(AllArenas().mutex);
  return AllArenas().by_number.at(settings_.arena)->freed_bytes;
}

// Whether the global arena has had more freed than it had: by now, or soon, since native threads have superblocks in
// hand that they are giving back.
bool ThreadSafeArena::AwaitFrees(std::uint64_t freed_bytes) {
  GlobalArenas& arenas = AllArenas();
  std::unique_lock<std::mutex> lock(arenas.mutex);
  const GlobalArena& global = *arenas.by_number.at(settings_.arena);
  if (global.freed_bytes == freed_bytes && global.giving_back == 0) return false;
  if (global.freed_bytes == freed_bytes) arenas.changed.wait_for(lock, kPause);
  return true;
}

Status ThreadSafeArena::AwaitDevice() {
  std::vector<std::pair<ThreadArena*, std::uint64_t>> numbers;
  for (ThreadArena* arena : Arenas()) numbers.emplace_back(arena, ++arena->last_number);
  const DriverScope scope(driver, settings_.context);
  const Status status = scope.status() == kSuccess ? settings_.await_device(driver) : scope.status();
  for (const auto& [arena, number] : numbers) {
    if (status == kSuccess) Raise(arena->idle_since, number);
  }
  return status;
}

// The context is current.
Status ThreadSafeArena::FreeSuperblocks(std::uint64_t address, std::uint64_t bytes, const std::vector<EventUse>& before) {
  FreeEvent* freed = nullptr;
  if (!before.empty()) {
    const DriverTable* table = driver;
    const RelaxedModeScope relaxed(table);
    Status status = order_.AwaitAll(trimming_, before);
    if (status == kSuccess) {
      status = AcquireFreeEvent(settings_.arena, settings_.id, device_, &freed,
                                [&](Event* event) { return table->EventCreate(event, kEventDisableTiming); });
    }
    if (status != kSuccess) return status;
    status = table->EventRecord(freed->event, trimming_);
    if (status != kSuccess) {
      const std::lock_guard<std::mutex> lock(AllArenas().mutex);
      ReleaseEvent(freed);
      return status;
    }
  }
  GlobalArenas& arenas = AllArenas();
  const std::lock_guard<std::mutex> lock(arenas.mutex);
  GlobalArena& global = *arenas.by_number.at(settings_.arena);
  const Status status = Guarded([&] { return FreeRange(global, address, address + bytes, freed), kSuccess; });
  if (status == kSuccess) global.tenants.at(settings_.id).bytes -= bytes;
  ReleaseEvent(freed);
  arenas.changed.notify_all();
  return status;
}

// Brings the free memory of an index together, where neighbours coalesce, in the lane that belongs to no stream: all
// but what is held for a stream.
void ThreadSafeArena::Gather(ThreadArena& arena, std::unique_lock<std::mutex>& lock) {
  for (const auto& [key, lane] : arena.lanes) {
    if (!lane->is_held || lane->last_free >= arena.idle_since) continue;
    Hold(arena, *lane, false);
    for (const EventUse& use : lane->before) events_.Release(use.event);
    lane->before.clear();
  }
  for (Status status = kSuccess; status == kSuccess;) {
    const auto legacy = arena.lanes.find(kLegacyKey);
    if (legacy == arena.lanes.end() || !legacy->second->is_unrecorded) break;
    status = order_.RecordLate(arena, *legacy->second, lock);
  }
  arena.last = nullptr;
  FoldLanes(arena, events_);
}

// Gives back one run of superblocks. False if there is none, or if the driver refuses.
bool ThreadSafeArena::GiveBackOnce(ThreadArena& arena) {
  std::unique_lock<std::mutex> lock(arena.mutex);
  Lane& lane = LaneOf(arena, kCommonKey, events_);
  const auto page_units = static_cast<std::uint32_t>(superblock_bytes_ / kUnitBytes);
  const std::vector<EventUse> uses = lane.before;
  MakeRoom(lane, uses.size());
  const double found = index_of::removePages(&arena.module, arena.index, lane.lane, page_units, static_cast<std::uint32_t>(kMaximumUnits));
  if (found < 0) return false;
  const auto address = static_cast<std::uint64_t>(found);
  const std::uint32_t units = index_of::removedUnits(&arena.module);
  const std::uint64_t bytes = units * kUnitBytes;
  Retain(uses);
  lane.promised += uses.size();
  SetOwner(address, bytes, nullptr);
  const GivingBackScope giving_back(settings_.arena);
  lock.unlock();
  const Status status = Guarded([&] { return FreeSuperblocks(address, bytes, uses); });
  lock.lock();
  lane.promised -= uses.size();
  if (status != kSuccess) {
    SetOwner(address, bytes, &arena);
    index_of::extendSegment(&arena.module, arena.index, found, units, lane.lane);
    for (const EventUse& use : uses) {
      if (AddBefore(lane, use)) use.event->users.fetch_add(1);
    }
  }
  for (const EventUse& use : uses) events_.Release(use.event);
  return status == kSuccess;
}

void ThreadSafeArena::GiveBackFrom(ThreadArena& arena) {
  const DriverScope scope(driver, settings_.context);
  if (scope.status() != kSuccess) return;
  {
    std::unique_lock<std::mutex> lock(arena.mutex);
    Gather(arena, lock);
  }
  while (GiveBackOnce(arena)) {
  }
}

bool ThreadSafeArena::HasHeld() {
  for (ThreadArena* arena : Arenas()) {
    const std::lock_guard<std::mutex> lock(arena->mutex);
    for (const auto& [key, lane] : arena->lanes) {
      if (lane->is_held) return true;
    }
  }
  return false;
}

void ThreadSafeArena::GiveBack(bool may_wait) noexcept {
  Guarded([&]() -> Status {
    if (may_wait && HasHeld()) AwaitDevice();
    for (ThreadArena* arena : Arenas()) GiveBackFrom(*arena);
    return kSuccess;
  });
}

void ThreadSafeArena::AskEnvironments() {
  GlobalArenas& arenas = AllArenas();
  const std::lock_guard<std::mutex> lock(arenas.mutex);
  GlobalArena& global = *arenas.by_number.at(settings_.arena);
  const std::uint64_t request = ++global.requests;
  const Clock::time_point now = Clock::now();
  for (auto& [id, tenant] : global.tenants) {
    if (tenant.bytes == 0 || !tenant.ask) continue;
    if (tenant.answered >= tenant.asked) tenant.unanswered_since = now;
    tenant.asked = request;
    tenant.ask();
  }
}

}  // namespace cistern::arenas
