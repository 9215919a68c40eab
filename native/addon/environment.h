// The objects of the driver that one JavaScript environment (the main thread or a worker) holds.
//
// An environment belongs to its JavaScript thread: nothing here is locked, and other threads reach
// it only through its EventLoop.
#ifndef CISTERN_ADDON_ENVIRONMENT_H_
#define CISTERN_ADDON_ENVIRONMENT_H_

#include <napi.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <thread>
#include <vector>

#include "addon/admission.h"
#include "addon/allocation_registry.h"
#include "addon/event_loop.h"
#include "addon/handle_table.h"
#include "addon/internal_events.h"
#include "addon/peers.h"
#include "addon/shared_counts.h"
#include "addon/staging.h"
#include "addon/weak_references.h"
#include "cuda/asleep_table.h"
#include "cuda/driver_in_use.h"
#include "cuda/driver_table.h"
#include "cuda/native_status.h"
#include "cuda/relaxed_mode_scope.h"

namespace cistern {

class AddressSpace;
class MemoryFile;
class ImportedTensor;
struct ExportedTensor;
struct Gate;
struct HostNode;
struct Orphan;
struct WatchedEvent;
namespace arenas {
class ThreadSafeArena;
}

// Different for every environment, and everything else that has memory of a global arena; never 0.
std::uint64_t NextEnvironmentId();

// The attachment of a stream or an event that environments share; see hand_overs.h. Zeros: of none.
struct SharedObject {
  std::uint64_t hand_over = 0;
  std::uint64_t attachment = 0;
};

struct StreamEntry {
  Stream stream = nullptr;
  int device = 0;
  bool owned = false;  // false if it is shared
  SharedObject shared;
  bool never_captured = false;  // false also if it is unknown; see captures.h
  // A driver refuses both while the stream is captured, and ends the capture.
  std::uint64_t id = 0;
  unsigned flags = 0;
};

struct EventEntry {
  Event event = nullptr;
  int device = 0;
  bool timing = false;
  WatchedEvent* watched = nullptr;  // set while an eventCompletion waits for this recording; see completions.h
  SharedObject shared;
  std::uint64_t capture = 0;  // the driver's id of the capture that it was last recorded in; see captures.h
};

// The host functions that a launch runs, each once; see host_functions.h.
using HostNodes = std::vector<HostNode*>;

struct GraphEntry {
  Graph graph = nullptr;
  int device = 0;
  HostNodes functions;
};

struct GraphExecEntry {
  GraphExec exec = nullptr;
  int device = 0;
  HostNodes functions;
};

struct PoolEntry {
  Pool pool = nullptr;
  int device = 0;
  bool owned = false;
  bool is_on_device = true;
};

struct ThreadArenaEntry {
  std::shared_ptr<arenas::ThreadSafeArena> arena;
  bool is_closed = false;  // by JavaScript, which may still have memory of it
};

// A blocking call that has stopped for a host function; see stopped_calls.h.
struct StoppedCall {
  Event event = nullptr;  // what the call waits for; null: no call
  int device = 0;
  std::uint64_t handle = 0;         // of the stream or the event that the call waits for, which may have ended meanwhile
  WatchedEvent* watched = nullptr;  // of a wait for an event; null: `event` is an internal one
  StagingBlock block;               // of a copy to the host, as are the next two
  std::uint64_t source = 0;
  std::uint64_t bytes = 0;
  std::uint64_t next_call = 0;  // the number of the call that may resume it
};

// An allocation that has stopped for host functions: first for those up to the last one, and then
// for a number of generations of functions that these queued.
struct StoppedAllocation {
  std::uint64_t last_function = 0;
  int generations = 0;
  std::uint64_t next_call = 0;  // as above
};

// The member of the driver table for each function, so that one template makes and counts every
// call.
template <Call call>
struct DriverFunction;
#define CISTERN_DRIVER_FUNCTION(function, symbol, version, parameters) \
  template <>                                                          \
  struct DriverFunction<Call::k##function> {                           \
    static constexpr auto member = &DriverTable::function;             \
  };
CISTERN_DRIVER_FUNCTIONS(CISTERN_DRIVER_FUNCTION)
#undef CISTERN_DRIVER_FUNCTION

class Environment {
 public:
  static constexpr int kMailboxLength = 16;
  // After the driver's functions: host allocations and host frees.
  static constexpr int kCounterCount = kCallCount + 2;

  explicit Environment(Napi::Env env);
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

  // Set-up that needs a running environment.
  void Start();
  // The end of the environment: releases other threads, and leaves everything that it still holds
  // to the orphans. Does not call the driver.
  void Close();

  void Bind(Napi::Float64Array mailbox, Napi::Float64Array counters);
  Status OpenBackend(const DriverTable* table);

  double In(int index) const { return mailbox_[index]; }
  // An input of a hot call as an integer from 0 to 2^53 - 1.
  bool In(int index, std::uint64_t* integer) const { return ToInteger(mailbox_[index], integer); }
  void Out(int index, double value) { mailbox_[index] = value; }

  // For calls of cistern's own that the order check does not see.
  const DriverTable& own_calls() const { return IsAsleep(backend) ? *AsleepTable() : *backend; }

  // A call on the user's behalf. cistern's own calls (contexts, range checks, completions, staging)
  // go to `driver` uncounted.
  template <Call call, typename... Arguments>
  Status Counted(Arguments... arguments) {
    return CountedIf<call>(true, arguments...);
  }
  template <Call call, typename... Arguments>
  Status CountedIf(bool is_counted, Arguments... arguments) {
    counters_[static_cast<int>(call)] += is_counted ? 1 : 0;
    const DriverTable* table = driver;
    return (table->*DriverFunction<call>::member)(arguments...);
  }
  void CountHostAllocation() { counters_[kCallCount] += 1; }
  void CountHostFree() { counters_[kCallCount + 1] += 1; }
  // Calls a function of cistern's own without arguments, from the event loop. Errors are ignored: it throws none.
  void CallBack(const Napi::FunctionReference& function);
  // Different for every environment of the process, and never 0.
  std::uint64_t id() const { return id_; }

  int device_count() const { return static_cast<int>(devices_.size()); }
  bool HasDevice(int device) const { return device >= 0 && static_cast<std::size_t>(device) < devices_.size(); }
  // The number of a driver's device, or -1.
  int IndexOf(DeviceOrdinal ordinal) const {
    for (int device = 0; device < device_count(); ++device) {
      if (DriverDevice(device) == ordinal) return device;
    }
    return -1;
  }
  DeviceOrdinal DriverDevice(int device) const { return devices_[static_cast<std::size_t>(device)]; }
  // The primary context of an existing device, retained when the process first uses the device.
  Status ContextOf(int device, Context* context) {
    *context = contexts_[static_cast<std::size_t>(device)];
    return *context != nullptr ? kSuccess : RetainContext(device, context);
  }
  // Whether any environment of the process has used the device.
  bool IsInUse(int device) const;
  // True if the device can use ordinary host memory itself, through the host's page tables (Grace Hopper) or its
  // own (HMM). The driver then need not have read, or written, that memory when an asynchronous copy returns.
  bool UsesPageableMemory(int device);
  int ComputeCapabilityMajor(int device);

  // An event of the device that is never recorded. The device's context must be current.
  Status WitnessOf(int device, Event* event);

  // Whether streams of the device can wait for a word of memory: -1 if that has not been tried yet.
  signed char& HasMemoryOperations(int device) { return has_memory_operations_[static_cast<std::size_t>(device)]; }

  // Pending work keeps the process alive.
  void KeepAlive();
  void LetGo();

  // Frees memory and objects that ended environments left behind. True if anything was freed.
  bool ReapOrphans();
  // Notes the result of a wait before freeing memory that ended environments left, or that could not
  // be freed immediately. JavaScript is told of a failure once, until a wait succeeds or fails in
  // another way.
  void NoteWaitToFree(Status status);

  // Makes `call`, and repeats it if it ran out of memory and orphans could be freed.
  template <typename Callable>
  Status WithReclaim(Callable&& call) {
    const Status status = call();
    return status == kErrorOutOfMemory && ReapOrphans() ? call() : status;
  }

  Napi::Env env;
  // This and the next one are null until a backend is open.
  const DriverTable* backend = nullptr;
  DriverInUse driver;
  HandleTable<StreamEntry> streams;
  HandleTable<EventEntry> events;
  HandleTable<PoolEntry> pools;
  HandleTable<GraphEntry> graphs;
  HandleTable<GraphExecEntry> graph_execs;
  HandleTable<std::shared_ptr<AddressSpace>> address_spaces;
  HandleTable<std::shared_ptr<MemoryFile>> descriptors;  // sockets, and what came over them
  HandleTable<ThreadArenaEntry> thread_safe_arenas;
  HandleTable<std::shared_ptr<Gate>> holds;
  HandleTable<std::shared_ptr<ImportedTensor>> imported_tensors;
  std::set<ExportedTensor*> exported_tensors;
  std::set<HostNode*> host_nodes;
  IntrusiveList<GraphPart> ended_parts;  // the numbered ones of graphs, which JavaScript has not taken yet
  HandleTable<Share> shares;
  HandleTable<AdmissionEntry> admissions;
  AllocationRegistry allocations;
  std::map<std::uint64_t, Allocation> large_allocations;  // plain ones of them, by address: for addresses within them
  Peers peers;
  InternalEvents internal_events;
  std::vector<WatchedEvent*> watched_events;
  Staging staging;
  WeakReferences weak_references;
  std::shared_ptr<EventLoop> loop;
  std::thread poller;
  Napi::FunctionReference array_buffer_constructor;
  Napi::FunctionReference on_returned;  // called when memory has come home; empty: nothing was handed over
  Napi::FunctionReference on_arena_request;
  Napi::FunctionReference on_admissions;
  Napi::FunctionReference on_kept_orphans;
  Napi::FunctionReference on_ended_parts;
  Napi::FunctionReference on_collection_request;  // empty: nothing was attached
  Napi::FunctionReference on_kept_request;        // empty: no resource keeps memory

  // The cell in which JavaScript sees that moves of managed memory wait to be taken; null unless this
  // environment takes them.
  std::int32_t* pending_moves = nullptr;
  Napi::Reference<Napi::Int32Array> pending_moves_array;
  void EndManagedMoves();

  // The cells that JavaScript passed when it turned order checking on in this environment, see
  // order/report.h; else empty.
  Napi::Reference<Napi::Float64Array> order_cells;

  std::uint64_t calls = 0;  // from JavaScript to the addon
  StoppedCall stopped_call;
  StoppedAllocation stopped_allocation;
  // Of the last wait before orphans are freed, and whether JavaScript is to be told of it.
  Status wait_to_free = kSuccess;
  bool tells_of_orphans = false;
  std::uint64_t launched_host_functions = 0;
  int outstanding_host_functions = 0;
  int running_host_functions = 0;
  int unreleased_holds = 0;

  // Whether an array over memory of the driver was ever made here; see host_views.cc.
  bool has_host_views = false;

  // Whether the driver has said that host memory must not be registered.
  bool refuses_registration = false;

  // True if a driver call that waits for a stream might wait for this very thread.
  bool MayStall() const { return outstanding_host_functions > 0 || unreleased_holds > 0; }

 private:
  Status RetainContext(int device, Context* context);
  void LeaveToOrphans();
  // What belongs to this environment alone.
  void AppendOwn(std::vector<Orphan>* appended);

  const std::uint64_t id_;
  double* mailbox_ = own_mailbox_;
  double* counters_ = own_counters_;
  std::vector<DeviceOrdinal> devices_;
  std::vector<Context> contexts_;
  std::vector<signed char> uses_pageable_memory_;  // -1: not asked yet
  std::vector<int> compute_capabilities_;          // as above
  std::vector<signed char> has_memory_operations_;
  std::vector<Event> witnesses_;
  Napi::Reference<Napi::Float64Array> mailbox_reference_;
  Napi::Reference<Napi::Float64Array> counters_reference_;
  int pending_ = 0;

  // In use until initialize binds JavaScript's arrays, so that no call has to check for them.
  double own_mailbox_[kMailboxLength] = {};
  double own_counters_[kCounterCount] = {};
};

// Makes a device's context current for a scope, and restores the previous one: the process may not
// belong to cistern alone.
class ContextScope {
 public:
  // Inlined, as recording an event and waiting for one are hot.
  [[gnu::always_inline]] ContextScope(Environment& environment, int device) : driver_(environment.driver) {
    Context context;
    status_ = environment.ContextOf(device, &context);
    if (status_ != kSuccess) return;
    Context current = nullptr;
    driver_->CtxGetCurrent(&current);
    if (current == context) return;
    status_ = driver_->CtxSetCurrent(context);
    if (status_ == kSuccess) previous_ = current;
  }
  ~ContextScope() {
    if (previous_ != nullptr) driver_->CtxSetCurrent(previous_);
  }
  ContextScope(const ContextScope&) = delete;
  ContextScope& operator=(const ContextScope&) = delete;

  Status status() const { return status_; }

 private:
  const DriverTable* driver_;
  Context previous_ = nullptr;
  Status status_;
};

// Both, for everything that is not on the way of an allocation.
class RelaxedContextScope {
 public:
  RelaxedContextScope(Environment& environment, int device)
      : context_(environment, device), mode_(context_.status() == kSuccess ? environment.driver.operator->() : nullptr) {}

  Status status() const { return context_.status(); }

 private:
  ContextScope context_;
  RelaxedModeScope mode_;
};

}  // namespace cistern

#endif  // CISTERN_ADDON_ENVIRONMENT_H_
