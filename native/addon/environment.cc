#include "addon/environment.h"

#include <algorithm>
#include <map>
#include <mutex>

#include "addon/completions.h"
#include "addon/host_functions.h"
#include "addon/memory.h"
#include "addon/order.h"
#include "addon/orphans.h"

namespace cistern {
namespace {

// Primary contexts of the process. They are retained once and never released: other libraries share them, and releasing the last reference
// would destroy what those have in them.
struct PrimaryContexts {
  std::mutex mutex;
  std::map<std::pair<const DriverTable*, int>, Context> retained;
};

PrimaryContexts& Contexts() {
  static PrimaryContexts& contexts = *new PrimaryContexts;
  return contexts;
}

template <typename Handle>
std::uint64_t AsAddress(Handle handle) {
  return reinterpret_cast<std::uintptr_t>(handle);
}

void OnWake(napi_env env, napi_value, void* context, void*) {
  if (env == nullptr) return;  // the environment is coming to its end
  Environment& environment = *static_cast<Environment*>(context);
  {
    const std::lock_guard<std::mutex> lock(environment.loop->mutex);
    environment.loop->wake_posted = false;
  }
  RunReadyHostFunctions(environment, env);
  DeliverCompletions(environment, env);
}

}  // namespace

Environment::Environment(napi_env environment) : env(environment), loop(std::make_shared<EventLoop>()) {}

bool Environment::Start() {
  napi_value global;
  napi_value constructor;
  if (napi_get_global(env, &global) != napi_ok || napi_get_named_property(env, global, "ArrayBuffer", &constructor) != napi_ok ||
      napi_create_reference(env, constructor, 1, &array_buffer_constructor) != napi_ok) {
    return false;
  }
  napi_value name;
  if (napi_create_string_utf8(env, "cistern", NAPI_AUTO_LENGTH, &name) != napi_ok ||
      napi_create_threadsafe_function(env, nullptr, nullptr, name, 0, 1, nullptr, nullptr, this, OnWake, &wake_) != napi_ok ||
      napi_unref_threadsafe_function(env, wake_) != napi_ok) {
    return false;
  }
  loop->wake = wake_;
  AddToExitList(loop);
  // After the threadsafe function: hooks run last in, first out, and other threads must have let go of it before it is destroyed.
  return napi_add_env_cleanup_hook(
             env, [](void* data) { static_cast<Environment*>(data)->Close(); }, this) == napi_ok;
}

void Environment::Close() {
  loop->Close();
  if (poller.joinable()) poller.join();
  RemoveFromExitList(loop);
  stalls.EndHostFunctions(outstanding_host_functions);
  stalls.EndHolds(unreleased_holds);
  outstanding_host_functions = 0;
  unreleased_holds = 0;
  ForgetHostFunctions(*loop);
  LeaveOrderCheck(*this);
  while (Completion* completion = loop->pending_completions.TakeFirst()) delete completion;
  while (Completion* completion = loop->finished_completions.TakeFirst()) delete completion;
  if (backend != nullptr) {
    try {
      LeaveToOrphans();
    } catch (const std::bad_alloc&) {
      // With no memory for the list, what it would have named stays allocated until the process ends.
    }
  }
  for (WatchedEvent* watched : watched_events) delete watched;
  watched_events.clear();
}

void Environment::LeaveToOrphans() {
  std::vector<Orphan> orphans;
  allocations.ForEach([&](const Allocation& allocation) { orphans.push_back(OrphanOf(*this, allocation)); });
  streams.ForEach([&](std::uint64_t, const StreamEntry& entry) {
    if (entry.owned) orphans.push_back({OrphanKind::kStream, entry.device, AsAddress(entry.stream)});
  });
  events.ForEach([&](std::uint64_t, const EventEntry& entry) {
    orphans.push_back({OrphanKind::kEvent, entry.device, AsAddress(entry.event)});
  });
  for (const WatchedEvent* watched : watched_events) {
    if (watched->owner == 0) orphans.push_back({OrphanKind::kEvent, watched->device, AsAddress(watched->event)});
  }
  for (const DeviceEvent& internal : internal_events.all()) {
    orphans.push_back({OrphanKind::kEvent, internal.device, AsAddress(internal.event)});
  }
  pools.ForEach([&](std::uint64_t, const PoolEntry& entry) {
    orphans.push_back({OrphanKind::kPool, entry.device, AsAddress(entry.pool)});
  });
  // Staging memory is portable: any device's context frees it.
  for (const StagingBlock& block : staging.all()) orphans.push_back({OrphanKind::kPinnedMemory, 0, AsAddress(block.pointer)});
  LeaveOrphans(backend, std::move(orphans));
}

Status Environment::Bind(napi_value mailbox, double* mailbox_data, napi_value counters, double* counters_data) {
  napi_ref mailbox_reference;
  napi_ref counters_reference;
  if (napi_create_reference(env, mailbox, 1, &mailbox_reference) != napi_ok) return kInvalidArgument;
  if (napi_create_reference(env, counters, 1, &counters_reference) != napi_ok) {
    napi_delete_reference(env, mailbox_reference);
    return kInvalidArgument;
  }
  if (mailbox_reference_ != nullptr) {
    napi_delete_reference(env, mailbox_reference_);
    napi_delete_reference(env, counters_reference_);
  }
  mailbox_reference_ = mailbox_reference;
  counters_reference_ = counters_reference;
  mailbox_ = mailbox_data;
  counters_ = counters_data;
  return kSuccess;
}

Status Environment::OpenBackend(const DriverTable* table) {
  if (backend != nullptr) return backend == table ? kSuccess : kNoBackend;
  driver = table;
  Status status = Counted<Call::kInit>(0u);
  int count = 0;
  if (status == kSuccess) status = driver->DeviceGetCount(&count);
  std::vector<DeviceOrdinal> devices(static_cast<std::size_t>(std::max(count, 0)));
  for (int device = 0; status == kSuccess && device < count; ++device) {
    status = driver->DeviceGet(&devices[static_cast<std::size_t>(device)], device);
  }
  if (status != kSuccess) {
    driver = nullptr;
    return status;
  }
  backend = table;
  JoinOrderCheck(*this);
  contexts_.assign(devices.size(), nullptr);
  reads_pageable_memory_.assign(devices.size(), -1);
  has_memory_operations_.assign(devices.size(), -1);
  devices_ = std::move(devices);
  static std::once_flag once;
  std::call_once(once, CloseEventLoopsAtExit);
  return kSuccess;
}

Status Environment::RetainContext(int device, Context* context) {
  PrimaryContexts& process = Contexts();
  const std::lock_guard<std::mutex> lock(process.mutex);
  Context& retained = process.retained[{backend, device}];
  if (retained == nullptr) {
    Context fresh = nullptr;
    const Status status = Counted<Call::kDevicePrimaryCtxRetain>(&fresh, DriverDevice(device));
    if (status != kSuccess) return status;
    retained = fresh;
    CloseEventLoopsAtExit();
  }
  *context = contexts_[static_cast<std::size_t>(device)] = retained;
  return kSuccess;
}

bool Environment::IsInUse(int device) const {
  PrimaryContexts& process = Contexts();
  const std::lock_guard<std::mutex> lock(process.mutex);
  const auto found = process.retained.find({backend, device});
  return found != process.retained.end() && found->second != nullptr;
}

bool Environment::ReadsPageableMemory(int device) {
  constexpr int kPageableMemoryAccessUsesHostPageTables = 100;
  signed char& known = reads_pageable_memory_[static_cast<std::size_t>(device)];
  if (known < 0) {
    int value = 0;
    const Status status = driver->DeviceGetAttribute(&value, kPageableMemoryAccessUsesHostPageTables, DriverDevice(device));
    known = status == kSuccess && value != 0;
  }
  return known != 0;
}

void Environment::KeepAlive() {
  if (pending_++ == 0) napi_ref_threadsafe_function(env, wake_);
}

void Environment::LetGo() {
  if (--pending_ == 0) napi_unref_threadsafe_function(env, wake_);
}

bool Environment::ReapOrphans() { return FreeOrphans(*this); }

}  // namespace cistern
