#include "addon/global_arena.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <utility>

#include "addon/bindings.h"
#include "addon/captures.h"
#include "addon/hand_overs.h"
#include "addon/host_functions.h"
#include "addon/memory.h"
#include "arenas/global_arena.h"

namespace cistern {
namespace {

using namespace arenas;

constexpr std::uint64_t kLeastAlignment = 256;

// How long one call waits for other environments: a worker that is terminated ends after it.
constexpr std::chrono::milliseconds kLongestWait{50};

// The functions below need the mutex, unless they take an Environment&.

bool HasRoom(const GlobalArena& arena, std::uint64_t size) {
  std::uint64_t largest;
  return FindRoom(arena, size, &largest) != 0;
}

// An arena that the environment has open, or memory of.
Status FindArena(const Environment& environment, const Napi::Value& value, GlobalArena** arena, std::uint64_t* number) {
  if (!ReadInteger(value, number)) return kInvalidArgument;
  const auto found = AllArenas().by_number.find(*number);
  if (found == AllArenas().by_number.end() || found->second->tenants.count(environment.id()) == 0) return kStaleHandle;
  *arena = found->second.get();
  return kSuccess;
}

struct ArenaSettings {
  std::string name;
  int device;
  MemoryKind kind;
  std::uint64_t bytes;
  std::uint64_t superblock_bytes;
  double thread;
};

// Allocates the block of an arena at a multiple of superblocks.
Status AllocateBlock(Environment& environment, const ArenaSettings& settings, std::uint64_t* allocation, std::uint64_t* bytes) {
  *bytes = settings.bytes;
  const Status status = AllocatePlain(environment, settings.kind, settings.device, *bytes, allocation);
  if (status != kSuccess || *allocation % settings.superblock_bytes == 0) return status;
  LeaveOrphans(environment, {OrphanOfPlain(settings.kind, settings.device, *allocation, *bytes)});
  *bytes += settings.superblock_bytes - kLeastAlignment;
  return AllocatePlain(environment, settings.kind, settings.device, *bytes, allocation);
}

void JoinArena(Environment& environment, std::uint64_t number, GlobalArena& arena, double thread) {
  Tenant& tenant = arena.tenants[environment.id()];
  tenant.ask = [loop = environment.loop] {
    loop->is_asked = true;
    const std::lock_guard<std::mutex> lock(loop->mutex);
    loop->PostWake();
  };
  tenant.thread = thread;
  tenant.opens += 1;
  environment.Out(1, static_cast<double>(number));
  environment.Out(2, static_cast<double>(arena.bytes));
  environment.Out(3, static_cast<double>(arena.superblock_bytes));
  environment.Out(4, static_cast<double>(arena.kind));
}

Status CheckArenaFree(const Environment& environment, GlobalArena& arena, std::uint64_t address, std::uint64_t size,
                      std::uint64_t* right_bytes) {
  const auto first = RangeAt(arena, address);
  if (first == arena.ranges.end() || !arena.IsBoundary(address)) return kForeignPointer;
  if (first->second.owner == kNobody) return kDoubleFree;
  if (first->second.owner != environment.id()) return kForeignPointer;
  *right_bytes = first->second.asked_end - address;
  if (size == 0 || size > arena.bytes) return kWrongSize;
  const std::uint64_t end = address + size;
  auto last = first;
  while (last->second.asked_end < end) {
    const auto next = std::next(last);
    const bool is_adjacent =
        last->second.asked_end == last->second.end && next != arena.ranges.end() && next->second.owner == environment.id();
    if (!is_adjacent) return kWrongSize;
    last = next;
  }
  return end == last->second.asked_end || arena.IsBoundary(end) ? kSuccess : kWrongSize;
}

}  // namespace

std::vector<Orphan> OrphansOf(const EndedArena& ended) {
  std::vector<Orphan> orphans;
  if (ended.allocation != 0) {
    orphans.push_back(OrphanOfPlain(static_cast<MemoryKind>(ended.kind), ended.device, ended.allocation, ended.allocated_bytes));
  }
  for (const FreeEvent& each : ended.events) {
    orphans.push_back({OrphanKind::kEvent, each.device, AsAddress(each.event)});
    orphans.back().environment = each.maker;
  }
  if (ended.stream != nullptr) orphans.push_back({OrphanKind::kStream, ended.device, AsAddress(ended.stream)});
  return orphans;
}

void EndGlobalArenasOf(const Environment& environment) {
  GlobalArenas& arenas = AllArenas();
  {
    const std::lock_guard<std::mutex> lock(arenas.mutex);
    for (auto each = arenas.by_number.begin(); each != arenas.by_number.end();) {
      GlobalArena& arena = *each->second;
      const auto tenant = arena.tenants.find(environment.id());
      if (tenant != arena.tenants.end()) {
        arenas.any_ended = true;
        arena.tenants.erase(tenant);
      }
      const bool has_begun_only = !arena.IsReady() && arena.opener == environment.id();
      each = has_begun_only ? arenas.by_number.erase(each) : std::next(each);
    }
    arenas.changed.notify_all();
  }
  LeaveEndedArenas(environment);
}

void LeaveEndedArenas(const Environment& environment) {
  GlobalArenas& arenas = AllArenas();
  if (!arenas.any_ended) return;
  const std::lock_guard<std::mutex> lock(arenas.mutex);
  for (auto each = arenas.by_number.begin(); each != arenas.by_number.end();) {
    const GlobalArena& arena = *each->second;
    if (!arena.IsWithoutTenant() || arena.backend != environment.backend) {
      ++each;
      continue;
    }
    try {
      LeaveOrphans(environment, OrphansOf(WhatIsLeft(arena)));
    } catch (const std::bad_alloc&) {
      return;  // the arena stays until the next look
    }
    each = arenas.by_number.erase(each);
  }
}

bool FreeEndedSuperblocks(Environment& environment) {
  GlobalArenas& arenas = AllArenas();
  if (!arenas.any_ended) return false;
  struct Ended {
    std::uint64_t arena, superblock, bytes, owner;
  };
  std::vector<Ended> ended;
  {
    const std::lock_guard<std::mutex> lock(arenas.mutex);
    bool any_ended = false;
    for (const auto& [number, arena] : arenas.by_number) {
      any_ended = any_ended || arena->IsWithoutTenant();
      for (const auto& [begin, range] : arena->ranges) {
        if (range.owner == kNobody || arena->tenants.count(range.owner) != 0) continue;
        any_ended = true;
        if (arena->backend != environment.backend) continue;
        const std::uint64_t bytes = arena->superblock_bytes;
        for (std::uint64_t superblock = begin; superblock < range.end; superblock += bytes) {
          ended.push_back({number, superblock, bytes, range.owner});
        }
      }
    }
    arenas.any_ended = any_ended;
  }
  if (ended.empty()) return false;
  // Before the wait, which then covers whatever used memory that has just come home.
  const HandedOverMemory handed_over(environment.backend);
  ended.erase(
      std::remove_if(ended.begin(), ended.end(), [&](const Ended& each) { return handed_over.Overlaps(each.superblock, each.bytes); }),
      ended.end());
  if (ended.empty() || !AwaitDevices(environment)) return false;
  bool freed = false;
  const std::lock_guard<std::mutex> lock(arenas.mutex);
  for (const Ended& each : ended) {
    const auto found = arenas.by_number.find(each.arena);
    if (found == arenas.by_number.end()) continue;
    // Another environment may have freed it meanwhile, and somebody may have taken it.
    if (RangeAt(*found->second, each.superblock)->second.owner != each.owner) continue;
    FreeRange(*found->second, each.superblock, each.superblock + each.bytes, nullptr);
    freed = true;
  }
  if (freed) arenas.changed.notify_all();
  return freed;
}

std::uint64_t EndedSuperblockBytes(std::uint64_t environment) {
  GlobalArenas& arenas = AllArenas();
  const std::lock_guard<std::mutex> lock(arenas.mutex);
  std::uint64_t bytes = 0;
  for (const auto& [number, arena] : arenas.by_number) {
    for (const auto& [begin, range] : arena->ranges) {
      if (range.owner == environment) bytes += range.end - begin;
    }
  }
  return bytes;
}

void DeliverArenaRequests(Environment& environment) {
  if (!environment.loop->is_asked || environment.on_arena_request.IsEmpty()) return;
  environment.CallBack(environment.on_arena_request);
}

Status OnArenaRequest(Environment& environment, const Napi::CallbackInfo& info) {
  if (!info[0].IsFunction()) return kInvalidArgument;
  environment.on_arena_request = Napi::Persistent(info[0].As<Napi::Function>());
  return kSuccess;
}

Status OpenArena(Environment& environment, const Napi::CallbackInfo& info) {
  ArenaSettings settings;
  std::uint64_t kind;
  if (!ReadString(info[0], &settings.name) || !ReadInt(info[1], &settings.device) || !ReadInteger(info[2], &kind)) return kInvalidArgument;
  if (!ReadInteger(info[3], &settings.bytes) || !ReadInteger(info[4], &settings.superblock_bytes)) return kInvalidArgument;
  if (!ReadNumber(info[5], &settings.thread) || kind >= static_cast<std::uint64_t>(MemoryKind::kHost)) return kInvalidArgument;
  const std::uint64_t superblock = settings.superblock_bytes;
  if (superblock < kLeastAlignment || (superblock & (superblock - 1)) != 0) return kInvalidArgument;
  if (settings.bytes == 0 || settings.bytes % superblock != 0) return kInvalidArgument;
  if (environment.driver == nullptr) return kNoBackend;
  if (!environment.HasDevice(settings.device)) return kInvalidArgument;
  settings.kind = static_cast<MemoryKind>(kind);

  GlobalArenas& arenas = AllArenas();
  std::uint64_t number = 0;
  {
    std::unique_lock<std::mutex> lock(arenas.mutex);
    for (const auto& [each, arena] : arenas.by_number) {
      if (arena->backend != environment.backend || arena->name != settings.name || arena->device != settings.device) continue;
      if (arena->IsReady()) {
        JoinArena(environment, each, *arena, settings.thread);
        return kSuccess;
      }
      number = each;
      if (arena->opener == environment.id()) break;
      // Another environment allocates the block, which may need host functions of this one.
      arenas.changed.wait_for(lock, std::chrono::milliseconds(5));
      return kHostFunctionReady;
    }
    if (number == 0) {
      number = ++arenas.last_number;
      auto arena = std::make_unique<GlobalArena>();
      arena->name = settings.name;
      arena->backend = environment.backend;
      arena->device = settings.device;
      arena->opener = environment.id();
      arenas.by_number.emplace(number, std::move(arena));
    }
  }
  std::uint64_t allocation = 0, allocated_bytes = 0;
  Status status = AllocateBlock(environment, settings, &allocation, &allocated_bytes);
  if (status == kHostFunctionReady) return status;
  {
    const std::lock_guard<std::mutex> lock(arenas.mutex);
    GlobalArena& arena = *arenas.by_number.at(number);
    if (status == kSuccess && allocation + allocated_bytes > kMaxSafeInteger) {
      LeaveOrphans(environment, {OrphanOfPlain(settings.kind, settings.device, allocation, allocated_bytes)});
      status = kAddressTooLarge;
    }
    if (status == kSuccess) {
      // Those of this call: the one that began may have been given up, for the sake of a host function.
      arena.kind = static_cast<std::uint64_t>(settings.kind);
      arena.bytes = settings.bytes;
      arena.superblock_bytes = superblock;
      arena.Fill(allocation, allocated_bytes);
      JoinArena(environment, number, arena, settings.thread);
    } else {
      arenas.by_number.erase(number);
    }
    arenas.changed.notify_all();
  }
  if (status == kAddressTooLarge) environment.ReapOrphans();
  return status;
}

Status CloseArena(Environment& environment, const Napi::CallbackInfo& info) {
  GlobalArenas& arenas = AllArenas();
  bool is_last = false;
  {
    const std::lock_guard<std::mutex> lock(arenas.mutex);
    GlobalArena* arena;
    std::uint64_t number;
    const Status status = FindArena(environment, info[0], &arena, &number);
    if (status != kSuccess) return status;
    Tenant& tenant = arena->tenants.at(environment.id());
    if (tenant.opens == 0) return kStaleHandle;
    tenant.opens -= 1;
    is_last = LeaveIfUnneeded(arenas, number, environment.id());
  }
  if (is_last) environment.ReapOrphans();
  return kSuccess;
}

Status AllocateSuperblocks(Environment& environment, const Napi::CallbackInfo& info) {
  std::uint64_t bytes;
  StreamEntry* stream;
  if (!ReadInteger(info[1], &bytes) || bytes == 0) return kInvalidArgument;
  Status status = FindUncapturedStream(environment, info[2], &stream);
  if (status != kSuccess) return status;
  const RelaxedContextScope context(environment, stream->device);
  if (context.status() != kSuccess) return context.status();

  GlobalArenas& arenas = AllArenas();
  GlobalArena* arena;
  std::uint64_t number, address = 0;
  TakenRanges taken;
  for (const bool is_last : {false, true}) {
    {
      const std::lock_guard<std::mutex> lock(arenas.mutex);
      status = FindArena(environment, info[0], &arena, &number);
      if (status != kSuccess) return status;
      if (bytes > arena->bytes) return kErrorOutOfMemory;
      address = TakeSuperblocks(environment.id(), *arena, bytes, &taken);
    }
    if (address != 0) break;
    if (is_last || !environment.ReapOrphans()) return kErrorOutOfMemory;
  }
  status = WaitForFrees(taken, [&](Event event) { return environment.Counted<Call::kStreamWaitEvent>(stream->stream, event, 0u); });
  const std::lock_guard<std::mutex> lock(arenas.mutex);
  if (status != kSuccess) {
    PutBack(environment.id(), *arena, address, &taken);
    arenas.changed.notify_all();
    return status;
  }
  NoteTaken(environment.id(), *arena, bytes, taken);
  environment.Out(1, static_cast<double>(address));
  return status;
}

Status FreeSuperblocks(Environment& environment, const Napi::CallbackInfo& info) {
  std::uint64_t address, bytes;
  StreamEntry* stream;
  if (!ReadInteger(info[1], &address) || !ReadInteger(info[2], &bytes)) return kInvalidArgument;
  Status status = FindUncapturedStream(environment, info[3], &stream);
  if (status != kSuccess) return status;
  const RelaxedContextScope context(environment, stream->device);
  if (context.status() != kSuccess) return context.status();

  GlobalArenas& arenas = AllArenas();
  GlobalArena* arena;
  std::uint64_t number;
  {
    const std::lock_guard<std::mutex> lock(arenas.mutex);
    status = FindArena(environment, info[0], &arena, &number);
    // The environment has nothing there.
    if (status == kStaleHandle) return kForeignPointer;
    if (status != kSuccess) return status;
    std::uint64_t right_bytes = 0;
    status = CheckArenaFree(environment, *arena, address, bytes, &right_bytes);
    if (status == kWrongSize) environment.Out(1, static_cast<double>(right_bytes));
    if (status != kSuccess) return status;
  }
  // This environment has superblocks there, so the arena lasts.
  FreeEvent* freed = nullptr;
  status = AcquireFreeEvent(number, environment.id(), stream->device, &freed,
                            [&](Event* event) { return environment.Counted<Call::kEventCreate>(event, unsigned{kEventDisableTiming}); });
  if (status != kSuccess) return status;
  status = environment.Counted<Call::kEventRecord>(freed->event, stream->stream);
  bool is_last = false;
  {
    const std::lock_guard<std::mutex> lock(arenas.mutex);
    if (status == kSuccess) {
      const std::uint64_t end = address + arena->RoundUp(bytes);
      try {
        FreeRange(*arena, address, end, freed);
        arena->tenants.at(environment.id()).bytes -= end - address;
        arenas.changed.notify_all();
      } catch (const std::bad_alloc&) {
        status = kHostOutOfMemory;
      }
    }
    ReleaseEvent(freed);
    is_last = LeaveIfUnneeded(arenas, number, environment.id());
  }
  if (is_last) environment.ReapOrphans();
  return status;
}

Status ArenaInfo(Environment& environment, const Napi::CallbackInfo& info) {
  GlobalArenas& arenas = AllArenas();
  const std::lock_guard<std::mutex> lock(arenas.mutex);
  GlobalArena* arena;
  std::uint64_t number, largest;
  const Status status = FindArena(environment, info[0], &arena, &number);
  if (status != kSuccess) return status;
  FindRoom(*arena, 0, &largest);
  environment.Out(1, static_cast<double>(arena->used_bytes));
  environment.Out(2, static_cast<double>(arena->peak_used_bytes));
  environment.Out(3, static_cast<double>(largest));
  environment.Out(4, static_cast<double>(std::count_if(arena->tenants.begin(), arena->tenants.end(),
                                                       [](const auto& tenant) { return static_cast<bool>(tenant.second.ask); })));
  environment.Out(5, static_cast<double>(arena->tenants.at(environment.id()).bytes));
  return kSuccess;
}

Status AskForSuperblocks(Environment& environment, const Napi::CallbackInfo& info, Napi::Value* result) {
  std::uint64_t bytes, request;
  double patience, left;
  if (!ReadInteger(info[1], &bytes) || bytes == 0 || !ReadInteger(info[4], &request)) return kInvalidArgument;
  if (!ReadNumber(info[2], &patience) || !(patience >= 0) || !ReadNumber(info[3], &left) || !(left >= 0)) return kInvalidArgument;
  GlobalArenas& arenas = AllArenas();
  std::uint64_t number, largest;
  std::unique_lock<std::mutex> lock(arenas.mutex);
  GlobalArena* arena;
  Status status = FindArena(environment, info[0], &arena, &number);
  for (const bool may_wait : {false, true}) {
    if (status != kSuccess || request > 0 || FindRoom(*arena, bytes, &largest) != 0) break;
    lock.unlock();
    LetNativeTenantsGiveBack(number, environment.id(), may_wait);
    lock.lock();
    // It may have ended meanwhile.
    status = FindArena(environment, info[0], &arena, &number);
  }
  if (status != kSuccess) return status;
  const std::uint64_t id = environment.id();
  const std::uint64_t freed_before = arena->freed_bytes;
  const Clock::time_point start = Clock::now();
  int asked = 0;
  if (request == 0) {
    request = ++arena->requests;
    for (auto& [tenant_id, tenant] : arena->tenants) {
      if (tenant_id == id || tenant.bytes == 0 || !tenant.ask) continue;
      asked += 1;
      if (tenant.answered >= tenant.asked) tenant.unanswered_since = start;
      tenant.asked = request;
      tenant.ask();
    }
  }
  const auto is_awaited = [&](const Tenant& tenant) { return tenant.asked >= request && tenant.answered < request; };
  const auto after = [](Clock::time_point begin, double milliseconds) {
    const std::chrono::duration<double, std::milli> duration(std::min(milliseconds, 60'000.0));
    return begin + std::chrono::duration_cast<Clock::duration>(duration);
  };
  // Until when to wait, if nobody answers.
  const auto deadline = [&] {
    Clock::time_point latest = start;
    for (const auto& [tenant_id, tenant] : arena->tenants) {
      if (tenant_id != id && is_awaited(tenant)) latest = std::max(latest, after(tenant.unanswered_since, patience));
    }
    return std::min(latest, after(start, left));
  };
  const std::uint64_t rounded = arena->RoundUp(std::min(bytes, arena->bytes));
  const Clock::time_point end = start + kLongestWait;
  Tenant& self = arena->tenants.at(id);
  bool has_room, is_waiting;
  for (;;) {
    // It gave back what it could before it asked, and has nothing more until this call returns. Two
    // that ask each other would wait in vain.
    if (self.answered < self.asked) {
      self.answered = self.asked;
      arenas.changed.notify_all();
    }
    has_room = HasRoom(*arena, rounded);
    const Clock::time_point now = Clock::now(), latest = deadline();
    is_waiting = !has_room && now < latest;
    if (!is_waiting || now >= end) break;
    arenas.changed.wait_until(lock, std::min(latest, end));
  }
  std::vector<double> silent;
  for (const auto& [tenant_id, tenant] : arena->tenants) {
    if (tenant_id != id && is_awaited(tenant)) silent.push_back(tenant.thread);
  }
  environment.Out(1, asked);
  environment.Out(2, static_cast<double>(freed_before));
  environment.Out(3, static_cast<double>(arena->freed_bytes));
  environment.Out(4, has_room ? 1 : 0);
  environment.Out(5, is_waiting ? static_cast<double>(request) : 0);
  lock.unlock();
  Napi::Float64Array threads = Napi::Float64Array::New(info.Env(), silent.size());
  for (std::size_t index = 0; index < silent.size(); ++index) threads[index] = silent[index];
  *result = threads;
  return kSuccess;
}

Status IsAskedForSuperblocks(Environment& environment) {
  environment.Out(1, environment.loop->is_asked ? 1 : 0);
  return kSuccess;
}

Status TakeArenaRequest(Environment& environment, const Napi::CallbackInfo&) {
  GlobalArenas& arenas = AllArenas();
  const std::lock_guard<std::mutex> lock(arenas.mutex);
  environment.Out(1, 0);
  for (auto& [number, arena] : arenas.by_number) {
    const auto tenant = arena->tenants.find(environment.id());
    if (tenant == arena->tenants.end() || tenant->second.taken == tenant->second.asked) continue;
    tenant->second.taken = tenant->second.asked;
    environment.Out(1, static_cast<double>(number));
    environment.Out(2, static_cast<double>(tenant->second.asked));
    return kSuccess;
  }
  environment.loop->is_asked = false;
  return kSuccess;
}

Status AnswerArenaRequest(Environment& environment, const Napi::CallbackInfo& info) {
  std::uint64_t request;
  if (!ReadInteger(info[1], &request)) return kInvalidArgument;
  GlobalArenas& arenas = AllArenas();
  const std::lock_guard<std::mutex> lock(arenas.mutex);
  GlobalArena* arena;
  std::uint64_t number;
  const Status status = FindArena(environment, info[0], &arena, &number);
  if (status != kSuccess) return status;
  Tenant& tenant = arena->tenants.at(environment.id());
  if (request > tenant.taken) return kInvalidArgument;
  tenant.answered = std::max(tenant.answered, request);
  tenant.unanswered_since = Clock::now();
  arenas.changed.notify_all();
  return kSuccess;
}

}  // namespace cistern
