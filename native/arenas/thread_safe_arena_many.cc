// Calls of ThreadSafeArena for many allocations at once: all or none, and many under one lock.
#include <algorithm>

#include "arenas/driver_scope.h"
#include "arenas/thread_safe_arena.h"

namespace cistern::arenas {
namespace {

constexpr std::uint64_t kMostBytesOfMany = 0x7fffff00;  // of a block that the index allocates with others in one call
constexpr std::size_t kMostAtOnce = 256;                // of them, under one lock
constexpr std::uint32_t kNone = ~0u;                    // of many

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

// Those of many frees that are of one index.
struct ThreadSafeArena::Part {
  std::vector<std::size_t> places;  // in the call
  std::vector<std::uint64_t> addresses, sizes;
  std::uint64_t number = 0;  // of the frees
  Lane* lane = nullptr;
};

Status ThreadSafeArena::AllocateMany(const std::vector<std::uint64_t>& sizes, Stream stream, std::vector<std::uint64_t>* addresses,
                                     std::size_t* done, std::uint64_t claimant) noexcept {
  *done = 0;
  if (stream == nullptr) stream = LegacyStream();
  return Guarded([&]() -> Status {
    addresses->assign(sizes.size(), 0);
    const DriverScope scope(driver, settings_.context);
    if (scope.status() != kSuccess) return scope.status();
    Place place{0, stream, 0, 0, kUnitBytes, claimant};
    Status status = order_.Identify(stream, &place.key);
    if (status != kSuccess) return status;
    ThreadArena& arena = *OwnArena();
    // What was allocated before the rest is refused goes there. It stays meanwhile, and is not made when memory is short.
    Lane* own;
    {
      const std::lock_guard<std::mutex> lock(arena.mutex);
      own = &LaneOf(arena, place.key, events_);
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
  Lane& own = LaneOf(arena, place.key, events_);
  if (!own.before.empty()) {
    const Status status = order_.AwaitOwn(arena, own, place.stream, lock);
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
  if (order_.RecordsAtFree(place.stream)) Guarded([&] { return events_.Acquire(&event); });
  const std::uint64_t number = ++arena.last_number;
  if (event != nullptr && driver->EventRecord(event->event, place.stream) != kSuccess) {
    events_.Release(event);
    event = nullptr;
  }
  const std::lock_guard<std::mutex> lock(arena.mutex);
  if (event != nullptr && Guarded([&] { return MakeRoom(lane, 1), kSuccess; }) != kSuccess) {
    events_.Release(event);
    event = nullptr;
  }
  for (std::size_t i = 0; i < done; ++i) {
    if (addresses[i] == 0) continue;
    const std::uint32_t block = arena.UsedBlock(addresses[i]);
    FreeBlock(arena, addresses[i], sizes[i], block, lane);
  }
  order_.NoteFrees(arena, lane, number, event);
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
    status = order_.Identify(stream, &key);
    if (status != kSuccess) return status;
    ArenaEvent* event = nullptr;
    if (order_.RecordsAtFree(stream)) {
      status = events_.Acquire(&event);
      if (status != kSuccess) return status;
    }
    for (auto& [owner, part] : parts) part.number = ++owner->last_number;
    if (event != nullptr) status = table->EventRecord(event->event, stream);
    if (status == kSuccess) status = Guarded([&] { return FreeParts(parts, key, event, wrong); });
    if (event != nullptr) events_.Release(event);
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
  const std::uint32_t block = arena.UsedBlock(part.addresses[unused]);
  if (block == 0) return kForeignPointer;
  wrong->right_bytes = arena.AskedBytes(block);
  return wrong->right_bytes == part.sizes[unused] ? kForeignPointer : kWrongSize;
}

// Each lane becomes a user of the event, which is null unless RecordsAtFree.
Status ThreadSafeArena::FreeParts(Parts& parts, std::uint64_t key, ArenaEvent* event, Wrong* wrong) {
  const auto locks = Lock(parts);
  for (auto& [owner, part] : parts) {
    part.lane = &LaneOf(*owner, key, events_);
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
    order_.NoteFrees(*owner, *part.lane, part.number, event);
  }
  return kSuccess;
}

}  // namespace cistern::arenas
