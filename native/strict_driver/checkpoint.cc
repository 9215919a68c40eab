#include "strict_driver/checkpoint.h"

#include <unistd.h>

#include <atomic>
#include <chrono>

#include "platform/process_channel.h"
#include "strict_driver/call.h"
#include "strict_driver/calls.h"
#include "strict_driver/settings.h"
#include "strict_driver/stream.h"
#include "strict_driver/virtual_memory.h"

namespace cistern::strict {
namespace {

constexpr char kChannelName[] = "cistern-strict-driver";

enum class Asked { kGetState, kLock, kCheckpoint, kRestore, kUnlock };

// big_lock guards these.
int state = kProcessRunning;
bool is_shut = false;

std::atomic<int> calls_inside{0};

bool IsIdle() {
  if (calls_inside != 0 || driver.running_callbacks != 0) return false;
  for (const ContextState* context : driver.contexts) {
    for (const StreamRef& stream : context->streams) {
      if (!stream->IsIdle()) return false;
    }
  }
  return true;
}

Status LockProcess(Lock& lock, std::uint32_t timeout_milliseconds) {
  if (state != kProcessRunning || is_shut) return kErrorIllegalState;
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds{timeout_milliseconds};
  is_shut = true;
  while (!IsIdle()) {
    if (timeout_milliseconds != 0 && std::chrono::steady_clock::now() >= end) {
      is_shut = false;
      changed.notify_all();
      return kErrorNotReady;
    }
    changed.wait_for(lock, std::chrono::milliseconds{1});
  }
  state = kProcessLocked;
  return kSuccess;
}

// A reason to refuse a checkpoint.
bool HasForbiddenMemory() {
  if (HasSharedMappings()) return true;
  for (const auto& [start, allocation] : driver.allocations) {
    if (allocation->slot != 0 || allocation->kind == Kind::kImported) return true;
    if (allocation->kind == Kind::kManaged && !settings().checkpoints_managed_memory) return true;
  }
  return false;
}

Status Checkpoint() {
  if (state != kProcessLocked) return kErrorIllegalState;
  if (HasForbiddenMemory()) {
    if (settings().refused_checkpoints_are_final) state = kProcessFailed;
    return kErrorNotSupported;
  }
  for (DeviceMemory& memory : driver.memory) memory.MoveOut();
  state = kProcessCheckpointed;
  return kSuccess;
}

Status Restore() {
  if (state != kProcessCheckpointed) return kErrorIllegalState;
  for (DeviceMemory& memory : driver.memory) memory.MoveIn();
  state = kProcessLocked;
  return kSuccess;
}

Status Unlock() {
  if (state != kProcessLocked) return kErrorIllegalState;
  state = kProcessRunning;
  is_shut = false;
  changed.notify_all();
  return kSuccess;
}

ProcessAnswer AnswerUnder(Lock& lock, const ProcessRequest& request) {
  switch (static_cast<Asked>(request.operation)) {
    case Asked::kGetState:
      return {kSuccess, state};
    case Asked::kLock:
      return {LockProcess(lock, request.argument), 0};
    case Asked::kCheckpoint:
      return {Checkpoint(), 0};
    case Asked::kRestore:
      return {Restore(), 0};
    case Asked::kUnlock:
      return {Unlock(), 0};
  }
  return {kErrorInvalidValue, 0};
}

ProcessAnswer Answer(const ProcessRequest& request) {
  Lock lock(big_lock);
  return AnswerUnder(lock, request);
}

Status Request(Lock& lock, int process, Asked operation, std::uint32_t argument = 0, int* value = nullptr) {
  const ProcessRequest request = {static_cast<std::int32_t>(operation), argument};
  ProcessAnswer answer;
  if (process == getpid()) {
    if (!driver.is_initialized) return kErrorNotInitialized;
    answer = AnswerUnder(lock, request);
  } else {
    lock.unlock();
    const bool is_answered = Ask(kChannelName, process, request, &answer);
    lock.lock();
    if (!is_answered) return kErrorNotInitialized;
  }
  if (value != nullptr) *value = answer.value;
  return answer.status;
}

template <typename Arguments>
bool AreZeros(const Arguments* arguments) {
  if (arguments == nullptr) return true;
  for (const std::uint64_t word : arguments->reserved) {
    if (word != 0) return false;
  }
  return true;
}

}  // namespace

void ServeCheckpoints() {
  const int channel = OpenChannel(kChannelName);
  if (channel >= 0) StartThread([channel] { ServeChannel(channel, Answer); });
}

void EnterUnlocked(Lock& lock) {
  changed.wait(lock, [] { return !is_shut; });
  calls_inside += 1;
}

void Leave() { calls_inside -= 1; }

namespace calls {

Status CheckpointProcessGetState(int process, int* value) {
  STRICT_DRIVER_ENTER("cuCheckpointProcessGetState", kNothing);
  return value != nullptr ? Request(call.lock, process, Asked::kGetState, 0, value) : Status{kErrorInvalidValue};
}

Status CheckpointProcessLock(int process, ProcessLockArguments* arguments) {
  STRICT_DRIVER_ENTER("cuCheckpointProcessLock", kNothing);
  if (arguments != nullptr && arguments->reserved != 0) return kErrorInvalidValue;
  return Request(call.lock, process, Asked::kLock, arguments != nullptr ? arguments->timeout_milliseconds : 0);
}

Status CheckpointProcessCheckpoint(int process, ProcessStepArguments* arguments) {
  STRICT_DRIVER_ENTER("cuCheckpointProcessCheckpoint", kNothing);
  return AreZeros(arguments) ? Request(call.lock, process, Asked::kCheckpoint) : Status{kErrorInvalidValue};
}

// "requires persistence mode to be enabled or cuInit to have been called".
Status CheckpointProcessRestore(int process, ProcessStepArguments* arguments) {
  STRICT_DRIVER_ENTER("cuCheckpointProcessRestore", kNothing);
  if (!driver.is_initialized) return kErrorNotInitialized;
  return AreZeros(arguments) ? Request(call.lock, process, Asked::kRestore) : Status{kErrorInvalidValue};
}

Status CheckpointProcessUnlock(int process, ProcessStepArguments* arguments) {
  STRICT_DRIVER_ENTER("cuCheckpointProcessUnlock", kNothing);
  return AreZeros(arguments) ? Request(call.lock, process, Asked::kUnlock) : Status{kErrorInvalidValue};
}

}  // namespace calls
}  // namespace cistern::strict
