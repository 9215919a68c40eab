// Processes that give their devices away and take them again: this one, and others.
#include "addon/process_sleep.h"

#include <mutex>

#include "addon/bindings.h"
#include "addon/order.h"
#include "cuda/asleep_table.h"
#include "platform/thread.h"

namespace cistern {
namespace {

enum class Step { kGetState, kLock, kCheckpoint, kRestore, kUnlock, kCount };

void Make(ProcessStep& step) {
  const DriverTable& driver = *step.driver;
  ProcessLockArguments lock = {step.timeout_milliseconds, 0, {}};
  ProcessStepArguments none = {};
  switch (static_cast<Step>(step.step)) {
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
  if (static_cast<Step>(step.step) == Step::kGetState) step.status = known;
}

void* Run(void* data) {
  auto* step = static_cast<ProcessStep*>(data);
  const std::shared_ptr<EventLoop> loop = step->loop;
  Make(*step);
  const std::lock_guard<std::mutex> lock(loop->mutex);
  if (loop->closed) {
    delete step;
  } else {
    loop->finished_steps.Append(step);
    loop->PostWake();
  }
  return nullptr;
}

void Tell(napi_env env, const ProcessStep& step) {
  napi_value pair;
  napi_value number;
  if (napi_create_array_with_length(env, 2, &pair) != napi_ok) return;
  if (napi_create_int32(env, step.status, &number) == napi_ok) napi_set_element(env, pair, 0, number);
  if (napi_create_int32(env, step.state, &number) == napi_ok) napi_set_element(env, pair, 1, number);
  napi_resolve_deferred(env, step.deferred, pair);
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
  auto made = std::make_unique<ProcessStep>();
  made->loop = environment.loop;
  made->driver = environment.backend;
  made->step = step;
  made->process = process;
  made->timeout_milliseconds = static_cast<unsigned>(timeout_milliseconds);
  napi_value promise;
  if (napi_create_promise(env, &made->deferred, &promise) != napi_ok) return kHostOutOfMemory;
  *result = Napi::Value(env, promise);
  if (!StartThread(Run, made.get(), "cistern-step")) return kHostOutOfMemory;
  made.release();
  return kSuccess;
}

void DeliverProcessSteps(Environment& environment) {
  IntrusiveList<ProcessStep> finished;
  {
    const std::lock_guard<std::mutex> lock(environment.loop->mutex);
    finished = environment.loop->finished_steps.TakeAll();
  }
  while (ProcessStep* next = finished.TakeFirst()) {
    const Napi::HandleScope scope(environment.env);
    const std::unique_ptr<ProcessStep> step(next);
    Tell(environment.env, *step);
  }
}

void ForgetProcessSteps(Environment& environment) {
  while (ProcessStep* step = environment.loop->finished_steps.TakeFirst()) delete step;
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
