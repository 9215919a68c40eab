#include "arenas/thread_safe_arena.h"

#include <algorithm>
#include <utility>

#include "arenas/driver_scope.h"
#include "cuda/relaxed_mode_scope.h"
#include "platform/memory.h"

namespace cistern::arenas {
namespace {

constexpr int kPatience = 1000;

// A request leaves free blocks whole that are larger than so many superblocks, unless it is nearly as large. Under kOff
// it does not, because nobody could give back the superblocks that it takes instead.
constexpr std::uint64_t kSuperblocksToCut = 2;

}  // namespace

ThreadSafeArena::ThreadSafeArena(const ThreadSafeSettings& settings)
    : ThreadUser(settings.id), settings_(settings), events_(driver, *this), order_(driver, settings_.events, events_) {}

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
    const std::vector<Event> events = events_.Destroy();
    Guarded([&] {
      for (const Event event : events) refused.events.push_back({event, device_, 0, settings_.id});
      return kSuccess;
    });
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

void ThreadSafeArena::EndThread(const ThreadState& state) noexcept {
  Guarded([&] { return events_.TakeFrom(state.events), kSuccess; });
  if (state.own == nullptr) return;
  Guarded([&] { return GiveBackFrom(*state.own), kSuccess; });
  const std::lock_guard<std::mutex> lock(mutex_);
  without_thread_.push_back(state.own);  // there is room: OwnArena has made it
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
    index_of::free(&arena.module, arena.index, arena.UsedBlock(begin), lane.lane);
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
    const Lane& own = LaneOf(arena, place.key, events_);
    const std::uint32_t found = index_of::laneWith(&arena.module, arena.index, static_cast<std::uint32_t>(wanted), own.lane, 0, 0);
    if (found == 0) return kErrorOutOfMemory;
    Lane& other = *arena.by_lane.at(found);
    if (other.is_unrecorded) {
      const Status status = order_.RecordLate(arena, other, lock);
      // Its memory stays where it is while somebody captures.
      if (status == kCapturing) return kErrorOutOfMemory;
      if (status != kSuccess) return status;
      continue;
    }
    if (other.key == kCommonKey && other.before.size() > kUsualLanes) {
      const Status status = order_.JoinEvents(other, trimming_, lock);
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
    status = order_.AwaitAll(place.stream, uses);
    lock.lock();
    other.pins -= 1;
    other.promised -= uses.size();
    if (status != kSuccess) {
      const std::uint32_t block = arena.UsedBlock(cut);
      FreeBlock(arena, cut, place.bytes, block, other);
      for (const EventUse& use : uses) {
        if (!AddBefore(other, use)) events_.Release(use.event);
      }
      return status;
    }
    for (const EventUse& use : uses) events_.Release(use.event);
    *address = cut;
    return kSuccess;
  }
}

// Brings all free memory of an index together in the lane of a stream.
Status ThreadSafeArena::JoinLanes(ThreadArena& arena, const Place& place, std::unique_lock<std::mutex>& lock, std::uint64_t* address) {
  bool can_record = true;
  for (bool is_complete = false; !is_complete;) {
    is_complete = true;
    Lane& own = LaneOf(arena, place.key, events_);
    for (const auto& [key, lane] : arena.lanes) {
      if (lane.get() == &own || lane->is_held || IsEmpty(arena, *lane)) continue;
      if (lane->is_unrecorded) {
        if (!can_record) continue;
        // Meanwhile there may be other lanes.
        const Status status = order_.RecordLate(arena, *lane, lock);
        can_record = status != kCapturing;
        if (can_record && status != kSuccess) return status;
        is_complete = false;
        break;
      }
      JoinLane(arena, *lane, own, events_);
    }
  }
  Lane& own = LaneOf(arena, place.key, events_);
  own.pins += 1;
  const Status status = Guarded([&] { return order_.AwaitOwn(arena, own, place.stream, lock); });
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
  if (status == kSuccess && has_waited && order_.RecordsAtFree(place.stream)) {
    status = Guarded([&] { return events_.Acquire(&event); });
    if (status == kSuccess) status = table->EventRecord(event->event, place.stream);
  }
  std::unique_lock<std::mutex> lock(arena.mutex);
  bool is_added = false;
  if (status == kSuccess) {
    status = Guarded([&]() -> Status {
      Lane& own = LaneOf(arena, place.key, events_);
      MakeRoom(own, 1);
      const auto units = static_cast<std::uint32_t>(size / kUnitBytes);
      is_added = index_of::extendSegment(&arena.module, arena.index, static_cast<double>(begin), units, own.lane) != 0;
      if (!is_added) return kHostOutOfMemory;
      SetOwner(begin, size, &arena);
      if (!has_waited) return kSuccess;
      order_.NoteOrder(own, number, event);
      event = nullptr;
      if (settings_.events == DeallocationEvents::kOff) {
        Hold(arena, own, true);
      } else if (!order_.RecordsAtFree(place.stream)) {
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
  if (event != nullptr) events_.Release(event);
  return status == kSuccess ? TryAllocate(arena, place, address) : status;
}

// From the stream's own lane.
Status ThreadSafeArena::TryAllocate(ThreadArena& arena, const Place& place, std::uint64_t* address) {
  std::unique_lock<std::mutex> lock(arena.mutex);
  Lane& own = LaneOf(arena, place.key, events_);
  if (!own.before.empty()) {
    const Status status = order_.AwaitOwn(arena, own, place.stream, lock);
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
    const Status status = order_.Identify(stream, &place.key);
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

// Calls use(arena, block) for a used block, with the lock of its index.
template <typename Use>
Status ThreadSafeArena::WithBlock(std::uint64_t address, std::uint64_t bytes, std::uint64_t* right_bytes, Use&& use) {
  return Guarded([&]() -> Status {
    ThreadArena* const owner = OwnerOf(address);
    if (owner == nullptr) return kForeignPointer;
    const std::lock_guard<std::mutex> lock(owner->mutex);
    // Superblocks that were given back have no block.
    const std::uint32_t block = owner->UsedBlock(address);
    if (block == 0 || OwnerOf(address) != owner) return kForeignPointer;
    *right_bytes = owner->AskedBytes(block);
    return *right_bytes == bytes ? use(*owner, block) : Status{kWrongSize};
  });
}

Status ThreadSafeArena::FreeOn(std::uint64_t address, std::uint64_t bytes, std::uint64_t key, ArenaEvent* event, std::uint64_t number,
                               std::uint64_t* right_bytes) {
  return WithBlock(address, bytes, right_bytes, [&](ThreadArena& arena, std::uint32_t block) {
    Lane& lane = LaneOf(arena, key, events_);
    MakeRoom(lane, 1);
    FreeBlock(arena, address, bytes, block, lane);
    order_.NoteFrees(arena, lane, number, event);
    return Status{kSuccess};
  });
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
    Status status = order_.Identify(stream, &key);
    if (status != kSuccess) return status;
    ArenaEvent* event = nullptr;
    if (order_.RecordsAtFree(stream)) {
      status = events_.Acquire(&event);
      if (status != kSuccess) return status;
    }
    const std::uint64_t number = ++owner->last_number;
    if (event != nullptr) status = table->EventRecord(event->event, stream);
    if (status == kSuccess) status = FreeOn(address, bytes, key, event, number, right_bytes);
    if (status != kSuccess && event != nullptr) events_.Release(event);
    return status;
  });
}

Status ThreadSafeArena::Synchronize(Stream stream) noexcept {
  return Guarded([&]() -> Status {
    const DriverScope scope(driver, settings_.context);
    const Status status = scope.status() == kSuccess ? order_.RefuseCaptured(stream) : scope.status();
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
    FreeBlock(arena, address, bytes, block, LaneOf(arena, kCommonKey, events_));
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
      const std::uint32_t block = arena->UsedBlock(address);
      claimed.push_back({address, arena->AskedBytes(block)});
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

void ThreadSafeArena::SetOwner(std::uint64_t address, std::uint64_t bytes, ThreadArena* owner) {
  for (std::uint64_t at = address; at < address + bytes; at += superblock_bytes_) {
    ThreadArena* const before = owners_[(at - base_) >> superblock_shift_].exchange(owner);
    if (before != nullptr) before->superblocks -= 1;
    if (owner != nullptr) owner->superblocks += 1;
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
