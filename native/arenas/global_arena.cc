#include "arenas/global_arena.h"

#include "platform/lasting.h"

namespace cistern::arenas {
namespace {

// Makes a range begin at an address.
void CutRange(GlobalArena& arena, std::uint64_t at) {
  const auto found = RangeAt(arena, at);
  if (found == arena.ranges.end() || found->first == at) return;
  const Superblocks& rest = arena.ranges.emplace(at, found->second).first->second;
  found->second.end = at;
  found->second.asked_end = at;
  if (rest.freed != nullptr) rest.freed->users += 1;
}

}  // namespace

GlobalArenas& AllArenas() {
  static Lasting<GlobalArenas> arenas;
  return *arenas;
}

void GlobalArena::Fill(std::uint64_t block, std::uint64_t block_bytes) {
  allocation = block;
  allocated_bytes = block_bytes;
  base = RoundUp(block);
  ranges.emplace(base, Superblocks{base + bytes, base + bytes, kNobody, nullptr});
}

Ranges::iterator RangeAt(GlobalArena& arena, std::uint64_t address) {
  const auto after = arena.ranges.upper_bound(address);
  if (after == arena.ranges.begin()) return arena.ranges.end();
  const auto range = std::prev(after);
  return address < range->second.end ? range : arena.ranges.end();
}

std::uint64_t FindRoom(const GlobalArena& arena, std::uint64_t size, std::uint64_t* largest) {
  std::uint64_t best = 0, best_bytes = 0;
  *largest = 0;
  for (auto range = arena.ranges.begin(); range != arena.ranges.end();) {
    const std::uint64_t begin = range->first;
    std::uint64_t end = begin;
    for (; range != arena.ranges.end() && range->second.owner == kNobody; ++range) end = range->second.end;
    const std::uint64_t run = end - begin;
    *largest = std::max(*largest, run);
    if (run >= size && (best == 0 || run < best_bytes)) {
      best = begin;
      best_bytes = run;
    }
    if (run == 0) ++range;
  }
  return best;
}

void FreeRange(GlobalArena& arena, std::uint64_t begin, std::uint64_t end, FreeEvent* freed) {
  CutRange(arena, begin);
  CutRange(arena, end);
  const auto range = arena.ranges.find(begin);
  arena.ranges.erase(std::next(range), arena.ranges.lower_bound(end));
  if (freed != nullptr) freed->users += 1;
  range->second = {end, end, kNobody, freed};
  const auto join = [&](Ranges::iterator first, Ranges::iterator second) {
    for (const Superblocks& each : {first->second, second->second}) {
      if (each.owner != kNobody || each.freed != nullptr) return;
    }
    first->second.end = first->second.asked_end = second->second.end;
    arena.ranges.erase(second);
  };
  if (std::next(range) != arena.ranges.end()) join(range, std::next(range));
  if (range != arena.ranges.begin()) join(std::prev(range), range);
  arena.used_bytes -= end - begin;
  arena.freed_bytes += end - begin;
}

EndedArena WhatIsLeft(const GlobalArena& arena) {
  std::vector<FreeEvent> events(arena.events.begin(), arena.events.end());
  return {arena.backend, arena.device, arena.kind, arena.allocation, arena.allocated_bytes, std::move(events), nullptr};
}

bool LeaveIfUnneeded(GlobalArenas& arenas, std::uint64_t number, std::uint64_t tenant_id) {
  GlobalArena& arena = *arenas.by_number.at(number);
  const auto tenant = arena.tenants.find(tenant_id);
  if (tenant == arena.tenants.end() || tenant->second.opens > 0 || tenant->second.bytes > 0) return false;
  arena.tenants.erase(tenant);
  arenas.changed.notify_all();
  if (!arena.tenants.empty()) return false;
  arenas.any_ended = true;
  return true;
}

void LeaveArena(GlobalArenas& arenas, std::uint64_t number) {
  arenas.any_ended = true;
  arenas.leave.load()(WhatIsLeft(*arenas.by_number.at(number)));
  arenas.by_number.erase(number);
}

std::uint64_t TakeSuperblocks(std::uint64_t tenant, GlobalArena& arena, std::uint64_t size, TakenRanges* taken) {
  const std::uint64_t rounded = arena.RoundUp(size);
  std::uint64_t largest;
  const std::uint64_t begin = FindRoom(arena, rounded, &largest);
  if (begin == 0) return 0;
  const std::uint64_t end = begin + rounded;
  CutRange(arena, end);
  Ranges added;
  added.emplace(begin, Superblocks{end, begin + size, tenant, nullptr});
  for (auto each = arena.ranges.find(begin); each != arena.ranges.end() && each->first < end;) taken->insert(arena.ranges.extract(each++));
  arena.ranges.merge(added);
  arena.tenants.at(tenant).bytes += rounded;
  return begin;
}

void NoteTaken(std::uint64_t tenant_id, GlobalArena& arena, std::uint64_t size, const TakenRanges& taken) {
  Tenant& tenant = arena.tenants.at(tenant_id);
  tenant.peak_bytes = std::max(tenant.peak_bytes, tenant.bytes);
  for (const auto& [begin, range] : taken) ReleaseEvent(range.freed);
  arena.used_bytes += arena.RoundUp(size);
  arena.peak_used_bytes = std::max(arena.peak_used_bytes, arena.used_bytes);
}

void PutBack(std::uint64_t tenant, GlobalArena& arena, std::uint64_t address, TakenRanges* taken) {
  const std::uint64_t bytes = arena.ranges.at(address).end - address;
  arena.ranges.erase(address);
  arena.ranges.merge(*taken);
  arena.tenants.at(tenant).bytes -= bytes;
}

void LetNativeTenantsGiveBack(std::uint64_t number, std::uint64_t except, bool may_wait) {
  GlobalArenas& arenas = AllArenas();
  std::vector<std::shared_ptr<NativeTenant>> tenants;
  {
    const std::lock_guard<std::mutex> lock(arenas.mutex);
    const auto arena = arenas.by_number.find(number);
    if (arena == arenas.by_number.end()) return;
    for (const auto& [id, tenant] : arena->second->tenants) {
      if (id == except || tenant.bytes == 0) continue;
      if (std::shared_ptr<NativeTenant> native = tenant.native.lock()) tenants.push_back(std::move(native));
    }
  }
  for (const std::shared_ptr<NativeTenant>& tenant : tenants) tenant->GiveBack(may_wait);
}

}  // namespace cistern::arenas
