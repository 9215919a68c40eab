#include "addon/orphans.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>

#include "addon/captures.h"
#include "addon/dlpack.h"
#include "addon/environment.h"
#include "addon/global_arena.h"
#include "addon/hand_overs.h"
#include "addon/host_memory.h"
#include "addon/ipc.h"
#include "addon/memory.h"
#include "addon/virtual_memory.h"
#include "arenas/thread_safe_arena.h"
#include "platform/lasting.h"

namespace cistern {
namespace {

struct OrphanList {
  std::mutex mutex;
  std::map<const DriverTable*, std::vector<Orphan>> by_driver;
  std::map<std::uint64_t, std::uint64_t> bytes_by_environment;  // of memory and addresses that are not freed yet
  std::atomic<bool> any{false};
};

OrphanList& AllOrphans() {
  static Lasting<OrphanList> list;
  return *list;
}

// The list's mutex must be held.
void Append(OrphanList& list, const DriverTable* backend, const std::vector<Orphan>& orphans) {
  std::vector<Orphan>& of_driver = list.by_driver[backend];
  of_driver.insert(of_driver.end(), orphans.begin(), orphans.end());
  list.any = true;
}

// The orphan has been freed.
void SubtractBytes(OrphanList& list, const Orphan& orphan) {
  const std::lock_guard<std::mutex> lock(list.mutex);
  const auto entry = list.bytes_by_environment.find(orphan.environment);
  if (entry == list.bytes_by_environment.end()) return;
  entry->second -= orphan.bytes;
  if (entry->second == 0) list.bytes_by_environment.erase(entry);
}

template <typename Handle>
Handle AsHandle(const Orphan& orphan) {
  return reinterpret_cast<Handle>(static_cast<std::uintptr_t>(orphan.address));
}

// False if the driver refuses; the orphan can be freed later.
bool Free(Environment& environment, const Orphan& orphan) {
  const bool is_own = orphan.environment == environment.id();
  switch (orphan.kind) {
    case OrphanKind::kEvent:
      return environment.CountedIf<Call::kEventDestroy>(is_own, AsHandle<Event>(orphan)) == kSuccess;
    case OrphanKind::kArenaMemory:
      return orphan.arena->DeallocateClaimed(orphan.address, orphan.bytes, orphan.environment);
    case OrphanKind::kThreadArena:
      return true;  // it ends with its last user
    case OrphanKind::kPoolMemory:
      return environment.CountedIf<Call::kMemFreeAsync>(is_own, DevicePointer{orphan.address}, LegacyStream()) == kSuccess;
    case OrphanKind::kPool:
      return environment.CountedIf<Call::kMemPoolDestroy>(is_own, AsHandle<Pool>(orphan)) == kSuccess;
    case OrphanKind::kMemory:
      return environment.CountedIf<Call::kMemFree>(is_own, DevicePointer{orphan.address}) == kSuccess;
    case OrphanKind::kPages:
      return CompleteFree(environment, is_own, *orphan.space, orphan.address);
    case OrphanKind::kMemoryHandle:
      return environment.CountedIf<Call::kMemRelease>(is_own, MemoryHandle{orphan.address}) == kSuccess;
    case OrphanKind::kAddressSpace:
      return FreeAddressSpace(environment, is_own, *orphan.space);
    case OrphanKind::kPinnedMemory:
      return environment.CountedIf<Call::kMemFreeHost>(is_own, AsHandle<void*>(orphan)) == kSuccess;
    case OrphanKind::kRegisteredMemory:
      return FreeRegistered(environment, is_own, orphan.address, orphan.bytes) == kSuccess;
    case OrphanKind::kHostMemory:
      FreeHostMemory(AsHandle<void*>(orphan));
      if (is_own) environment.CountHostFree();
      return true;
    case OrphanKind::kStream:
      return environment.CountedIf<Call::kStreamDestroy>(is_own, AsHandle<Stream>(orphan)) == kSuccess;
    case OrphanKind::kTensor:
      return true;  // its deleter is called when the orphan ends
    case OrphanKind::kImport:
      return CloseOrphanedImport(environment, orphan.address);
    case OrphanKind::kGraphExec:
      return environment.CountedIf<Call::kGraphExecDestroy>(is_own, AsHandle<GraphExec>(orphan)) == kSuccess;
    case OrphanKind::kGraph:
      return environment.CountedIf<Call::kGraphDestroy>(is_own, AsHandle<Graph>(orphan)) == kSuccess;
  }
  return true;
}

// What is to be freed stays if the devices cannot be waited for, since their work may still use it.
bool WaitToFree(Environment& environment) {
  const Status status = SynchronizeDevices(environment);
  if (status == kCapturing) return false;  // later
  environment.NoteWaitToFree(status);
  return status == kSuccess;
}

// Frees orphans of one device, in order. Leaves those that the driver refuses to free, and all that
// are left if it fails to wait. True if anything was freed.
bool FreeOnDevice(Environment& environment, int device, const std::vector<Orphan>& orphans) {
  const RelaxedContextScope context(environment, device);
  Status status = context.status();
  std::size_t count = 0;
  bool frees_pending = false;
  const auto wait_for_frees = [&] {
    if (frees_pending) status = SynchronizeContext(environment, device, false);
    frees_pending = false;
  };
  for (; status == kSuccess && count < orphans.size(); ++count) {
    const Orphan& orphan = orphans[count];
    // A pool gives its memory back once the frees have run, and the caller may be waiting for that
    // memory.
    if (orphan.kind != OrphanKind::kPoolMemory) wait_for_frees();
    if (status != kSuccess) break;
    frees_pending = orphan.kind == OrphanKind::kPoolMemory;
    if (Free(environment, orphan)) {
      SubtractBytes(AllOrphans(), orphan);
    } else {
      LeaveOrphans(environment, {orphan});
    }
  }
  wait_for_frees();
  if (status != kSuccess) {
    LeaveOrphans(environment, {orphans.begin() + static_cast<std::vector<Orphan>::difference_type>(count), orphans.end()});
    if (status != kCapturing) environment.NoteWaitToFree(status);
  }
  return count > 0;
}

}  // namespace

Status SynchronizeDevices(Environment& environment) {
  for (int device = 0; environment.HasDevice(device); ++device) {
    if (!environment.IsInUse(device)) continue;
    const Status status = SynchronizeContext(environment, device, false);
    if (status != kSuccess) return status;
  }
  return kSuccess;
}

void LeaveOrphans(const Environment& environment, std::vector<Orphan> orphans) {
  if (orphans.empty()) return;
  OrphanList& list = AllOrphans();
  const std::lock_guard<std::mutex> lock(list.mutex);
  std::uint64_t bytes = 0;
  for (Orphan& orphan : orphans) {
    if (orphan.environment != 0) continue;  // it is here again, and is counted already
    orphan.environment = environment.id();
    bytes += orphan.bytes;
  }
  std::uint64_t* const counted = bytes == 0 ? nullptr : &list.bytes_by_environment[environment.id()];
  Append(list, environment.backend, orphans);
  if (counted != nullptr) *counted += bytes;
}

void LeaveOrphans(const DriverTable* backend, const std::vector<Orphan>& orphans) {
  OrphanList& list = AllOrphans();
  const std::lock_guard<std::mutex> lock(list.mutex);
  Append(list, backend, orphans);
}

std::uint64_t BytesLeftBy(std::uint64_t environment) {
  const std::uint64_t superblock_bytes = EndedSuperblockBytes(environment);
  OrphanList& list = AllOrphans();
  const std::lock_guard<std::mutex> lock(list.mutex);
  const auto entry = list.bytes_by_environment.find(environment);
  return superblock_bytes + (entry == list.bytes_by_environment.end() ? 0 : entry->second);
}

bool FreeOrphans(Environment& environment) {
  OrphanList& list = AllOrphans();
  if (!list.any) return false;
  // They end after the lock, since their end may wait for the device.
  std::vector<std::shared_ptr<arenas::ThreadSafeArena>> ending;
  const std::unique_lock<std::mutex> no_stalls = stalls.Exclude();
  if (!no_stalls.owns_lock()) return false;
  std::vector<Orphan> orphans;
  {
    const std::lock_guard<std::mutex> lock(list.mutex);
    orphans.swap(list.by_driver[environment.backend]);
    list.any = std::any_of(list.by_driver.begin(), list.by_driver.end(), [](const auto& entry) { return !entry.second.empty(); });
  }
  for (const Orphan& orphan : orphans) {
    if (orphan.arena != nullptr) ending.push_back(orphan.arena);
  }
  ReleaseUnusedExports(environment);
  // Before the wait, which then covers whatever used memory that has just come home.
  const HandedOverMemory handed_over(environment.backend);
  const auto used = std::stable_partition(orphans.begin(), orphans.end(),
                                          [&](const Orphan& orphan) { return !handed_over.Overlaps(orphan.address, orphan.bytes); });
  LeaveOrphans(environment, {used, orphans.end()});
  orphans.erase(used, orphans.end());
  // A stream that an ended environment left while it was captured: nobody could wait for its device. What
  // is queued on it still runs.
  const auto ended = std::stable_partition(orphans.begin(), orphans.end(), [&](const Orphan& orphan) {
    const bool is_captured = orphan.kind == OrphanKind::kStream && ForgetCapture(environment, AsHandle<Stream>(orphan));
    return !(is_captured && FreeOnDevice(environment, orphan.device, {orphan}));
  });
  orphans.erase(ended, orphans.end());
  if (orphans.empty()) return false;
  if (!WaitToFree(environment)) {
    LeaveOrphans(environment, std::move(orphans));
    return false;
  }

  bool freed = false;
  std::stable_sort(orphans.begin(), orphans.end(),
                   [](const Orphan& a, const Orphan& b) { return a.device != b.device ? a.device < b.device : a.kind < b.kind; });
  for (auto begin = orphans.begin(), end = begin; begin != orphans.end(); begin = end) {
    const int device = begin->device;
    end = std::find_if(begin, orphans.end(), [&](const Orphan& orphan) { return orphan.device != device; });
    freed = FreeOnDevice(environment, device, {begin, end}) || freed;
  }
  return freed;
}

std::uint64_t OrphanedBytes(const Environment& environment) {
  OrphanList& list = AllOrphans();
  const std::lock_guard<std::mutex> lock(list.mutex);
  std::uint64_t bytes = 0;
  for (const Orphan& orphan : list.by_driver[environment.backend]) bytes += orphan.bytes;
  return bytes;
}

void DeliverKeptOrphans(Environment& environment) {
  if (!environment.tells_of_orphans || environment.on_kept_orphans.IsEmpty()) return;
  environment.tells_of_orphans = false;
  environment.CallBack(environment.on_kept_orphans);
}

void AwaitFrees() {
  // Whoever frees orphans holds this lock.
  stalls.Exclude();
}

bool AwaitDevices(Environment& environment) {
  const std::unique_lock<std::mutex> no_stalls = stalls.Exclude();
  return no_stalls.owns_lock() && WaitToFree(environment);
}

}  // namespace cistern
