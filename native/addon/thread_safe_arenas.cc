#include "addon/thread_safe_arenas.h"

#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "addon/bindings.h"
#include "addon/captures.h"
#include "addon/event_loop.h"
#include "addon/global_arena.h"
#include "addon/order.h"
#include "arenas/resource_table.h"
#include "arenas/thread_safe_arena.h"

namespace cistern {
namespace {

using arenas::ThreadSafeArena;
using arenas::ThreadSafeSettings;

// Waits for a device, unless JavaScript stalls a stream, so that the wait could last for ever, or somebody captures one.
Status AwaitDeviceFromAnyThread(const DriverTable* driver) {
  if (own_captures != 0) return kCapturing;
  const std::unique_lock<std::mutex> no_stalls = stalls.Exclude();
  return no_stalls.owns_lock() ? driver->CtxSynchronize() : kHostFunctionReady;
}

void LeaveEndedArena(const arenas::EndedArena& ended) { LeaveOrphans(ended.backend, OrphansOf(ended)); }

// Leaves the order check before it ends.
void EndArenaOfThreads(ThreadSafeArena* arena) {
  LeaveOrderCheck(arena->driver);
  delete arena;
}

Status FindArenaOfThreads(Environment& environment, double handle, ThreadArenaEntry** entry) {
  return environment.thread_safe_arenas.Find(handle, entry);
}

// Copies, as another thread may write to a shared array meanwhile.
bool ReadIntegers(const Napi::Value& value, std::vector<std::uint64_t>* integers) {
  Napi::Float64Array array;
  if (!ReadArray(value, &array)) return false;
  const double* const numbers = array.Data();
  integers->resize(array.ElementLength());
  for (std::size_t i = 0; i < integers->size(); ++i) {
    if (!ToInteger(numbers[i], &(*integers)[i])) return false;
  }
  return true;
}

// Ends the environment's part of an arena that JavaScript has closed, unless it still claims memory.
void EndIfUnneeded(Environment& environment, std::uint64_t handle, const ThreadArenaEntry& entry) {
  if (entry.is_closed && !entry.arena->HasClaims(environment.id())) environment.thread_safe_arenas.Remove(handle);
}

}  // namespace

void EndThreadSafeArenasOf(Environment& environment, std::vector<Orphan>* orphans) {
  environment.thread_safe_arenas.ForEach([&](std::uint64_t, ThreadArenaEntry& entry) {
    const std::shared_ptr<ThreadSafeArena> arena = std::move(entry.arena);
    for (const ThreadSafeArena::Claimed& claimed : arena->ClaimsOf(environment.id())) {
      orphans->push_back({OrphanKind::kArenaMemory, arena->device(), claimed.address, claimed.bytes, nullptr, 0, nullptr, arena});
    }
    orphans->push_back({OrphanKind::kThreadArena, arena->device(), 0, 0, nullptr, 0, nullptr, arena});
  });
}

Status OpenThreadSafeArena(Environment& environment, const Napi::CallbackInfo& info) {
  ThreadSafeSettings settings;
  std::uint64_t device, events;
  if (!ReadInteger(info[0], &settings.arena) || !ReadInteger(info[1], &device) || !ReadInteger(info[2], &events)) return kInvalidArgument;
  if (events > static_cast<std::uint64_t>(arenas::DeallocationEvents::kOff)) return kInvalidArgument;
  if (environment.driver == nullptr) return kNoBackend;
  if (device > INT32_MAX || !environment.HasDevice(static_cast<int>(device))) return kInvalidArgument;
  const Status status = environment.ContextOf(static_cast<int>(device), &settings.context);
  if (status != kSuccess) return status;
  settings.id = NextEnvironmentId();
  settings.events = static_cast<arenas::DeallocationEvents>(events);
  settings.await_device = AwaitDeviceFromAnyThread;
  arenas::AllArenas().leave = LeaveEndedArena;
  std::shared_ptr<ThreadSafeArena> arena;
  const Status opened = ThreadSafeArena::Open(settings, environment.driver, EndArenaOfThreads, &arena);
  if (opened != kSuccess) return opened;
  JoinOrderCheck(arena->driver, environment.backend);
  const std::uint64_t handle = environment.thread_safe_arenas.Add({std::move(arena), false});
  if (handle == 0) return kHostOutOfMemory;
  environment.Out(1, static_cast<double>(handle));
  return kSuccess;
}

Status CloseThreadSafeArena(Environment& environment, const Napi::CallbackInfo& info) {
  std::uint64_t handle;
  ThreadArenaEntry* entry;
  if (!ReadInteger(info[0], &handle)) return kInvalidArgument;
  const Status status = FindArenaOfThreads(environment, static_cast<double>(handle), &entry);
  if (status != kSuccess) return status;
  entry->is_closed = true;
  EndIfUnneeded(environment, handle, *entry);
  return kSuccess;
}

Status AllocateThreadSafe(Environment& environment) {
  std::uint64_t bytes, alignment;
  if (!environment.In(0, &bytes) || bytes == 0 || !environment.In(1, &alignment)) return kInvalidArgument;
  ThreadArenaEntry* entry;
  StreamEntry* stream;
  Status status = FindArenaOfThreads(environment, environment.In(2), &entry);
  if (status == kSuccess) status = environment.streams.Find(environment.In(3), &stream);
  if (status != kSuccess) return status;
  std::uint64_t address;
  status = environment.WithReclaim([&] { return entry->arena->Allocate(bytes, alignment, stream->stream, &address, environment.id()); });
  if (status == kSuccess) environment.Out(1, static_cast<double>(address));
  return status;
}

Status DeallocateThreadSafe(Environment& environment) {
  std::uint64_t address, bytes, handle;
  if (!environment.In(0, &address) || !environment.In(1, &bytes) || !environment.In(2, &handle)) return kInvalidArgument;
  ThreadArenaEntry* entry;
  StreamEntry* stream;
  Status status = FindArenaOfThreads(environment, static_cast<double>(handle), &entry);
  if (status == kSuccess) status = environment.streams.Find(environment.In(3), &stream);
  if (status != kSuccess) return status;
  std::uint64_t right_bytes;
  status = entry->arena->Deallocate(address, bytes, stream->stream, &right_bytes);
  if (status == kWrongSize) environment.Out(1, static_cast<double>(right_bytes));
  if (status == kSuccess) EndIfUnneeded(environment, handle, *entry);
  return status;
}

Status AllocateManyThreadSafe(Environment& environment, const Napi::CallbackInfo& info) {
  double handle;
  std::vector<std::uint64_t> sizes;
  Napi::Float64Array pointers;
  if (!ReadNumber(info[0], &handle) || !ReadIntegers(info[2], &sizes) || !ReadArray(info[3], &pointers)) return kInvalidArgument;
  if (pointers.ElementLength() < sizes.size()) return kInvalidArgument;
  ThreadArenaEntry* entry;
  StreamEntry* stream;
  Status status = FindArenaOfThreads(environment, handle, &entry);
  if (status == kSuccess) status = FindStream(environment, info[1], &stream);
  if (status != kSuccess) return status;
  std::vector<std::uint64_t> addresses;
  std::size_t done = 0;
  status = environment.WithReclaim([&] { return entry->arena->AllocateMany(sizes, stream->stream, &addresses, &done, environment.id()); });
  environment.Out(1, static_cast<double>(done));
  if (status != kSuccess) return status;
  for (std::size_t i = 0; i < addresses.size(); ++i) pointers[i] = static_cast<double>(addresses[i]);
  return kSuccess;
}

namespace {

// What is to be freed, and where it is allocated.
struct Many {
  std::uint64_t handle;
  ThreadArenaEntry* entry;
  std::vector<std::uint64_t> addresses, sizes;
};

Status ReadMany(Environment& environment, const Napi::CallbackInfo& info, std::size_t pointers, Many* many) {
  if (!ReadInteger(info[0], &many->handle)) return kInvalidArgument;
  if (!ReadIntegers(info[pointers], &many->addresses) || !ReadIntegers(info[pointers + 1], &many->sizes)) return kInvalidArgument;
  if (many->addresses.size() != many->sizes.size()) return kInvalidArgument;
  return FindArenaOfThreads(environment, static_cast<double>(many->handle), &many->entry);
}

Status OutWrong(Environment& environment, Status status, const ThreadSafeArena::Wrong& wrong) {
  environment.Out(1, static_cast<double>(wrong.right_bytes));
  environment.Out(2, static_cast<double>(wrong.place));
  return status;
}

}  // namespace

Status DeallocateManyThreadSafe(Environment& environment, const Napi::CallbackInfo& info) {
  Many many;
  StreamEntry* stream;
  Status status = ReadMany(environment, info, 2, &many);
  if (status == kSuccess) status = FindStream(environment, info[1], &stream);
  if (status != kSuccess) return status;
  ThreadSafeArena::Wrong wrong;
  status = many.entry->arena->DeallocateMany(many.addresses, many.sizes, stream->stream, &wrong);
  if (status == kSuccess) EndIfUnneeded(environment, many.handle, *many.entry);
  return OutWrong(environment, status, wrong);
}

Status CheckManyThreadSafe(Environment& environment, const Napi::CallbackInfo& info) {
  Many many;
  const Status status = ReadMany(environment, info, 1, &many);
  if (status != kSuccess) return status;
  ThreadSafeArena::Wrong wrong;
  return OutWrong(environment, many.entry->arena->CheckMany(many.addresses, many.sizes, &wrong), wrong);
}

Status ClaimThreadSafe(Environment& environment, const Napi::CallbackInfo& info) {
  std::uint64_t handle, address, bytes;
  if (!ReadInteger(info[0], &handle) || !ReadInteger(info[1], &address) || !ReadInteger(info[2], &bytes)) return kInvalidArgument;
  ThreadArenaEntry* entry;
  Status status = FindArenaOfThreads(environment, static_cast<double>(handle), &entry);
  if (status != kSuccess) return status;
  std::uint64_t right_bytes;
  status = entry->arena->Claim(address, bytes, environment.id(), &right_bytes);
  if (status == kWrongSize) environment.Out(1, static_cast<double>(right_bytes));
  return status;
}

Status ThreadSafeStatistics(Environment& environment, const Napi::CallbackInfo& info) {
  std::uint64_t handle;
  ThreadArenaEntry* entry;
  if (!ReadInteger(info[0], &handle)) return kInvalidArgument;
  const Status status = FindArenaOfThreads(environment, static_cast<double>(handle), &entry);
  if (status != kSuccess) return status;
  const arenas::ThreadSafeStatistics statistics = entry->arena->Statistics();
  environment.Out(1, static_cast<double>(statistics.live_bytes));
  environment.Out(2, static_cast<double>(statistics.live_allocations));
  environment.Out(3, static_cast<double>(statistics.reserved_bytes));
  environment.Out(4, static_cast<double>(statistics.peak_reserved_bytes));
  environment.Out(5, static_cast<double>(statistics.threads));
  return kSuccess;
}

Status ResetThreadSafePeak(Environment& environment, const Napi::CallbackInfo& info) {
  std::uint64_t handle;
  ThreadArenaEntry* entry;
  if (!ReadInteger(info[0], &handle)) return kInvalidArgument;
  const Status status = FindArenaOfThreads(environment, static_cast<double>(handle), &entry);
  if (status == kSuccess) entry->arena->ResetPeak();
  return status;
}

Status ThreadSafeTable(Environment& environment, const Napi::CallbackInfo& info) {
  std::uint64_t handle;
  int kind;
  ThreadArenaEntry* entry;
  if (!ReadInteger(info[0], &handle) || !ReadInt(info[1], &kind)) return kInvalidArgument;
  const Status status = FindArenaOfThreads(environment, static_cast<double>(handle), &entry);
  if (status != kSuccess) return status;
  const cistern_thread_safe_resource* const table = arenas::NewResourceTable(entry->arena, entry->arena->device(), kind);
  if (table == nullptr) return kHostOutOfMemory;
  const std::uintptr_t address = reinterpret_cast<std::uintptr_t>(table);
  if (address > kMaxSafeInteger) {
    table->release(table->state);
    return kAddressTooLarge;
  }
  environment.Out(1, static_cast<double>(address));
  return kSuccess;
}

}  // namespace cistern
