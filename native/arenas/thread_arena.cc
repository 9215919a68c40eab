#include "arenas/thread_arena.h"

namespace cistern::arenas {
namespace {

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

void Hold(ThreadArena& arena, Lane& lane, bool is_held) {
  if (lane.is_held == is_held) return;
  lane.is_held = is_held;
  index_of::shareLane(&arena.module, lane.lane, is_held ? 0 : 1);
}

bool AddBefore(Lane& lane, const EventUse& use) {
  for (const EventUse& each : lane.before) {
    if (each.event == use.event) return false;
  }
  lane.before.push_back(use);
  return true;
}

void JoinLane(ThreadArena& arena, Lane& from, Lane& to, ArenaEvents& events) {
  MakeRoom(to, from.before.size());
  index_of::transfer(&arena.module, arena.index, from.lane, to.lane);
  for (const EventUse& use : from.before) {
    if (!AddBefore(to, {use.event, use.number, false})) events.Release(use.event);
  }
  from.before.clear();
}

void FoldLanes(ThreadArena& arena, ArenaEvents& events) {
  const auto found = arena.lanes.find(kCommonKey);
  Lane& common = found != arena.lanes.end() ? *found->second : AddLane(arena, kCommonKey);
  for (auto each = arena.lanes.begin(); each != arena.lanes.end();) {
    Lane& lane = *each->second;
    if (&lane == &common || lane.pins > 0 || lane.is_held || lane.is_unrecorded) {
      ++each;
      continue;
    }
    JoinLane(arena, lane, common, events);
    arena.by_lane.erase(lane.lane);
    arena.spare_lanes.push_back(lane.lane);
    each = arena.lanes.erase(each);
  }
  arena.lanes_to_fold = std::max(kUsualLanes, 2 * arena.lanes.size());
}

Lane& LaneOf(ThreadArena& arena, std::uint64_t key, ArenaEvents& events) {
  if (arena.last != nullptr && arena.last->key == key) return *arena.last;
  const auto found = arena.lanes.find(key);
  if (found != arena.lanes.end()) return *(arena.last = found->second.get());
  arena.last = nullptr;
  if (arena.lanes.size() >= arena.lanes_to_fold) FoldLanes(arena, events);
  return *(arena.last = &AddLane(arena, key));
}

void FreeBlock(ThreadArena& arena, std::uint64_t address, std::uint64_t bytes, std::uint32_t block, const Lane& lane) {
  index_of::free(&arena.module, arena.index, block, lane.lane);
  NoteFree(arena, address, bytes);
}

void NoteFree(ThreadArena& arena, std::uint64_t address, std::uint64_t bytes) {
  arena.live_bytes -= bytes;
  arena.live_allocations -= 1;
  if (!arena.claims.empty()) arena.claims.erase(address);
}

}  // namespace cistern::arenas
