#include "arenas/resource_table.h"

#include <atomic>
#include <cstdio>
#include <new>

#include "arenas/driver_scope.h"
#include "order/checked_table.h"

namespace cistern::arenas {
namespace {

struct TableState {
  std::shared_ptr<ThreadSafeArena> arena;
  std::atomic<std::int64_t> users{1};
  cistern_thread_safe_resource table = {};
};

thread_local char last_error[256] = "no call has failed on this thread";

TableState& StateOf(void* state) { return *static_cast<TableState*>(state); }

Stream AsStream(std::uint64_t stream) { return reinterpret_cast<Stream>(static_cast<std::uintptr_t>(stream)); }

using Number = unsigned long long;

template <typename... Arguments>
std::int32_t Fail(std::int32_t result, const char* format, Arguments... arguments) {
  std::snprintf(last_error, sizeof last_error, format, arguments...);
  return result;
}

// What has a sentence of its own only where it happens: `what` begins the sentence.
std::int32_t FailFor(TableState& state, Status status, const char* what) {
  switch (status) {
    case kCapturing:
      return Fail(CISTERN_STREAM_CAPTURED, "%s: the stream is being captured into a graph, or is the legacy stream while it cannot be used",
                  what);
    case kHostOutOfMemory:
      return Fail(CISTERN_HOST_OUT_OF_MEMORY, "%s: there is no host memory for the books of the arena", what);
    case kBrokenIndex:
      return Fail(CISTERN_INTERNAL_ERROR, "%s: the free-space index of the arena is broken", what);
    default:
      break;
  }
  const char* name = nullptr;
  if (status < 0 || state.arena->driver->GetErrorName(status, &name) != kSuccess || name == nullptr) name = "an unknown error";
  return Fail(CISTERN_DRIVER_ERROR, "%s: the driver returned %s (%d)", what, name, status);
}

// Notes a use of the memory for the order checker, if stream order is checked. The checker asks the driver which stream
// a handle stands for, so the context is current, as it need not be on a thread of native code.
template <typename Note>
void ForChecker(TableState& state, Note&& note) {
  order::OrderChecker* const checker = order::CheckerOf(state.arena->driver);
  if (checker == nullptr) return;
  const DriverScope scope(state.arena->driver, state.arena->context());
  if (scope.status() == kSuccess) order::KeepBooks(*checker, [&] { note(*checker); });
}

std::int32_t Allocate(void* data, std::uint64_t bytes, std::uint64_t alignment, std::uint64_t stream, std::uint64_t* pointer) {
  TableState& state = StateOf(data);
  const Status status = state.arena->Allocate(bytes, alignment, AsStream(stream), pointer);
  if (status == kSuccess) {
    ForChecker(state, [&](order::OrderChecker& checker) { checker.DeclareAllocation(AsStream(stream), *pointer, bytes); });
    return CISTERN_OK;
  }
  if (status == kErrorOutOfMemory) {
    return Fail(CISTERN_OUT_OF_MEMORY,
                "out of memory: %llu bytes were asked for, but the arena has no free range of that size, even after "
                "the arenas of all threads have returned free memory",
                Number{bytes});
  }
  if (status == kInvalidArgument) {
    return Fail(CISTERN_INVALID_ARGUMENT, "the alignment must be a power of two up to %llu, got %llu",
                Number{state.arena->superblock_bytes()}, Number{alignment});
  }
  return FailFor(state, status, "allocate");
}

std::int32_t Deallocate(void* data, std::uint64_t pointer, std::uint64_t bytes, std::uint64_t, std::uint64_t stream) {
  TableState& state = StateOf(data);
  // Before it may serve another thread.
  std::uint64_t right_bytes = 0;
  if (order::CheckerOf(state.arena->driver) != nullptr && state.arena->Check(pointer, bytes, &right_bytes) == kSuccess) {
    ForChecker(state, [&](order::OrderChecker& checker) { checker.DeclareFree(AsStream(stream), pointer, bytes); });
  }
  const Status status = state.arena->Deallocate(pointer, bytes, AsStream(stream), &right_bytes);
  if (status == kSuccess) return CISTERN_OK;
  if (status == kForeignPointer) {
    return Fail(CISTERN_INVALID_POINTER, "0x%llx is no allocation of this resource, or was freed already", Number{pointer});
  }
  if (status == kWrongSize) {
    return Fail(CISTERN_INVALID_POINTER, "0x%llx was allocated with %llu bytes, and freed with %llu", Number{pointer}, Number{right_bytes},
                Number{bytes});
  }
  return FailFor(state, status, "deallocate");
}

std::int32_t Synchronize(void* data, std::uint64_t stream) {
  TableState& state = StateOf(data);
  const Status status = state.arena->Synchronize(stream == 0 ? LegacyStream() : AsStream(stream));
  return status == kSuccess ? std::int32_t{CISTERN_OK} : FailFor(state, status, "synchronize");
}

#define CISTERN_HAS(statistics, member) ((statistics)->size >= offsetof(cistern_resource_statistics, member) + sizeof((statistics)->member))

void ReadStatistics(void* data, cistern_resource_statistics* statistics) {
  const ThreadSafeStatistics now = StateOf(data).arena->Statistics();
  if (CISTERN_HAS(statistics, live_bytes)) statistics->live_bytes = now.live_bytes;
  if (CISTERN_HAS(statistics, live_allocations)) statistics->live_allocations = now.live_allocations;
  if (CISTERN_HAS(statistics, reserved_bytes)) statistics->reserved_bytes = now.reserved_bytes;
}

#undef CISTERN_HAS

const char* LastError(void*) { return last_error; }

void Retain(void* data) { StateOf(data).users.fetch_add(1); }

void Release(void* data) {
  if (StateOf(data).users.fetch_sub(1) == 1) delete &StateOf(data);
}

}  // namespace

const cistern_thread_safe_resource* NewResourceTable(std::shared_ptr<ThreadSafeArena> arena, int device, int memory_kind) {
  TableState* const state = new (std::nothrow) TableState;
  if (state == nullptr) return nullptr;
  const void* const identity = arena.get();
  state->arena = std::move(arena);
  state->table = {sizeof state->table, device,    memory_kind, state,   Allocate, Deallocate,
                  ReadStatistics,      LastError, Retain,      Release, identity, Synchronize};
  return &state->table;
}

}  // namespace cistern::arenas
