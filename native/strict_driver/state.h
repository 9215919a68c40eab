// The driver's state: contexts, streams, events, allocations and pools. `big_lock` guards all of
// it, unless a comment says otherwise.
#ifndef CISTERN_STRICT_DRIVER_STATE_H_
#define CISTERN_STRICT_DRIVER_STATE_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "cuda/driver_table.h"
#include "strict_driver/constants.h"
#include "strict_driver/device_memory.h"
#include "strict_driver/handle_table.h"

namespace cistern::strict {

struct Allocation;
struct ContextState;
struct StreamState;
struct PoolState;
struct ForeignEvent;
struct ForeignMemory;
struct CaptureState;
struct GraphState;
struct GraphMemory;
struct NodeState;
struct ExecState;
struct UserObjectState;
using CaptureRef = std::shared_ptr<CaptureState>;
using StreamRef = std::shared_ptr<StreamState>;
using PoolRef = std::shared_ptr<PoolState>;
using Lock = std::unique_lock<std::mutex>;

// A place in the order of a stream: reached once the stream has completed `count` operations.
struct Place {
  StreamRef stream;
  std::uint64_t count = 0;
  bool IsReached() const;
};

struct Operation {
  const char* name = "";
  DeviceOrdinal device = 0;                       // that a kernel runs on
  std::vector<std::shared_ptr<Allocation>> uses;  // the memory whose addresses it has
  std::vector<Place> after;
  std::function<bool()> condition;  // called without the lock, repeatedly, until it is true
  std::function<void()> run;        // called without the lock
  HostFunction host_function = nullptr;
  void* host_data = nullptr;
  Status fault = 0;
};

enum class Role { kCreated, kLegacy, kPerThread };

struct StreamState {
  ContextState* context = nullptr;
  Role role = Role::kCreated;
  unsigned flags = 0;
  int priority = 0;
  std::uint64_t id = 0;
  std::deque<Operation> queue;
  std::uint64_t submitted = 0;
  std::uint64_t completed = 0;
  bool is_destroyed = false;
  bool has_thread = false;
  const char* at = "";                      // what it is doing or waiting for
  CaptureRef capture;                       // the one that it is part of, until that is ended; see capture.h
  std::vector<std::size_t> frontier;        // the nodes of the capture that its next one depends on
  std::map<std::size_t, EdgeData> edges;    // from those of them for which the caller gave data
  std::vector<GraphNode> frontier_handles;  // those nodes, as last returned to the caller
  std::vector<EdgeData> frontier_edges;     // and their edges
  std::condition_variable arrived;
  bool IsBlocking() const { return (flags & kStreamNonBlocking) == 0; }
  bool IsIdle() const { return completed == submitted; }
};

// The object behind a Context: the primary context of a device. It is never destroyed.
struct ContextState {
  DeviceOrdinal device = 0;
  int retained = 0;
  Status sticky_error = kSuccess;
  std::set<DeviceOrdinal> peers;  // whose plain memory it can access
  StreamRef legacy;
  std::set<StreamRef> streams;  // those that have a handle or work
  long locked_by = 0;           // the thread whose wait keeps all others out
};

struct Recording {
  Place place;
  double milliseconds = 0;
};

struct EventState {
  ContextState* context = nullptr;
  unsigned flags = 0;
  std::shared_ptr<Recording> last;
  CaptureRef capture;                     // of the last recording; null: it was not captured
  std::vector<std::size_t> frontier;      // the nodes of the capture that come before that
  std::uint32_t slot = 0;                 // of an interprocess event; see ipc.h
  std::shared_ptr<ForeignEvent> foreign;  // of another process
};

enum class Kind { kDevice, kPool, kPinned, kManaged, kVirtual, kImported };

struct PageAdvice {
  bool is_read_mostly = false;
  int preferred = kNoLocation;
  int prefetched = kNoLocation;
  unsigned accessed_by = 0;  // a bit for each device, the highest for the host
};

struct Allocation {
  std::uintptr_t start = 0;
  std::size_t bytes = 0;
  std::size_t reserved = 0;
  Kind kind = Kind::kDevice;  // kPool: device memory of a pool
  DeviceOrdinal device = 0;
  PoolRef pool;                          // null: none
  std::atomic<bool> is_allocated{true};  // in stream order
  std::atomic<bool> is_freed{false};     // likewise
  std::set<DeviceOrdinal> accessors;     // of virtual memory, and besides its own device of a graph's
  bool is_read_only = false;             // virtual memory, for every device
  std::vector<PageAdvice> pages;
  bool is_registered = false;              // pinned, and mapped and unmapped by the program
  std::uint32_t slot = 0;                  // 0 unless it was exported; see ipc.h
  std::shared_ptr<ForeignMemory> foreign;  // kImported: memory of another process, and its start there
  char* foreign_view = nullptr;
  bool is_of_foreign_pool = false;
  std::weak_ptr<GraphMemory> graph;  // of an allocation node
  bool IsOfGraph() const { return !graph.expired(); }
  bool Contains(std::uintptr_t address, std::size_t length) const {
    return address >= start && length <= bytes && address - start <= bytes - length;
  }
};
using AllocationRef = std::shared_ptr<Allocation>;

struct FreeBlock {
  std::size_t bytes = 0;
  bool is_pending = false;  // freed in stream order, and not yet seen by a synchronization
  Place freed_at;
};

struct PoolChunk {
  std::size_t bytes = 0;
  std::map<std::size_t, FreeBlock> free_blocks;  // by offset, as the chunks
};

struct PoolState {
  DeviceOrdinal device = 0;  // kNoLocation: managed memory; kHostLocation: pinned memory of the host
  int preferred = kNoLocation;
  std::size_t max_bytes = 0;
  std::uint64_t release_threshold = 0;
  int follows_events = 1;
  int is_opportunistic = 1;
  int adds_dependencies = 1;
  std::uint64_t used = 0;
  std::uint64_t used_high = 0;
  std::uint64_t reserved = 0;
  std::uint64_t reserved_high = 0;
  bool is_destroyed = false;
  std::set<DeviceOrdinal> accessors;        // besides its own device
  std::map<std::size_t, PoolChunk> chunks;  // by offset in the device; by address if it is on none
  std::size_t live = 0;
  Pool handle = nullptr;
  bool is_exportable = false;
  std::uint64_t number = 0;         // of an exportable pool, in its process
  std::uint64_t foreign_table = 0;  // 0: a pool of this process; otherwise its number is that of the process with this table
  bool IsManaged() const { return device == kNoLocation; }
  bool IsOnDevice() const { return device >= 0; }
};

struct Driver {
  bool is_initialized = false;
  bool has_ended = false;
  std::vector<ContextState*> contexts;
  std::vector<DeviceMemory> memory;
  HandleTable<StreamState> streams;
  HandleTable<EventState> events;
  HandleTable<PoolState> pools;
  std::vector<CaptureRef> captures;  // open and invalidated ones
  HandleTable<GraphState> graphs;
  HandleTable<const NodeState> nodes;
  HandleTable<ExecState> execs;
  HandleTable<UserObjectState> user_objects;
  std::map<DeviceOrdinal, Pool> default_pools;
  // Those that were set; a device without one has its default pool as the current one.
  std::map<DeviceOrdinal, Pool> current_pools;
  std::set<PoolRef> all_pools;  // including destroyed ones that still have memory
  std::map<std::uintptr_t, AllocationRef> allocations;
  std::map<std::string, std::uint64_t> calls;
  std::uint64_t last_stream_id = 20;
  std::uint64_t last_capture_id = 0;
  int running_callbacks = 0;

  DeviceMemory& MemoryOf(DeviceOrdinal device) { return memory[static_cast<std::size_t>(device)]; }
  ContextState* ContextOf(DeviceOrdinal device) { return contexts[static_cast<std::size_t>(device)]; }
};

struct Thread {
  ContextState* current = nullptr;
  bool is_in_callback = false;
  int capture_mode = kCaptureModeGlobal;
  std::uint64_t id = 0;  // unlike the system's, never used again; see ThreadId
  std::map<ContextState*, StreamRef> default_streams;
  Status pending_fault = 0;   // the error of the work that this call queues
  const char* function = "";  // the call in progress
};

extern std::mutex& big_lock;
extern std::condition_variable& changed;  // an operation is over, or an error has occurred
extern Driver& driver;
extern thread_local Thread thread;

}  // namespace cistern::strict

#endif  // CISTERN_STRICT_DRIVER_STATE_H_
