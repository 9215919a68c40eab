#include "arenas/thread_safe_arena.h"

#include <algorithm>
#include <new>
#include <thread>
#include <utility>

#include "arenas/driver_scope.h"
#include "cuda/relaxed_mode_scope.h"
#include "platform/memory.h"
#include "suballocation/index_functions.h"

namespace cistern::arenas {

namespace index_of = suballocation;

// An event that is recorded once, and again when nobody uses it any more.
struct ArenaEvent {
  Event event = nullptr;
  std::atomic<int> users{0};
};

// What comes before memory of a lane may be used.
struct EventUse {
  ArenaEvent* event;
  std::uint64_t number;  // of the free or the wait; see thread_safe_arena.h
  bool is_awaited;       // by the lane's own stream
};

// Guarded by the lock of its arena, as is everything in an index.
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

// Memory that belongs to no stream.
constexpr std::uint64_t kCommonKey = 0;
constexpr std::uint64_t kLegacyKey = 1;
constexpr std::size_t kUsualLanes = 64;
constexpr std::uint64_t kUnitBytes = 256;
constexpr std::uint64_t kMaximumUnits = 0x7fffffff;
constexpr std::uint64_t kMostBytesOfMany = 0x7fffff00;  // of a block that the index allocates with others in one call
constexpr std::size_t kMostAtOnce = 256;                // of them, under one lock
constexpr std::uint32_t kNone = ~0u;                    // of many
constexpr std::uint32_t kNobodyOfIndex = ~0u;
constexpr int kPatience = 1000;
constexpr std::chrono::milliseconds kPause{1};
constexpr std::size_t kMostEventsOfThread = 64;

// A request leaves free blocks whole that are larger than so many superblocks, unless it is nearly as large. Under kOff
// it does not, because nobody could give back the superblocks that it takes instead.
constexpr std::uint64_t kSuperblocksToCut = 2;

class ThreadArena {
 public:
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

namespace {

std::uint64_t NumberOfThread() {
  static std::atomic<std::uint64_t> last{0};
  thread_local const std::uint64_t number = ++last;
  return number;
}

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

std::uint64_t UnitsOf(std::uint64_t bytes) { return (bytes + kUnitBytes - 1) / kUnitBytes; }

void Raise(std::atomic<std::uint64_t>& value, std::uint64_t least) {
  std::uint64_t now = value.load();
  while (now < least && !value.compare_exchange_weak(now, least)) {
  }
}

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

// The functions below need the lock of the arena.

// Under kOff: whether a lane serves its own stream only.
void Hold(ThreadArena& arena, Lane& lane, bool is_held) {
  if (lane.is_held == is_held) return;
  lane.is_held = is_held;
  index_of::shareLane(&arena.module, lane.lane, is_held ? 0 : 1);
}

bool IsEmpty(ThreadArena& arena, const Lane& lane) { return index_of::isEmpty(&arena.module, arena.index, lane.lane) != 0; }

// Room for numbers that the functions of the index for many read.
std::uint32_t NumbersOf(index_of::IndexModule& module, std::size_t count) {
  const std::uint32_t area = index_of::numbersFor(&module, static_cast<std::uint32_t>(count));
  if (area == 0) throw std::bad_alloc();
  return area;
}

// Writes numbers where NumbersOf has made room.
void WriteNumbers(index_of::IndexModule& module, std::uint32_t area, const std::uint64_t* numbers, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) index_of::f64_store(&module.memory, area + 8 * i, static_cast<double>(numbers[i]));
}

}  // namespace

// What a request asks for, and where.
struct ThreadSafeArena::Place {
  std::uint64_t key;
  Stream stream;
  std::uint64_t bytes;
  std::uint64_t units;
  std::uint64_t alignment;
  std::uint64_t claimant;
  bool cuts_large_blocks = false;
  std::uint64_t slack() const { return units * kUnitBytes - bytes; }
};

// Those of many frees that are of one index.
struct ThreadSafeArena::Part {
  std::vector<std::size_t> places;  // in the call
  std::vector<std::uint64_t> addresses, sizes;
  std::uint64_t number = 0;  // of the frees
  Lane* lane = nullptr;
};

// What a thread keeps of an arena.
class ThreadState {
 public:
  // Null if this thread has none, or has ended.
  static ThreadState* Known(const ThreadSafeArena& arena);
  // The one of this thread, which may be new. Null if the thread has ended.
  static ThreadState* Find(ThreadSafeArena& arena);

  std::uint64_t id = 0;
  std::weak_ptr<ThreadSafeArena> shared;
  ThreadArena* own = nullptr;
  std::vector<ArenaEvent*> events;  // idle ones

  void End() {
    if (const std::shared_ptr<ThreadSafeArena> arena = shared.lock()) {
      {
        const std::lock_guard<std::mutex> lock(arena->mutex_);
        arena->idle_events_.insert(arena->idle_events_.end(), events.begin(), events.end());
      }
      if (own != nullptr) arena->EndThread(own);
    }
  }
};

namespace {

thread_local bool has_thread_ended = false;  // its destructors run

struct ThreadStates {
  std::vector<std::unique_ptr<ThreadState>> all;
  ThreadState* last = nullptr;
  ~ThreadStates() {
    has_thread_ended = true;
    for (const std::unique_ptr<ThreadState>& each : all) Guarded([&] { return each->End(), kSuccess; });
  }
};

ThreadStates& StatesOfThread() {
  thread_local ThreadStates states;
  return states;
}

// Makes room in a lane for uses that are added later without asking for memory.
void MakeRoom(Lane& lane, std::size_t uses) { lane.before.reserve(lane.before.size() + lane.promised + uses); }

void Retain(const std::vector<EventUse>& uses) {
  for (const EventUse& use : uses) use.event->users.fetch_add(1);
}

// Adds what comes before memory that joins a lane, which has room. The event's user passes on unless false is returned.
bool AddBefore(Lane& lane, const EventUse& use) {
  for (const EventUse& each : lane.before) {
    if (each.event == use.event) return false;
  }
  lane.before.push_back(use);
  return true;
}

Lane& AddLane(ThreadArena& arena, std::uint64_t key) {
  if (arena.spare_lanes.empty()) {
    arena.spare_lanes.reserve(arena.lanes.size() + 1);
    const std::uint32_t fresh = index_of::addLane(&arena.module, arena.index);
    if (fresh == 0) throw std::bad_alloc();
    arena.spare_lanes.push_back(fresh);
  }
  auto added = std::make_unique<Lane>();
  added->key = key;
  added->lane = arena.spare_lanes.back();
  Lane*& by_lane = arena.by_lane[added->lane];
  Lane& lane = *arena.lanes.emplace(key, std::move(added)).first->second;
  by_lane = &lane;
  arena.spare_lanes.pop_back();
  index_of::shareLane(&arena.module, lane.lane, 1);
  return lane;
}

}  // namespace

ThreadState* ThreadState::Known(const ThreadSafeArena& arena) {
  if (has_thread_ended) return nullptr;
  ThreadStates& states = StatesOfThread();
  if (states.last != nullptr && states.last->id == arena.id()) return states.last;
  for (std::size_t i = 0; i < states.all.size(); ++i) {
    if (states.all[i]->id == arena.id()) return states.last = states.all[i].get();
  }
  return nullptr;
}

ThreadState* ThreadState::Find(ThreadSafeArena& arena) {
  ThreadState* const known = Known(arena);
  if (known != nullptr || has_thread_ended) return known;
  ThreadStates& states = StatesOfThread();
  states.last = nullptr;
  states.all.erase(std::remove_if(states.all.begin(), states.all.end(), [](const auto& each) { return each->shared.expired(); }),
                   states.all.end());
  auto state = std::make_unique<ThreadState>();
  state->events.reserve(kMostEventsOfThread);
  state->id = arena.id();
  state->shared = arena.weak_from_this();
  states.all.push_back(std::move(state));
  return states.last = states.all.back().get();
}

// Lets the memory of streams, which may have ended, belong to none, where all wait for it.
void ThreadSafeArena::FoldLanes(ThreadArena& arena) {
  const auto found = arena.lanes.find(kCommonKey);
  Lane& common = found != arena.lanes.end() ? *found->second : AddLane(arena, kCommonKey);
  for (auto each = arena.lanes.begin(); each != arena.lanes.end();) {
    Lane& lane = *each->second;
    if (&lane == &common || lane.pins > 0 || lane.is_held || lane.is_unrecorded) {
      ++each;
      continue;
    }
    MakeRoom(common, lane.before.size());
    index_of::transfer(&arena.module, arena.index, lane.lane, common.lane);
    for (const EventUse& use : lane.before) {
      if (!AddBefore(common, {use.event, use.number, false})) ReleaseUse(use.event);
    }
    arena.by_lane.erase(lane.lane);
    arena.spare_lanes.push_back(lane.lane);
    each = arena.lanes.erase(each);
  }
  arena.lanes_to_fold = std::max(kUsualLanes, 2 * arena.lanes.size());
}

// The lane of a stream.
Lane& ThreadSafeArena::LaneOf(ThreadArena& arena, std::uint64_t key) {
  if (arena.last != nullptr && arena.last->key == key) return *arena.last;
  const auto found = arena.lanes.find(key);
  if (found != arena.lanes.end()) return *(arena.last = found->second.get());
  arena.last = nullptr;
  if (arena.lanes.size() >= arena.lanes_to_fold) FoldLanes(arena);
  return *(arena.last = &AddLane(arena, key));
}

ThreadSafeArena::ThreadSafeArena(const ThreadSafeSettings& settings) : settings_(settings) {}

Status ThreadSafeArena::Open(const ThreadSafeSettings& settings, const DriverTable* table, void (*end)(ThreadSafeArena*),
                             std::shared_ptr<ThreadSafeArena>* opened) {
  return Guarded([&]() -> Status {
    std::shared_ptr<ThreadSafeArena> arena(new ThreadSafeArena(settings), end);
    arena->driver = table;
    {
      GlobalArenas& arenas = AllArenas();
      const std::lock_guard<std::mutex> lock(arenas.mutex);
      const auto found = arenas.by_number.find(settings.arena);
      if (found == arenas.by_number.end() || !found->second->IsReady()) return kStaleHandle;
      const GlobalArena& global = *found->second;
      arena->backend_ = global.backend;
      arena->device_ = global.device;
      arena->base_ = global.base;
      arena->bytes_ = global.bytes;
      arena->superblock_bytes_ = global.superblock_bytes;
    }
    while (std::uint64_t{1} << arena->superblock_shift_ < arena->superblock_bytes_) arena->superblock_shift_ += 1;
    const std::uint64_t superblocks = arena->bytes_ >> arena->superblock_shift_;
    // Pages of it take memory once a superblock in their range is taken.
    void* const owners = MapSparsePages(superblocks * sizeof(std::atomic<ThreadArena*>), PageBytes());
    if (owners == nullptr) return kHostOutOfMemory;
    arena->owners_ = static_cast<std::atomic<ThreadArena*>*>(owners);
    const DriverScope scope(table, settings.context);
    const RelaxedModeScope relaxed(table);
    if (scope.status() != kSuccess) return scope.status();
    const Status status = table->StreamCreateWithPriority(&arena->trimming_, kStreamNonBlocking, 0);
    if (status != kSuccess) return status;
    GlobalArenas& arenas = AllArenas();
    const std::lock_guard<std::mutex> lock(arenas.mutex);
    Tenant& tenant = arenas.by_number.at(settings.arena)->tenants[settings.id];
    tenant.native = arena;
    tenant.opens = 1;
    *opened = std::move(arena);
    return kSuccess;
  });
}

ThreadSafeArena::~ThreadSafeArena() {
  if (owners_ == nullptr) return;
  const std::uint64_t owner_bytes = (bytes_ >> superblock_shift_) * sizeof(std::atomic<ThreadArena*>);
  if (trimming_ != nullptr) {
    // What is held for streams, which may be gone, has no events.
    GiveBack(true);
    Guarded([&] {
      GlobalArenas& arenas = AllArenas();
      const std::lock_guard<std::mutex> lock(arenas.mutex);
      GlobalArena& global = *arenas.by_number.at(settings_.arena);
      const auto tenant = global.tenants.find(settings_.id);
      if (tenant != global.tenants.end()) {
        if (tenant->second.bytes > 0) arenas.any_ended = true;
        global.tenants.erase(tenant);
      }
      arenas.changed.notify_all();
      if (global.tenants.empty()) LeaveArena(arenas, settings_.arena);
      return kSuccess;
    });
    const DriverScope scope(driver, settings_.context);
    const RelaxedModeScope relaxed(driver);
    EndedArena refused{backend_, device_, 0, 0, 0, {}, nullptr};
    Guarded([&] {
      refused.events.reserve(events_.size());
      return kSuccess;
    });
    for (const std::unique_ptr<ArenaEvent>& each : events_) {
      const Status status = driver->EventDestroy(each->event);
      if (status != kSuccess && refused.events.size() < refused.events.capacity())
        refused.events.push_back({each->event, device_, 0, settings_.id});
    }
    if (driver->StreamDestroy(trimming_) != kSuccess) refused.stream = trimming_;
    if (refused.stream != nullptr || !refused.events.empty()) {
      Guarded([&] {
        GlobalArenas& arenas = AllArenas();
        const std::lock_guard<std::mutex> lock(arenas.mutex);
        return arenas.leave.load()(refused), kSuccess;
      });
    }
  }
  UnmapPages(owners_, owner_bytes);
}

// kCapturing for a stream that is captured, and for the legacy default stream while one is that it waits for.
Status ThreadSafeArena::RefuseCaptured(Stream stream) {
  int capture = kCaptureNone;
  const Status status = driver->StreamIsCapturing(stream, &capture);
  if (status == kErrorCaptureImplicit || (status == kSuccess && capture != kCaptureNone)) return kCapturing;
  return status == kErrorNotSupported ? Status{kSuccess} : status;
}

// A stream's identity, since the driver may give the handle of one that has ended to another. Its context is current.
Status ThreadSafeArena::Identify(Stream stream, std::uint64_t* key) {
  const Status captured = RefuseCaptured(stream);
  if (captured != kSuccess) return captured;
  *key = kLegacyKey;
  if (stream == LegacyStream()) return kSuccess;
  *key = NumberOfThread() << 2 | 3;
  if (stream == PerThreadStream()) return kSuccess;
  unsigned long long id = 0;
  const Status status = driver->StreamGetId(stream, &id);
  *key = id << 2 | 2;
  return status;
}

ThreadArena* ThreadSafeArena::OwnArena() {
  ThreadState* const state = ThreadState::Find(*this);
  if (state != nullptr && state->own != nullptr) return state->own;
  const std::lock_guard<std::mutex> lock(mutex_);
  ThreadArena* own;
  if (!without_thread_.empty()) {
    own = without_thread_.back();
    // A thread that ends shares one that nobody has.
    if (state != nullptr) without_thread_.pop_back();
  } else {
    without_thread_.reserve(arenas_.size() + 1);
    const bool is_off = settings_.events == DeallocationEvents::kOff;
    arenas_.push_back(std::make_unique<ThreadArena>(is_off ? kMaximumUnits : kSuperblocksToCut * superblock_bytes_ / kUnitBytes));
    own = arenas_.back().get();
    if (state == nullptr) without_thread_.push_back(own);
  }
  if (state != nullptr) state->own = own;
  return own;
}

std::vector<ThreadArena*> ThreadSafeArena::Arenas() {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::vector<ThreadArena*> all;
  for (const std::unique_ptr<ThreadArena>& each : arenas_) all.push_back(each.get());
  return all;
}

ThreadArena* ThreadSafeArena::OwnerOf(std::uint64_t address) const {
  if (address < base_ || address - base_ >= bytes_) return nullptr;
  return owners_[(address - base_) >> superblock_shift_].load();
}

void ThreadSafeArena::EndThread(ThreadArena* arena) noexcept {
  Guarded([&] { return GiveBackFrom(*arena), kSuccess; });
  const std::lock_guard<std::mutex> lock(mutex_);
  without_thread_.push_back(arena);  // there is room: OwnArena has made it
}

Status ThreadSafeArena::AcquireEvent(ArenaEvent** event) {
  ThreadState* const state = ThreadState::Find(*this);
  *event = nullptr;
  if (state != nullptr && !state->events.empty()) {
    *event = state->events.back();
    state->events.pop_back();
  } else {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!idle_events_.empty()) {
      *event = idle_events_.back();
      idle_events_.pop_back();
    }
  }
  if (*event == nullptr) {
    auto fresh = std::make_unique<ArenaEvent>();
    const DriverTable* table = driver;
    const RelaxedModeScope relaxed(table);
    Status status = table->EventCreate(&fresh->event, kEventDisableTiming);
    if (status != kSuccess) return status;
    status = Guarded([&] {
      const std::lock_guard<std::mutex> lock(mutex_);
      idle_events_.reserve(events_.size() + 1);
      events_.reserve(events_.size() + 1);
      *event = fresh.get();
      events_.push_back(std::move(fresh));
      return kSuccess;
    });
    if (status != kSuccess) {
      table->EventDestroy(fresh->event);
      return status;
    }
  }
  (*event)->users.store(1);
  return kSuccess;
}

void ThreadSafeArena::ReleaseUse(ArenaEvent* event) {
  if (event->users.fetch_sub(1) != 1) return;
  ThreadState* const state = ThreadState::Known(*this);
  if (state != nullptr && state->events.size() < kMostEventsOfThread) {
    state->events.push_back(event);  // there is room
    return;
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  idle_events_.push_back(event);  // here, too
}

Status ThreadSafeArena::AwaitAll(Stream stream, const std::vector<EventUse>& uses) {
  const DriverTable* table = driver;
  for (const EventUse& use : uses) {
    const Status status = table->StreamWaitEvent(stream, use.event->event, 0);
    if (status != kSuccess) return status;
  }
  return kSuccess;
}

bool ThreadSafeArena::RecordsAtFree(Stream stream) const {
  if (settings_.events == DeallocationEvents::kOff) return false;
  return settings_.events == DeallocationEvents::kEager || stream != LegacyStream();
}

// A lane's memory comes after what its stream was given until the number was taken. Consumes a user of the
// event, which is null unless RecordsAtFree. There must be room in `before`.
void ThreadSafeArena::NoteOrder(Lane& lane, std::uint64_t number, ArenaEvent* event) {
  if (event == nullptr) {
    lane.last_free = std::max(lane.last_free, number);
    return;
  }
  std::size_t kept = 0;
  for (const EventUse& use : lane.before) {
    if (use.is_awaited && use.number < number) {
      ReleaseUse(use.event);  // the newer one covers it
    } else {
      lane.before[kept++] = use;
    }
  }
  lane.before.resize(kept);
  lane.before.push_back({event, number, true});
}

// Before memory of a lane may be used on its own stream.
Status ThreadSafeArena::AwaitOwn(ThreadArena& arena, Lane& lane, Stream stream, std::unique_lock<std::mutex>& lock) {
  for (;;) {
    std::vector<EventUse> uses;
    for (const EventUse& use : lane.before) {
      if (!use.is_awaited) uses.push_back(use);
    }
    if (uses.empty()) return kSuccess;
    Retain(uses);
    lane.pins += 1;
    lock.unlock();
    const Status status = AwaitAll(stream, uses);
    const std::uint64_t number = ++arena.last_number;
    lock.lock();
    lane.pins -= 1;
    for (const EventUse& use : uses) {
      for (EventUse& each : lane.before) {
        if (status != kSuccess || each.event != use.event) continue;
        each.is_awaited = true;
        each.number = number;
      }
      ReleaseUse(use.event);
    }
    if (status != kSuccess) return status;
  }
}

// Records the event of a lane of the legacy default stream. kCapturing if that would invalidate a capture.
Status ThreadSafeArena::RecordLate(ThreadArena& arena, Lane& lane, std::unique_lock<std::mutex>& lock) {
  lane.pins += 1;
  lock.unlock();
  ArenaEvent* event = nullptr;
  Status status = RefuseCaptured(LegacyStream());
  if (status == kSuccess) status = Guarded([&] { return AcquireEvent(&event); });
  const std::uint64_t number = ++arena.last_number;
  if (status == kSuccess) {
    status = driver->EventRecord(event->event, LegacyStream());
    if (status != kSuccess) ReleaseUse(event);
  }
  lock.lock();
  lane.pins -= 1;
  if (status != kSuccess) return status;
  status = Guarded([&] { return MakeRoom(lane, 1), kSuccess; });
  if (status != kSuccess) {
    ReleaseUse(event);
    return status;
  }
  NoteOrder(lane, number, event);
  if (lane.last_free < number) lane.is_unrecorded = false;
  return kSuccess;
}

// Replaces the events of the lane that belongs to no stream, to which each fold adds, by one that comes after them.
Status ThreadSafeArena::JoinEvents(Lane& common, std::unique_lock<std::mutex>& lock) {
  const std::vector<EventUse> uses = common.before;
  Retain(uses);
  common.pins += 1;
  lock.unlock();
  ArenaEvent* event = nullptr;
  Status status = Guarded([&] { return AcquireEvent(&event); });
  if (status == kSuccess) status = AwaitAll(trimming_, uses);
  if (status == kSuccess) status = driver->EventRecord(event->event, trimming_);
  lock.lock();
  common.pins -= 1;
  std::size_t kept = 0;
  for (const EventUse& each : common.before) {
    const bool is_covered = std::any_of(uses.begin(), uses.end(), [&](const EventUse& use) { return use.event == each.event; });
    if (status == kSuccess && is_covered) {
      ReleaseUse(each.event);
    } else {
      common.before[kept++] = each;
    }
  }
  // Meanwhile another call may have joined the lane's memory with its stream's.
  const bool is_needed = kept < common.before.size();
  common.before.resize(kept);
  if (is_needed) common.before.push_back({event, 0, false});
  if (!is_needed && event != nullptr) ReleaseUse(event);
  for (const EventUse& use : uses) ReleaseUse(use.event);
  return status;
}

// Allocates from a lane. kErrorOutOfMemory if it has no block, kHostOutOfMemory if there is no memory for the books.
Status ThreadSafeArena::Cut(ThreadArena& arena, const Lane& lane, const Place& place, std::uint64_t* address) {
  const auto units = static_cast<std::uint32_t>(place.units);
  const auto slack = static_cast<std::uint32_t>(place.slack());
  double cut;
  if (place.alignment > kUnitBytes) {
    const auto alignment = static_cast<double>(place.alignment);
    cut = index_of::allocateAligned(&arena.module, arena.index, units, slack, alignment, lane.lane, kNobodyOfIndex);
  } else {
    arena.LeaveLargeBlocksWhole(is_short_.load(std::memory_order_relaxed) && !place.cuts_large_blocks);
    cut = index_of::allocate(&arena.module, arena.index, units, slack, lane.lane, kNobodyOfIndex);
  }
  if (cut < 0) return cut < -1 ? kHostOutOfMemory : kErrorOutOfMemory;
  const auto begin = static_cast<std::uint64_t>(cut);
  const Status status = place.claimant == kNobody ? Status{kSuccess} : Guarded([&] {
    arena.claims[begin] = place.claimant;
    return kSuccess;
  });
  if (status != kSuccess) {
    index_of::free(&arena.module, arena.index, index_of::usedBlock(&arena.module, arena.index, cut), lane.lane);
    return status;
  }
  arena.live_bytes += place.bytes;
  arena.live_allocations += 1;
  *address = begin;
  return kSuccess;
}

// From the lane of another stream, which has a block that fits.
Status ThreadSafeArena::TakeFromOthers(ThreadArena& arena, const Place& place, std::unique_lock<std::mutex>& lock, std::uint64_t* address) {
  const std::uint64_t wanted = place.units + (place.alignment > kUnitBytes ? place.alignment / kUnitBytes - 1 : 0);
  if (wanted > kMaximumUnits) return kErrorOutOfMemory;
  for (;;) {
    const Lane& own = LaneOf(arena, place.key);
    const std::uint32_t found = index_of::laneWith(&arena.module, arena.index, static_cast<std::uint32_t>(wanted), own.lane, 0, 0);
    if (found == 0) return kErrorOutOfMemory;
    Lane& other = *arena.by_lane.at(found);
    if (other.is_unrecorded) {
      const Status status = RecordLate(arena, other, lock);
      // Its memory stays where it is while somebody captures.
      if (status == kCapturing) return kErrorOutOfMemory;
      if (status != kSuccess) return status;
      continue;
    }
    if (other.key == kCommonKey && other.before.size() > kUsualLanes) {
      const Status status = JoinEvents(other, lock);
      if (status != kSuccess) return status;
      continue;
    }
    const std::vector<EventUse> uses = other.before;
    MakeRoom(other, uses.size());
    std::uint64_t cut;
    Status status = Cut(arena, other, place, &cut);
    if (status != kSuccess) return status;
    Retain(uses);
    other.pins += 1;
    other.promised += uses.size();
    lock.unlock();
    status = AwaitAll(place.stream, uses);
    lock.lock();
    other.pins -= 1;
    other.promised -= uses.size();
    if (status != kSuccess) {
      const std::uint32_t block = index_of::usedBlock(&arena.module, arena.index, static_cast<double>(cut));
      FreeBlock(arena, cut, place.bytes, block, other);
      for (const EventUse& use : uses) {
        if (!AddBefore(other, use)) ReleaseUse(use.event);
      }
      return status;
    }
    for (const EventUse& use : uses) ReleaseUse(use.event);
    *address = cut;
    return kSuccess;
  }
}

// Brings all free memory of an index together in the lane of a stream.
Status ThreadSafeArena::JoinLanes(ThreadArena& arena, const Place& place, std::unique_lock<std::mutex>& lock, std::uint64_t* address) {
  bool can_record = true;
  for (bool is_complete = false; !is_complete;) {
    is_complete = true;
    Lane& own = LaneOf(arena, place.key);
    for (const auto& [key, lane] : arena.lanes) {
      if (lane.get() == &own || lane->is_held || IsEmpty(arena, *lane)) continue;
      if (lane->is_unrecorded) {
        if (!can_record) continue;
        // Meanwhile there may be other lanes.
        const Status status = RecordLate(arena, *lane, lock);
        can_record = status != kCapturing;
        if (can_record && status != kSuccess) return status;
        is_complete = false;
        break;
      }
      MakeRoom(own, lane->before.size());
      index_of::transfer(&arena.module, arena.index, lane->lane, own.lane);
      for (const EventUse& use : lane->before) {
        if (!AddBefore(own, {use.event, use.number, false})) ReleaseUse(use.event);
      }
      lane->before.clear();
    }
  }
  Lane& own = LaneOf(arena, place.key);
  own.pins += 1;
  const Status status = Guarded([&] { return AwaitOwn(arena, own, place.stream, lock); });
  own.pins -= 1;
  return status == kSuccess ? Cut(arena, own, place, address) : status;
}

// Takes superblocks, and serves the request from them.
Status ThreadSafeArena::Grow(ThreadArena& arena, const Place& place, std::uint64_t* address) {
  GlobalArenas& arenas = AllArenas();
  TakenRanges taken;
  std::uint64_t begin, size;
  GlobalArena* global;
  {
    const std::lock_guard<std::mutex> lock(arenas.mutex);
    global = arenas.by_number.at(settings_.arena).get();
    if (place.bytes > global->bytes) return kErrorOutOfMemory;
    size = global->RoundUp(place.bytes);
    begin = TakeSuperblocks(settings_.id, *global, size, &taken);
  }
  if (begin == 0) return kErrorOutOfMemory;
  const DriverTable* table = driver;
  Status status = WaitForFrees(taken, [&](Event event) { return table->StreamWaitEvent(place.stream, event, 0); });
  const bool has_waited = std::any_of(taken.begin(), taken.end(), [](const auto& range) { return range.second.freed != nullptr; });
  ArenaEvent* event = nullptr;
  const std::uint64_t number = ++arena.last_number;
  if (status == kSuccess && has_waited && RecordsAtFree(place.stream)) {
    status = Guarded([&] { return AcquireEvent(&event); });
    if (status == kSuccess) status = table->EventRecord(event->event, place.stream);
  }
  std::unique_lock<std::mutex> lock(arena.mutex);
  bool is_added = false;
  if (status == kSuccess) {
    status = Guarded([&]() -> Status {
      Lane& own = LaneOf(arena, place.key);
      MakeRoom(own, 1);
      const auto units = static_cast<std::uint32_t>(size / kUnitBytes);
      is_added = index_of::extendSegment(&arena.module, arena.index, static_cast<double>(begin), units, own.lane) != 0;
      if (!is_added) return kHostOutOfMemory;
      SetOwner(begin, size, &arena);
      if (!has_waited) return kSuccess;
      NoteOrder(own, number, event);
      event = nullptr;
      if (settings_.events == DeallocationEvents::kOff) {
        Hold(arena, own, true);
      } else if (!RecordsAtFree(place.stream)) {
        own.is_unrecorded = true;
      }
      return kSuccess;
    });
  }
  {
    // Before anybody can free what the index has now.
    const std::lock_guard<std::mutex> global_lock(arenas.mutex);
    if (is_added) {
      NoteTaken(settings_.id, *global, size, taken);
    } else {
      PutBack(settings_.id, *global, begin, &taken);
      arenas.changed.notify_all();
    }
  }
  lock.unlock();
  if (event != nullptr) ReleaseUse(event);
  return status == kSuccess ? TryAllocate(arena, place, address) : status;
}

// From the stream's own lane.
Status ThreadSafeArena::TryAllocate(ThreadArena& arena, const Place& place, std::uint64_t* address) {
  std::unique_lock<std::mutex> lock(arena.mutex);
  Lane& own = LaneOf(arena, place.key);
  if (!own.before.empty()) {
    const Status status = AwaitOwn(arena, own, place.stream, lock);
    if (status != kSuccess) return status;
  }
  return Cut(arena, own, place, address);
}

Status ThreadSafeArena::Allocate(std::uint64_t bytes, std::uint64_t alignment, Stream stream, std::uint64_t* address,
                                 std::uint64_t claimant) noexcept {
  *address = 0;
  if (alignment == 0 || (alignment & (alignment - 1)) != 0 || alignment > superblock_bytes_) return kInvalidArgument;
  if (bytes == 0) return kSuccess;
  if (!CanHave(bytes)) return kErrorOutOfMemory;
  if (stream == nullptr) stream = LegacyStream();
  return Guarded([&]() -> Status {
    const DriverScope scope(driver, settings_.context);
    if (scope.status() != kSuccess) return scope.status();
    Place place{0, stream, bytes, UnitsOf(bytes), std::max(alignment, kUnitBytes), claimant};
    const Status status = Identify(stream, &place.key);
    return status == kSuccess ? AllocateFrom(*OwnArena(), place, address) : status;
  });
}

bool ThreadSafeArena::CanHave(std::uint64_t bytes) const { return bytes <= bytes_ && bytes <= kMaximumUnits * kUnitBytes; }

Status ThreadSafeArena::AllocateFrom(ThreadArena& arena, const Place& place, std::uint64_t* address) {
  Status status = TryAllocate(arena, place, address);
  if (status != kErrorOutOfMemory) return status;

  Place any_fit = place;
  any_fit.cuts_large_blocks = true;
  enum Step { kFirst, kOwnThreads, kOtherTenants, kDevice, kEnvironments, kPatient };
  for (int step = kFirst, waits = 0;;) {
    const std::uint64_t freed_bytes = FreedBytes();
    {
      std::unique_lock<std::mutex> lock(arena.mutex);
      status = TakeFromOthers(arena, place, lock, address);
    }
    if (status == kErrorOutOfMemory) status = Grow(arena, place, address);
    if (status == kErrorOutOfMemory && step == kFirst && OthersHaveMemory(arena)) {
      is_short_ = true;
      // If what is left whole serves the request after that, too: whole superblocks of it are given back.
      if (HasWholeSuperblocks(arena, place)) {
        GiveBack(false);
        status = Grow(arena, place, address);
      }
    }
    // Otherwise both have looked at all blocks.
    const bool has_left_blocks = is_short_;
    if (status == kErrorOutOfMemory && has_left_blocks) status = TryAllocate(arena, any_fit, address);
    if (status == kErrorOutOfMemory) {
      std::unique_lock<std::mutex> lock(arena.mutex);
      if (has_left_blocks) status = TakeFromOthers(arena, any_fit, lock, address);
      if (status == kErrorOutOfMemory) status = JoinLanes(arena, any_fit, lock, address);
    }
    if (status != kErrorOutOfMemory) return status;
    if (step < kPatient) step += 1;
    if (step == kOwnThreads || step == kDevice) GiveBack(step == kDevice);
    if (step == kOtherTenants || step == kDevice) LetNativeTenantsGiveBack(settings_.arena, settings_.id, step == kDevice);
    if (step == kEnvironments) AskEnvironments();
    if (step < kPatient) continue;
    if (!AwaitFrees(freed_bytes) || ++waits > kPatience) return kErrorOutOfMemory;
  }
}

Status ThreadSafeArena::AllocateMany(const std::vector<std::uint64_t>& sizes, Stream stream, std::vector<std::uint64_t>* addresses,
                                     std::size_t* done, std::uint64_t claimant) noexcept {
  *done = 0;
  if (stream == nullptr) stream = LegacyStream();
  return Guarded([&]() -> Status {
    addresses->assign(sizes.size(), 0);
    const DriverScope scope(driver, settings_.context);
    if (scope.status() != kSuccess) return scope.status();
    Place place{0, stream, 0, 0, kUnitBytes, claimant};
    Status status = Identify(stream, &place.key);
    if (status != kSuccess) return status;
    ThreadArena& arena = *OwnArena();
    // What was allocated before the rest is refused goes there. It stays meanwhile, and is not made when memory is short.
    Lane* own;
    {
      const std::lock_guard<std::mutex> lock(arena.mutex);
      own = &LaneOf(arena, place.key);
      own->pins += 1;
    }
    status = Guarded([&] { return AllocateEach(arena, place, sizes, addresses, done); });
    if (status != kSuccess) UndoMany(arena, *own, place, sizes, *addresses, *done);
    const std::lock_guard<std::mutex> lock(arena.mutex);
    own->pins -= 1;
    return status;
  });
}

Status ThreadSafeArena::AllocateEach(ThreadArena& arena, Place place, const std::vector<std::uint64_t>& sizes,
                                     std::vector<std::uint64_t>* addresses, std::size_t* done) {
  while (*done < sizes.size()) {
    place.bytes = sizes[*done];
    place.units = UnitsOf(place.bytes);
    if (place.bytes > 0) {
      if (!CanHave(place.bytes)) return kErrorOutOfMemory;
      const std::size_t before = *done;
      Status status = TryMany(arena, place, sizes, addresses, done);
      if (status == kSuccess && *done > before) continue;
      if (status == kSuccess) status = AllocateFrom(arena, place, &(*addresses)[*done]);
      if (status != kSuccess) return status;
    }
    *done += 1;
  }
  return kSuccess;
}

// As many as the stream's own lane serves.
Status ThreadSafeArena::TryMany(ThreadArena& arena, const Place& place, const std::vector<std::uint64_t>& sizes,
                                std::vector<std::uint64_t>* addresses, std::size_t* done) {
  const std::size_t first = *done;
  const std::size_t most = std::min(sizes.size() - first, kMostAtOnce);
  std::size_t count = 0;
  while (count < most && sizes[first + count] > 0 && sizes[first + count] <= kMostBytesOfMany) count += 1;
  if (count == 0) return kSuccess;
  std::unique_lock<std::mutex> lock(arena.mutex);
  Lane& own = LaneOf(arena, place.key);
  if (!own.before.empty()) {
    const Status status = AwaitOwn(arena, own, place.stream, lock);
    if (status != kSuccess) return status;
  }
  const std::uint32_t area = NumbersOf(arena.module, count);
  WriteNumbers(arena.module, area, &sizes[first], count);
  const std::uint32_t served =
      index_of::allocateMany(&arena.module, arena.index, static_cast<std::uint32_t>(count), own.lane, kNobodyOfIndex);
  for (; *done < first + served; ++*done) {
    const auto address = static_cast<std::uint64_t>(index_of::f64_load(&arena.module.memory, area + 8 * (*done - first)));
    (*addresses)[*done] = address;
    arena.live_bytes += sizes[*done];
  }
  arena.live_allocations += served;
  if (place.claimant == kNobody) return kSuccess;
  for (std::size_t i = first; i < *done; ++i) arena.claims[(*addresses)[i]] = place.claimant;
  return kSuccess;
}

// Frees what was allocated before the rest was refused, after what the stream was given by then. Throws nothing: without
// memory for its event, the lane holds what is freed for its stream.
void ThreadSafeArena::UndoMany(ThreadArena& arena, Lane& lane, const Place& place, const std::vector<std::uint64_t>& sizes,
                               const std::vector<std::uint64_t>& addresses, std::size_t done) {
  ArenaEvent* event = nullptr;
  if (RecordsAtFree(place.stream)) Guarded([&] { return AcquireEvent(&event); });
  const std::uint64_t number = ++arena.last_number;
  if (event != nullptr && driver->EventRecord(event->event, place.stream) != kSuccess) {
    ReleaseUse(event);
    event = nullptr;
  }
  const std::lock_guard<std::mutex> lock(arena.mutex);
  if (event != nullptr && Guarded([&] { return MakeRoom(lane, 1), kSuccess; }) != kSuccess) {
    ReleaseUse(event);
    event = nullptr;
  }
  for (std::size_t i = 0; i < done; ++i) {
    if (addresses[i] == 0) continue;
    const std::uint32_t block = index_of::usedBlock(&arena.module, arena.index, static_cast<double>(addresses[i]));
    FreeBlock(arena, addresses[i], sizes[i], block, lane);
  }
  NoteFrees(arena, lane, number, event);
}

// Whether the stream's own lane has a block with enough whole superblocks for a request, wherever they begin in it.
bool ThreadSafeArena::HasWholeSuperblocks(ThreadArena& arena, const Place& place) {
  const std::uint64_t superblocks = (place.bytes + superblock_bytes_ - 1) / superblock_bytes_;
  const std::uint64_t units = (superblocks + 1) * superblock_bytes_ / kUnitBytes;
  if (units > kMaximumUnits) return false;
  const std::lock_guard<std::mutex> lock(arena.mutex);
  return index_of::canAllocate(&arena.module, arena.index, static_cast<std::uint32_t>(units), LaneOf(arena, place.key).lane) != 0;
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

// Calls use(arena, block) for a used block, with the lock of its index.
template <typename Use>
Status ThreadSafeArena::WithBlock(std::uint64_t address, std::uint64_t bytes, std::uint64_t* right_bytes, Use&& use) {
  return Guarded([&]() -> Status {
    ThreadArena* const owner = OwnerOf(address);
    if (owner == nullptr) return kForeignPointer;
    const std::lock_guard<std::mutex> lock(owner->mutex);
    // Superblocks that were given back have no block.
    const std::uint32_t block = index_of::usedBlock(&owner->module, owner->index, static_cast<double>(address));
    if (block == 0 || OwnerOf(address) != owner) return kForeignPointer;
    *right_bytes = static_cast<std::uint64_t>(index_of::askedBytes(&owner->module, block));
    return *right_bytes == bytes ? use(*owner, block) : Status{kWrongSize};
  });
}

void ThreadSafeArena::FreeBlock(ThreadArena& arena, std::uint64_t address, std::uint64_t bytes, std::uint32_t block, const Lane& lane) {
  index_of::free(&arena.module, arena.index, block, lane.lane);
  NoteFree(arena, address, bytes);
}

void ThreadSafeArena::NoteFree(ThreadArena& arena, std::uint64_t address, std::uint64_t bytes) {
  arena.live_bytes -= bytes;
  arena.live_allocations -= 1;
  if (!arena.claims.empty()) arena.claims.erase(address);
}

Status ThreadSafeArena::FreeOn(std::uint64_t address, std::uint64_t bytes, std::uint64_t key, ArenaEvent* event, std::uint64_t number,
                               std::uint64_t* right_bytes) {
  return WithBlock(address, bytes, right_bytes, [&](ThreadArena& arena, std::uint32_t block) {
    Lane& lane = LaneOf(arena, key);
    MakeRoom(lane, 1);
    FreeBlock(arena, address, bytes, block, lane);
    NoteFrees(arena, lane, number, event);
    return Status{kSuccess};
  });
}

// Something was freed into the lane of a stream. The event is null if none is recorded, or the driver has refused it. There
// must be room in `before`.
void ThreadSafeArena::NoteFrees(ThreadArena& arena, Lane& lane, std::uint64_t number, ArenaEvent* event) {
  NoteOrder(lane, number, event);
  if (event != nullptr) {
    // It covers what the driver has refused one for.
    if (lane.last_free < number) Hold(arena, lane, false);
  } else if (settings_.events == DeallocationEvents::kDeferred && lane.key == kLegacyKey) {
    lane.is_unrecorded = true;
  } else {
    Hold(arena, lane, true);
  }
}

Status ThreadSafeArena::Deallocate(std::uint64_t address, std::uint64_t bytes, Stream stream, std::uint64_t* right_bytes) noexcept {
  *right_bytes = 0;
  if (address == 0 && bytes == 0) return kSuccess;
  if (stream == nullptr) stream = LegacyStream();
  return Guarded([&]() -> Status {
    ThreadArena* const owner = OwnerOf(address);
    if (owner == nullptr) return kForeignPointer;
    const DriverTable* table = driver;
    const DriverScope scope(table, settings_.context);
    if (scope.status() != kSuccess) return scope.status();
    std::uint64_t key;
    Status status = Identify(stream, &key);
    if (status != kSuccess) return status;
    ArenaEvent* event = nullptr;
    if (RecordsAtFree(stream)) {
      status = AcquireEvent(&event);
      if (status != kSuccess) return status;
    }
    const std::uint64_t number = ++owner->last_number;
    if (event != nullptr) status = table->EventRecord(event->event, stream);
    if (status == kSuccess) status = FreeOn(address, bytes, key, event, number, right_bytes);
    if (status != kSuccess && event != nullptr) ReleaseUse(event);
    return status;
  });
}

Status ThreadSafeArena::DeallocateMany(const std::vector<std::uint64_t>& addresses, const std::vector<std::uint64_t>& sizes, Stream stream,
                                       Wrong* wrong) noexcept {
  if (stream == nullptr) stream = LegacyStream();
  return Guarded([&]() -> Status {
    Parts parts;
    Status status = PartsOf(addresses, sizes, wrong, &parts);
    if (status != kSuccess || parts.empty()) return status;
    const DriverTable* table = driver;
    const DriverScope scope(table, settings_.context);
    if (scope.status() != kSuccess) return scope.status();
    std::uint64_t key;
    status = Identify(stream, &key);
    if (status != kSuccess) return status;
    ArenaEvent* event = nullptr;
    if (RecordsAtFree(stream)) {
      status = AcquireEvent(&event);
      if (status != kSuccess) return status;
    }
    for (auto& [owner, part] : parts) part.number = ++owner->last_number;
    if (event != nullptr) status = table->EventRecord(event->event, stream);
    if (status == kSuccess) status = Guarded([&] { return FreeParts(parts, key, event, wrong); });
    if (event != nullptr) ReleaseUse(event);
    return status;
  });
}

Status ThreadSafeArena::CheckMany(const std::vector<std::uint64_t>& addresses, const std::vector<std::uint64_t>& sizes,
                                  Wrong* wrong) noexcept {
  return Guarded([&]() -> Status {
    Parts parts;
    Status status = PartsOf(addresses, sizes, wrong, &parts);
    const auto locks = Lock(parts);
    for (auto& [owner, part] : parts) {
      if (status == kSuccess) status = UsePart(*owner, part, index_of::firstUnused, wrong);
    }
    return status;
  });
}

Status ThreadSafeArena::PartsOf(const std::vector<std::uint64_t>& addresses, const std::vector<std::uint64_t>& sizes, Wrong* wrong,
                                Parts* parts) const {
  *wrong = {};
  ThreadArena* last = nullptr;
  Part* part = nullptr;
  for (std::size_t i = 0; i < addresses.size(); ++i) {
    if (addresses[i] == 0) continue;
    ThreadArena* const owner = OwnerOf(addresses[i]);
    if (owner == nullptr) {
      wrong->place = i;
      return kForeignPointer;
    }
    if (owner != last) part = &(*parts)[last = owner];
    part->places.push_back(i);
    part->addresses.push_back(addresses[i]);
    part->sizes.push_back(sizes[i]);
  }
  return kSuccess;
}

// In the order of the indexes' addresses, so that two such calls never wait for each other.
std::vector<std::unique_lock<std::mutex>> ThreadSafeArena::Lock(Parts& parts) {
  std::vector<std::unique_lock<std::mutex>> locks;
  for (auto& [owner, part] : parts) locks.emplace_back(owner->mutex);
  return locks;
}

// Calls a function of the index with what is to be freed, which returns the place of one that cannot be, or kNone.
template <typename Use>
Status ThreadSafeArena::UsePart(ThreadArena& arena, const Part& part, Use&& use, Wrong* wrong) {
  const std::size_t count = part.places.size();
  const std::uint32_t area = NumbersOf(arena.module, 2 * count);
  WriteNumbers(arena.module, area, part.addresses.data(), count);
  WriteNumbers(arena.module, static_cast<std::uint32_t>(area + 8 * count), part.sizes.data(), count);
  const std::uint32_t unused = use(&arena.module, arena.index, static_cast<std::uint32_t>(count));
  if (unused == kNone) return kSuccess;
  wrong->place = part.places[unused];
  const std::uint32_t block = index_of::usedBlock(&arena.module, arena.index, static_cast<double>(part.addresses[unused]));
  if (block == 0) return kForeignPointer;
  wrong->right_bytes = static_cast<std::uint64_t>(index_of::askedBytes(&arena.module, block));
  return wrong->right_bytes == part.sizes[unused] ? kForeignPointer : kWrongSize;
}

// Each lane becomes a user of the event, which is null unless RecordsAtFree.
Status ThreadSafeArena::FreeParts(Parts& parts, std::uint64_t key, ArenaEvent* event, Wrong* wrong) {
  const auto locks = Lock(parts);
  for (auto& [owner, part] : parts) {
    part.lane = &LaneOf(*owner, key);
    MakeRoom(*part.lane, 1);
    // Of several indexes, none frees before all are checked.
    const Status status = parts.size() == 1 ? Status{kSuccess} : UsePart(*owner, part, index_of::firstUnused, wrong);
    if (status != kSuccess) return status;
  }
  for (auto& [owner, part] : parts) {
    const std::uint32_t lane = part.lane->lane;
    const auto free_many = [&](index_of::IndexModule* module, std::uint32_t index, std::uint32_t count) {
      return index_of::freeMany(module, index, count, lane);
    };
    const Status status = UsePart(*owner, part, free_many, wrong);
    if (status != kSuccess) return status;
    for (std::size_t i = 0; i < part.places.size(); ++i) NoteFree(*owner, part.addresses[i], part.sizes[i]);
    if (event != nullptr) event->users.fetch_add(1);
    NoteFrees(*owner, *part.lane, part.number, event);
  }
  return kSuccess;
}

Status ThreadSafeArena::Synchronize(Stream stream) noexcept {
  return Guarded([&]() -> Status {
    const DriverScope scope(driver, settings_.context);
    const Status status = scope.status() == kSuccess ? RefuseCaptured(stream) : scope.status();
    return status == kSuccess ? driver->StreamSynchronize(stream) : status;
  });
}

Status ThreadSafeArena::Check(std::uint64_t address, std::uint64_t bytes, std::uint64_t* right_bytes) noexcept {
  return WithBlock(address, bytes, right_bytes, [](ThreadArena&, std::uint32_t) { return Status{kSuccess}; });
}

Status ThreadSafeArena::Claim(std::uint64_t address, std::uint64_t bytes, std::uint64_t claimant, std::uint64_t* right_bytes) noexcept {
  return WithBlock(address, bytes, right_bytes, [&](ThreadArena& arena, std::uint32_t) {
    arena.claims[address] = claimant;
    return Status{kSuccess};
  });
}

bool ThreadSafeArena::DeallocateClaimed(std::uint64_t address, std::uint64_t bytes, std::uint64_t claimant) noexcept {
  std::uint64_t right_bytes;
  const Status status = WithBlock(address, bytes, &right_bytes, [&](ThreadArena& arena, std::uint32_t block) {
    const auto claim = arena.claims.find(address);
    if (claim == arena.claims.end() || claim->second != claimant) return Status{kForeignPointer};
    FreeBlock(arena, address, bytes, block, LaneOf(arena, kCommonKey));
    return Status{kSuccess};
  });
  return status != kHostOutOfMemory;
}

std::vector<ThreadSafeArena::Claimed> ThreadSafeArena::ClaimsOf(std::uint64_t claimant) {
  std::vector<Claimed> claimed;
  for (ThreadArena* arena : Arenas()) {
    const std::lock_guard<std::mutex> lock(arena->mutex);
    for (const auto& [address, owner] : arena->claims) {
      if (owner != claimant) continue;
      const std::uint32_t block = index_of::usedBlock(&arena->module, arena->index, static_cast<double>(address));
      claimed.push_back({address, static_cast<std::uint64_t>(index_of::askedBytes(&arena->module, block))});
    }
  }
  return claimed;
}

bool ThreadSafeArena::HasClaims(std::uint64_t claimant) noexcept {
  bool has_claims = false;
  Guarded([&]() -> Status {
    for (ThreadArena* arena : Arenas()) {
      const std::lock_guard<std::mutex> lock(arena->mutex);
      for (const auto& [address, owner] : arena->claims) has_claims = has_claims || owner == claimant;
    }
    return kSuccess;
  });
  return has_claims;
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
    Status status = AwaitAll(trimming_, before);
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
    for (const EventUse& use : lane->before) ReleaseUse(use.event);
    lane->before.clear();
  }
  for (Status status = kSuccess; status == kSuccess;) {
    const auto legacy = arena.lanes.find(kLegacyKey);
    if (legacy == arena.lanes.end() || !legacy->second->is_unrecorded) break;
    status = RecordLate(arena, *legacy->second, lock);
  }
  arena.last = nullptr;
  FoldLanes(arena);
}

// Gives back one run of superblocks. False if there is none, or if the driver refuses.
bool ThreadSafeArena::GiveBackOnce(ThreadArena& arena) {
  std::unique_lock<std::mutex> lock(arena.mutex);
  Lane& lane = LaneOf(arena, kCommonKey);
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
  for (const EventUse& use : uses) ReleaseUse(use.event);
  return status == kSuccess;
}

void ThreadSafeArena::SetOwner(std::uint64_t address, std::uint64_t bytes, ThreadArena* owner) {
  for (std::uint64_t at = address; at < address + bytes; at += superblock_bytes_) {
    ThreadArena* const before = owners_[(at - base_) >> superblock_shift_].exchange(owner);
    if (before != nullptr) before->superblocks -= 1;
    if (owner != nullptr) owner->superblocks += 1;
  }
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

void ThreadSafeArena::ResetPeak() noexcept {
  Guarded([&]() -> Status {
    GlobalArenas& arenas = AllArenas();
    const std::lock_guard<std::mutex> lock(arenas.mutex);
    Tenant& tenant = arenas.by_number.at(settings_.arena)->tenants.at(settings_.id);
    tenant.peak_bytes = tenant.bytes;
    return kSuccess;
  });
}

ThreadSafeStatistics ThreadSafeArena::Statistics() noexcept {
  ThreadSafeStatistics statistics;
  Guarded([&]() -> Status {
    for (ThreadArena* arena : Arenas()) {
      const std::lock_guard<std::mutex> lock(arena->mutex);
      statistics.live_bytes += arena->live_bytes;
      statistics.live_allocations += arena->live_allocations;
      statistics.threads += 1;
    }
    GlobalArenas& arenas = AllArenas();
    const std::lock_guard<std::mutex> lock(arenas.mutex);
    const Tenant& tenant = arenas.by_number.at(settings_.arena)->tenants.at(settings_.id);
    statistics.reserved_bytes = tenant.bytes;
    statistics.peak_reserved_bytes = tenant.peak_bytes;
    return kSuccess;
  });
  return statistics;
}

}  // namespace cistern::arenas
