// Processes that give their devices away and take them again: this one, and others.
#include <napi.h>

#include <memory>

#include "addon/bindings.h"
#include "addon/order.h"
#include "cuda/asleep_table.h"
#include "platform/thread.h"

namespace cistern {
namespace {

enum class Step { kGetState, kLock, kCheckpoint, kRestore, kUnlock, kCount };

constexpr int kUnknownState = -1;

// One step, on a thread of its own: a lock waits for the work of the process, and any of them may wait for another process that a
// driver has locked. The thread belongs to nobody, so that a process can end while it waits.
struct StepInProgress {
  const DriverTable* driver;
  Step step;
  int process;
  unsigned timeout_milliseconds;
  napi_deferred deferred = nullptr;
  napi_threadsafe_function tell = nullptr;
  Status status = kSuccess;
  int state = kUnknownState;  // after it
};

void Make(StepInProgress& step) {
  const DriverTable& driver = *step.driver;
  ProcessLockArguments lock = {step.timeout_milliseconds, 0, {}};
  ProcessStepArguments none = {};
  switch (step.step) {
    case Step::kLock:
      step.status = driver.CheckpointProcessLock(step.process, &lock);
      break;
    case Step::kCheckpoint:
      step.status = driver.CheckpointProcessCheckpoint(step.process, &none);
      break;
    case Step::kRestore:
      step.status = driver.CheckpointProcessRestore(step.process, &none);
      break;
    case Step::kUnlock:
      step.status = driver.CheckpointProcessUnlock(step.process, &none);
      break;
    default:
      break;
  }
  int state = kUnknownState;
  const Status known = driver.CheckpointProcessGetState(step.process, &state);
  if (known == kSuccess) step.state = state;
  if (step.step == Step::kGetState) step.status = known;
}

void* Run(void* data) {
  auto* step = static_cast<StepInProgress*>(data);
  const napi_threadsafe_function tell = step->tell;
  Make(*step);
  // If the environment has ended, nobody is told.
  if (napi_call_threadsafe_function(tell, step, napi_tsfn_blocking) == napi_closing) {
    delete step;
    return nullptr;
  }
  napi_release_threadsafe_function(tell, napi_tsfn_release);
  return nullptr;
}

void Tell(napi_env env, napi_value, void*, void* data) {
  const std::unique_ptr<StepInProgress> step(static_cast<StepInProgress*>(data));
  if (env == nullptr) return;
  const Napi::HandleScope scope(env);
  napi_value pair;
  napi_value number;
  if (napi_create_array_with_length(env, 2, &pair) != napi_ok) return;
  if (napi_create_int32(env, step->status, &number) == napi_ok) napi_set_element(env, pair, 0, number);
  if (napi_create_int32(env, step->state, &number) == napi_ok) napi_set_element(env, pair, 1, number);
  napi_resolve_deferred(env, step->deferred, pair);
}

}  // namespace

Status StepProcess(Environment& environment, const Napi::CallbackInfo& info, Napi::Value* result) {
  int step, process;
  std::uint64_t timeout_milliseconds;
  if (!ReadInt(info[0], &step) || step < 0 || step >= static_cast<int>(Step::kCount)) return kInvalidArgument;
  if (!ReadInt(info[1], &process) || process <= 0) return kInvalidArgument;
  if (!ReadInteger(info[2], &timeout_milliseconds) || timeout_milliseconds > 0xffffffff) return kInvalidArgument;
  if (environment.backend == nullptr) return kNoBackend;
  const napi_env env = info.Env();
  auto made = std::make_unique<StepInProgress>();
  *made = {environment.backend, static_cast<Step>(step), process, static_cast<unsigned>(timeout_milliseconds)};
  napi_value promise;
  const Napi::String name = Napi::String::New(env, "cistern");
  if (napi_create_threadsafe_function(env, nullptr, nullptr, name, 0, 1, nullptr, nullptr, nullptr, Tell, &made->tell) != napi_ok)
    return kHostOutOfMemory;
  const napi_threadsafe_function tell = made->tell;
  if (napi_create_promise(env, &made->deferred, &promise) != napi_ok) {
    napi_release_threadsafe_function(tell, napi_tsfn_abort);
    return kHostOutOfMemory;
  }
  napi_unref_threadsafe_function(env, tell);
  StepInProgress* given = made.release();
  if (!StartThread(Run, given, "cistern-step")) {
    delete given;
    napi_release_threadsafe_function(tell, napi_tsfn_abort);
    return kHostOutOfMemory;
  }
  *result = Napi::Value(env, promise);
  return kSuccess;
}

Status BeginProcessSleep(Environment& environment, const Napi::CallbackInfo&) {
  if (environment.backend == nullptr) return kNoBackend;
  if (!BeginSleep(environment.backend, environment.driver)) return kInUse;
  ExchangeTables();
  return kSuccess;
}

Status NoteProcessAsleep(Environment&, const Napi::CallbackInfo&) {
  FallAsleep();
  return kSuccess;
}

Status EndProcessSleep(Environment& environment, const Napi::CallbackInfo&) {
  if (environment.backend == nullptr || !IsAsleep(environment.backend)) return kSuccess;
  EndSleep();
  ExchangeTables();
  return kSuccess;
}

}  // namespace cistern
