#include "addon/environment.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>

#include "addon/captures.h"
#include "addon/completions.h"
#include "addon/dlpack.h"
#include "addon/global_arena.h"
#include "addon/hand_overs.h"
#include "addon/host_functions.h"
#include "addon/ipc.h"
#include "addon/kept_memory.h"
#include "addon/memory.h"
#include "addon/order.h"
#include "addon/orphans.h"
#include "addon/process_sleep.h"
#include "addon/thread_safe_arenas.h"
#include "addon/user_objects.h"
#include "platform/lasting.h"
#include "software/software_device.h"

namespace cistern {
namespace {

// Primary contexts of the process. They are retained once and never released: other libraries share
// them, and releasing the last reference would destroy what those libraries have in them.
struct PrimaryContexts {
  std::mutex mutex;
  std::map<std::pair<const DriverTable*, int>, Context> retained;
};

PrimaryContexts& Contexts() {
  static Lasting<PrimaryContexts> contexts;
  return *contexts;
}

}  // namespace

std::uint64_t NextEnvironmentId() {
  static std::atomic<std::uint64_t> last{0};
  return ++last;
}

void OnWake(Napi::Env env, Napi::Function, Environment* environment, void*) {
  if (env == nullptr) return;  // the environment is ending
  {
    const std::lock_guard<std::mutex> lock(environment->loop->mutex);
    environment->loop->wake_posted = false;
  }
  try {
    RunReadyHostFunctions(*environment);
    DeliverCompletions(*environment);
    DeliverProcessSteps(*environment);
    DeliverReturned(*environment);
    DeliverCollectionRequest(*environment);
    DeliverKeptRequests(*environment);
    DeliverArenaRequests(*environment);
    DeliverAdmissions(*environment);
    DeliverReleasedTensors(*environment);
    DeliverKeptOrphans(*environment);
    DeliverEndedParts(*environment);
  } catch (const std::bad_alloc&) {
    // What is left of it comes with the next wake.
    const std::lock_guard<std::mutex> lock(environment->loop->mutex);
    environment->loop->PostWake();
  }
}

Environment::Environment(Napi::Env environment) : env(environment), loop(std::make_shared<EventLoop>()), id_(NextEnvironmentId()) {}

void Environment::Start() {
  array_buffer_constructor = Napi::Persistent(env.Global().Get("ArrayBuffer").As<Napi::Function>());
  loop->wake = WakeFunction::New(env, "cistern", 0, 1, this);
  loop->wake.Unref(env);
  AddToExitList(loop);
  // After the threadsafe function: hooks run last in, first out, and other threads must have
  // released it before it is destroyed.
  if (env.AddCleanupHook([](Environment* environment) { environment->Close(); }, this).IsEmpty()) throw Napi::Error::New(env);
}

void Environment::Close() {
  loop->Close();
  if (poller.joinable()) poller.join();
  RemoveFromExitList(loop);
  stalls.EndHostFunctions(outstanding_host_functions);
  stalls.EndHolds(unreleased_holds);
  outstanding_host_functions = 0;
  unreleased_holds = 0;
  ForgetHostFunctions(*this);
  LeaveOrderCheck(*this);
  EndManagedMoves();
  while (Completion* completion = loop->pending_completions.TakeFirst()) delete completion;
  while (Completion* completion = loop->finished_completions.TakeFirst()) delete completion;
  ForgetProcessSteps(*this);
  CloseExportedTensors(*this);
  ForgetEndedParts(*this);
  EndExportsOf(*this);
  if (backend != nullptr) LeaveToOrphans();
  EndKeptMemoryOf(*this);
  EndSharesOf(*this);
  EndAdmissionsOf(*this);
  for (WatchedEvent* watched : watched_events) delete watched;
  watched_events.clear();
}

void Environment::EndManagedMoves() {
  if (pending_moves == nullptr) return;
  software::EndManagedMoves(pending_moves);
  pending_moves = nullptr;
  pending_moves_array.Reset();
}

void Environment::LeaveToOrphans() {
  // Without memory for the list, the objects stay allocated until the process ends.
  const auto leave = [&](const auto& append) {
    try {
      std::vector<Orphan> orphans;
      append(&orphans);
      LeaveOrphans(*this, std::move(orphans));
    } catch (const std::bad_alloc&) {
    }
  };
  // What others share with this environment, they can use whether or not there is memory for what is its own.
  leave([&](std::vector<Orphan>* orphans) { *orphans = EndHandOversOf(*this); });
  leave([&](std::vector<Orphan>* orphans) { AppendOwn(orphans); });
  leave([&](std::vector<Orphan>* orphans) { EndThreadSafeArenasOf(*this, orphans); });
  EndGlobalArenasOf(*this);
}

void Environment::AppendOwn(std::vector<Orphan>* appended) {
  std::vector<Orphan>& orphans = *appended;
  allocations.ForEach([&](const Allocation& allocation) { orphans.push_back(OrphanOf(*this, allocation)); });
  streams.ForEach([&](std::uint64_t, const StreamEntry& entry) {
    if (entry.owned) orphans.push_back({OrphanKind::kStream, entry.device, AsAddress(entry.stream)});
    if (entry.owned) return;
    for (const DeviceEvent& event : LeaveCapture(*this, entry.stream)) {
      orphans.push_back({OrphanKind::kEvent, event.device, AsAddress(event.event)});
    }
  });
  events.ForEach([&](std::uint64_t, const EventEntry& entry) {
    if (entry.shared.hand_over == 0) orphans.push_back({OrphanKind::kEvent, entry.device, AsAddress(entry.event)});
  });
  for (const WatchedEvent* watched : watched_events) {
    if (watched->owner == 0 && watched->shared.hand_over == 0)
      orphans.push_back({OrphanKind::kEvent, watched->device, AsAddress(watched->event)});
  }
  for (const DeviceEvent& internal : internal_events.all()) {
    orphans.push_back({OrphanKind::kEvent, internal.device, AsAddress(internal.event)});
  }
  graph_execs.ForEach([&](std::uint64_t, const GraphExecEntry& entry) {
    orphans.push_back({OrphanKind::kGraphExec, entry.device, AsAddress(entry.exec)});
  });
  graphs.ForEach([&](std::uint64_t, const GraphEntry& entry) {
    orphans.push_back({OrphanKind::kGraph, entry.device, AsAddress(entry.graph)});
  });
  pools.ForEach([&](std::uint64_t, const PoolEntry& entry) {
    if (entry.owned) orphans.push_back({OrphanKind::kPool, entry.device, AsAddress(entry.pool)});
  });
  address_spaces.ForEach([&](std::uint64_t, const std::shared_ptr<AddressSpace>& space) {
    orphans.push_back({OrphanKind::kAddressSpace, space->device, space->base, space->bytes, space});
  });
  // Any device will do: all of them are waited for.
  imported_tensors.ForEach([&](std::uint64_t, const std::shared_ptr<ImportedTensor>& tensor) {
    orphans.push_back({OrphanKind::kTensor, 0, 0, 0, nullptr, 0, tensor});
  });
  AppendImportsOf(*this, &orphans);
  // Staging memory is portable: any device's context frees it.
  for (const StagingBlock& block : staging.all()) orphans.push_back({OrphanKind::kPinnedMemory, 0, AsAddress(block.pointer)});
}

void Environment::Bind(Napi::Float64Array mailbox, Napi::Float64Array counters) {
  mailbox_reference_ = Napi::Persistent(mailbox);
  mailbox_ = mailbox.Data();
  counters_reference_ = Napi::Persistent(counters);
  counters_ = counters.Data();
}

Status Environment::OpenBackend(const DriverTable* table) {
  if (backend != nullptr) return backend == table ? kSuccess : kNoBackend;
  if (IsAsleep(table)) return kAsleep;
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
  uses_pageable_memory_.assign(devices.size(), -1);
  compute_capabilities_.assign(devices.size(), -1);
  has_memory_operations_.assign(devices.size(), -1);
  witnesses_.assign(devices.size(), nullptr);
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

bool Environment::UsesPageableMemory(int device) {
  signed char& known = uses_pageable_memory_[static_cast<std::size_t>(device)];
  if (known < 0) {
    known = 0;
    for (const int attribute : {kAttributePageableMemoryAccess, kAttributePageableMemoryAccessUsesHostPageTables}) {
      int value = 0;
      if (driver->DeviceGetAttribute(&value, attribute, DriverDevice(device)) == kSuccess && value != 0) known = 1;
    }
  }
  return known != 0;
}

int Environment::ComputeCapabilityMajor(int device) {
  int& known = compute_capabilities_[static_cast<std::size_t>(device)];
  if (known < 0 && driver->DeviceGetAttribute(&known, kAttributeComputeCapabilityMajor, DriverDevice(device)) != kSuccess) known = 0;
  return known;
}

void Environment::CallBack(const Napi::FunctionReference& function) {
  const Napi::HandleScope scope(env);
  napi_value error;
  // Raw, like every call that runs JavaScript: docs/design/001.
  if (napi_call_function(env, env.Undefined(), function.Value(), 0, nullptr, nullptr) != napi_ok && env.IsExceptionPending()) {
    napi_get_and_clear_last_exception(env, &error);
  }
}

void Environment::KeepAlive() {
  if (pending_++ == 0) loop->wake.Ref(env);
}

void Environment::LetGo() {
  if (--pending_ == 0) loop->wake.Unref(env);
}

void Environment::NoteWaitToFree(Status status) {
  if (status == wait_to_free) return;
  wait_to_free = status;
  tells_of_orphans = status != kSuccess;
  if (!tells_of_orphans) return;
  const std::lock_guard<std::mutex> lock(loop->mutex);
  loop->PostWake();
}

Status Environment::WitnessOf(int device, Event* event) {
  Event& witness = witnesses_[static_cast<std::size_t>(device)];
  const Status status = witness == nullptr ? internal_events.Acquire(*driver, device, &witness) : Status{kSuccess};
  *event = witness;
  return status;
}

bool Environment::ReapOrphans() {
  LeaveEndedArenas(*this);
  const bool freed_orphans = FreeOrphans(*this);
  const bool freed = FreeEndedSuperblocks(*this) || freed_orphans;
  if (freed) SettleShares();
  return freed;
}

}  // namespace cistern
