#include "software/checkpoint.h"

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <vector>

#include "platform/lasting.h"
#include "platform/memory_file.h"
#include "platform/process_channel.h"
#include "platform/system.h"
#include "platform/thread.h"
#include "software/calls.h"
#include "software/injection.h"
#include "software/ipc.h"
#include "software/virtual_memory.h"

namespace cistern::software {
namespace {

constexpr char kChannelName[] = "cistern-software-device";

enum class Operation { kGetState, kLock, kCheckpoint, kRestore, kUnlock };

struct Process {
  std::mutex mutex;  // guards all below, and is held while contents move
  std::condition_variable has_unlocked;
  int state = kProcessRunning;
  std::atomic<bool> is_shut{false};

  std::mutex places_mutex;
  std::vector<CallPlace*> places;
};

Process& ThisProcess() {
  static Lasting<Process> process;
  return *process;
}

// The thread ends.
struct PlaceOfThread {
  CallPlace* place = nullptr;
  ~PlaceOfThread() {
    thread_state.place = nullptr;
    if (place != nullptr) place->is_taken.store(false, std::memory_order_release);
  }
};

bool IsAnyoneInside() {
  Process& process = ThisProcess();
  const std::lock_guard<std::mutex> guard(process.places_mutex);
  for (const CallPlace* place : process.places) {
    if (place->is_inside.load(std::memory_order_acquire)) return true;
  }
  return false;
}

bool AreDevicesIdle() {
  for (int i = 0; const Device* device = FindDevice(i); ++i) {
    if (!device->IsIdle()) return false;
  }
  return true;
}

// The mutex must be held.
void Open(Process& process) {
  process.is_shut.store(false, std::memory_order_relaxed);
  injection_count.fetch_sub(1, std::memory_order_relaxed);
  process.has_unlocked.notify_all();
}

Status Lock(std::uint32_t timeout_milliseconds) {
  constexpr std::chrono::microseconds kPause{100};
  Process& process = ThisProcess();
  std::unique_lock<std::mutex> lock(process.mutex);
  if (process.state != kProcessRunning || process.is_shut) return kErrorIllegalState;
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(timeout_milliseconds);
  process.is_shut.store(true, std::memory_order_relaxed);
  injection_count.fetch_add(1, std::memory_order_relaxed);
  FenceOtherThreads();
  while (IsAnyoneInside() || !AreDevicesIdle()) {
    if (timeout_milliseconds != 0 && std::chrono::steady_clock::now() >= end) {
      Open(process);
      return kErrorNotReady;
    }
    process.has_unlocked.wait_for(lock, kPause);
  }
  process.state = kProcessLocked;
  return kSuccess;
}

bool HasSharedMemory() {
  if (imported_range_count.load() > 0 || IsVirtualMemoryShared()) return true;
  for (int i = 0; Device* device = FindDevice(i); ++i) {
    if (device->memory.shared_pages().Any()) return true;
  }
  return false;
}

bool MoveIn() {
  bool is_whole = RestoreVirtualMemory();
  for (int i = 0; Device* device = FindDevice(i); ++i) is_whole = device->memory.MoveIn() && is_whole;
  return is_whole;
}

bool MoveOut() {
  for (int i = 0; Device* device = FindDevice(i); ++i) {
    if (!device->memory.MoveOut()) return false;
  }
  return KeepVirtualMemory();
}

Status Checkpoint() {
  Process& process = ThisProcess();
  const std::lock_guard<std::mutex> guard(process.mutex);
  if (process.state != kProcessLocked) return kErrorIllegalState;
  if (HasSharedMemory()) return kErrorNotSupported;
  if (!MoveOut()) {
    MoveIn();
    return kErrorOutOfMemory;
  }
  process.state = kProcessCheckpointed;
  return kSuccess;
}

Status Restore() {
  Process& process = ThisProcess();
  const std::lock_guard<std::mutex> guard(process.mutex);
  if (process.state != kProcessCheckpointed) return kErrorIllegalState;
  process.state = MoveIn() ? kProcessLocked : kProcessFailed;
  return process.state == kProcessLocked ? kSuccess : kErrorUnknown;
}

Status Unlock() {
  Process& process = ThisProcess();
  const std::lock_guard<std::mutex> guard(process.mutex);
  if (process.state != kProcessLocked) return kErrorIllegalState;
  process.state = kProcessRunning;
  Open(process);
  return kSuccess;
}

int State() {
  Process& process = ThisProcess();
  const std::lock_guard<std::mutex> guard(process.mutex);
  return process.state;
}

ProcessAnswer Answer(const ProcessRequest& request) {
  switch (static_cast<Operation>(request.operation)) {
    case Operation::kGetState:
      return {kSuccess, State()};
    case Operation::kLock:
      return {Lock(request.argument), 0};
    case Operation::kCheckpoint:
      return {Checkpoint(), 0};
    case Operation::kRestore:
      return {Restore(), 0};
    case Operation::kUnlock:
      return {Unlock(), 0};
  }
  return {kErrorInvalidValue, 0};
}

Status Request(int process, Operation operation, std::uint32_t argument = 0, int* value = nullptr) {
  if (!kHasMemoryFiles) return kErrorNotSupported;
  const ProcessRequest request = {static_cast<std::int32_t>(operation), argument};
  ProcessAnswer answer;
  if (process == CurrentProcessId()) {
    if (!IsInitialized()) return kErrorNotInitialized;
    answer = Answer(request);
  } else if (!Ask(kChannelName, process, request, &answer)) {
    return kErrorNotInitialized;
  }
  if (value != nullptr) *value = answer.value;
  return answer.status;
}

void* Serve(void* channel) {
  ServeChannel(static_cast<int>(reinterpret_cast<std::intptr_t>(channel)), Answer);
  return nullptr;
}

}  // namespace

void ServeCheckpoints() {
  const int channel = OpenChannel(kChannelName);
  if (channel >= 0) StartThread(Serve, reinterpret_cast<void*>(std::intptr_t{channel}), "cistern-asked");
}

CallPlace* MakePlaceOfCalls() {
  static thread_local PlaceOfThread own;
  Process& process = ThisProcess();
  const std::lock_guard<std::mutex> guard(process.places_mutex);
  CallPlace* found = nullptr;
  for (CallPlace* place : process.places) {
    if (place->is_taken.load(std::memory_order_acquire)) continue;
    found = place;
    break;
  }
  if (found == nullptr) process.places.push_back(found = new CallPlace);
  found->is_taken.store(true, std::memory_order_relaxed);
  own.place = found;
  thread_state.place = found;
  return found;
}

void AwaitUnlock(CallPlace& place) {
  Process& process = ThisProcess();
  if (!process.is_shut.load(std::memory_order_relaxed)) return;
  std::unique_lock<std::mutex> lock(process.mutex, std::defer_lock);
  place.is_inside.store(false, std::memory_order_release);
  lock.lock();
  process.has_unlocked.wait(lock, [&] { return !process.is_shut.load(std::memory_order_relaxed); });
  place.is_inside.store(true, std::memory_order_relaxed);
}

namespace calls {

Status CheckpointProcessGetState(int process, int* state) {
  return state != nullptr ? Request(process, Operation::kGetState, 0, state) : Status{kErrorInvalidValue};
}

Status CheckpointProcessLock(int process, ProcessLockArguments* arguments) {
  return Request(process, Operation::kLock, arguments != nullptr ? arguments->timeout_milliseconds : 0);
}

Status CheckpointProcessCheckpoint(int process, ProcessStepArguments*) { return Request(process, Operation::kCheckpoint); }
Status CheckpointProcessRestore(int process, ProcessStepArguments*) { return Request(process, Operation::kRestore); }
Status CheckpointProcessUnlock(int process, ProcessStepArguments*) { return Request(process, Operation::kUnlock); }

}  // namespace calls
}  // namespace cistern::software
