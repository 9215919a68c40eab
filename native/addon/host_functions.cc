#include "addon/host_functions.h"

#include <utility>

#include "addon/bindings.h"
#include "addon/order.h"
#include "addon/stopped_calls.h"

namespace cistern {
namespace {

// Runs on a thread of the driver.
void WaitForJavaScript(void* data) {
  const std::unique_ptr<QueuedFunction> function(static_cast<QueuedFunction*>(data));
  EventLoop& loop = *function->loop;
  std::unique_lock<std::mutex> lock(loop.mutex);
  if (loop.closed) return;
  loop.ready_host_functions.Append(function.get());
  loop.for_javascript.notify_all();
  loop.PostWake();
  loop.for_streams.wait(lock, [&] { return function->finished || loop.closed; });
  // The lock is destroyed before the function, and with it perhaps the loop.
}

// Runs on a thread of the driver.
void WaitForRelease(void* data) {
  const std::unique_ptr<std::shared_ptr<Hold>> owner(static_cast<std::shared_ptr<Hold>*>(data));
  const Hold& hold = **owner;
  EventLoop& loop = *hold.loop;
  std::unique_lock<std::mutex> lock(loop.mutex);
  loop.for_streams.wait(lock, [&] { return hold.released || loop.closed; });
}

// After an asynchronous error the driver never calls the host functions that are queued: waiting for them would last for ever.
Status DeviceHealth(Environment& environment) {
  const ContextScope context(environment, environment.stalling_device);
  if (context.status() != kSuccess) return context.status();
  const Status status = environment.backend->StreamQuery(LegacyStream());
  return status == kErrorNotReady ? kSuccess : status;
}

// Until a host function is ready, or none ever will be because the process ends.
Status WaitUntilReady(Environment& environment) {
  EventLoop& loop = *environment.loop;
  for (;;) {
    {
      std::unique_lock<std::mutex> lock(loop.mutex);
      const auto ready = [&] { return loop.closed || !loop.ready_host_functions.empty(); };
      if (loop.for_javascript.wait_for(lock, std::chrono::milliseconds{50}, ready)) return kSuccess;
    }
    const Status status = DeviceHealth(environment);
    if (status != kSuccess) return status;
  }
}

void Run(Environment& environment, napi_env env, QueuedFunction* function, napi_ref reference, const order::Position& position) {
  NoteHostReached(environment, position);
  napi_handle_scope scope = nullptr;
  napi_open_handle_scope(env, &scope);
  napi_value callback = nullptr;
  napi_value receiver = nullptr;
  napi_value error = nullptr;
  napi_get_reference_value(env, reference, &callback);
  napi_get_undefined(env, &receiver);

  environment.running_host_functions += 1;
  if (napi_call_function(env, receiver, callback, 0, nullptr, nullptr) != napi_ok) {
    bool pending = false;
    napi_is_exception_pending(env, &pending);
    if (pending) napi_get_and_clear_last_exception(env, &error);
  }
  environment.running_host_functions -= 1;
  environment.outstanding_host_functions -= 1;
  stalls.End();
  napi_delete_reference(env, reference);
  {
    EventLoop& loop = *environment.loop;
    const std::lock_guard<std::mutex> lock(loop.mutex);
    if (!loop.closed) function->finished = true;  // else the driver's thread was let go, and deletes it
    loop.for_streams.notify_all();
  }
  environment.LetGo();
  // Last, since a handler of uncaught exceptions may end the process.
  if (error != nullptr) napi_fatal_exception(env, error);
  if (scope != nullptr) napi_close_handle_scope(env, scope);
}

}  // namespace

int RunReadyHostFunctions(Environment& environment, napi_env env) {
  EventLoop& loop = *environment.loop;
  int limit;
  {
    const std::lock_guard<std::mutex> lock(loop.mutex);
    limit = loop.ready_host_functions.Count();
  }
  int ran = 0;
  // One that becomes ready meanwhile has its turn later: functions that queue the next one each time must not starve the event loop.
  for (; ran < limit; ++ran) {
    QueuedFunction* function;
    napi_ref callback = nullptr;
    order::Position position;
    {
      const std::lock_guard<std::mutex> lock(loop.mutex);
      function = loop.ready_host_functions.TakeFirst();
      if (function != nullptr) {
        callback = function->callback;
        position = std::move(function->position);
      }
    }
    if (function == nullptr) break;
    Run(environment, env, function, callback, position);
  }
  return ran;
}

Status BeforeWaitingForDevice(Environment& environment) {
  if (environment.outstanding_host_functions == 0) return kSuccess;
  if (environment.running_host_functions > 0) return kErrorNotPermitted;
  const Status status = WaitUntilReady(environment);
  if (status != kSuccess) return status;
  return HostFunctionIsReady(*environment.loop) ? kHostFunctionReady : kSuccess;
}

Status LaunchHostFunction(Environment& environment, Arguments& arguments) {
  double handle;
  napi_valuetype type;
  if (!arguments.Number(0, &handle)) return kInvalidArgument;
  if (napi_typeof(arguments.env(), arguments[1], &type) != napi_ok || type != napi_function) return kInvalidArgument;
  StreamEntry* stream;
  Status status = environment.streams.Find(handle, &stream);
  if (status != kSuccess) return status;
  const ContextScope context(environment, stream->device);
  if (context.status() != kSuccess) return context.status();

  auto function = std::make_unique<QueuedFunction>();
  function->loop = environment.loop;
  if (napi_create_reference(arguments.env(), arguments[1], 1, &function->callback) != napi_ok) return kInvalidArgument;
  const napi_ref callback = function->callback;
  function->position = PositionBeforeNext(environment, stream->stream);
  stalls.Begin();
  status = environment.Counted<Call::kLaunchHostFunc>(stream->stream, WaitForJavaScript, static_cast<void*>(function.get()));
  if (status != kSuccess) {
    stalls.End();
    napi_delete_reference(arguments.env(), callback);
    return status;
  }
  function.release();
  environment.outstanding_host_functions += 1;
  environment.stalling_device = stream->device;
  environment.KeepAlive();
  return kSuccess;
}

Status RunHostFunctions(Environment& environment, Arguments& arguments) {
  const StoppedCall stopped = SetStoppedCallAside(environment);
  const int ran = RunReadyHostFunctions(environment, arguments.env());
  ResumeStoppedCall(environment, stopped);
  environment.Out(1, ran);
  return kSuccess;
}

Status WaitForHostFunction(Environment& environment, Arguments&) {
  if (environment.outstanding_host_functions == environment.running_host_functions) return kSuccess;
  // Called by a host function, this would wait for ones that may be queued behind that very function.
  if (environment.running_host_functions > 0) return HostFunctionIsReady(*environment.loop) ? kSuccess : kErrorNotPermitted;
  return WaitUntilReady(environment);
}

Status ReleaseAllStalls(Environment&, Arguments&) {
  CloseEventLoops();
  return kSuccess;
}

Status OutstandingHostFunctions(Environment& environment) {
  environment.Out(1, environment.outstanding_host_functions);
  return kSuccess;
}

Status HoldStream(Environment& environment, Arguments& arguments) {
  StreamEntry* stream;
  Status status = FindStream(environment, arguments, 0, &stream);
  if (status != kSuccess) return status;
  const ContextScope context(environment, stream->device);
  if (context.status() != kSuccess) return context.status();

  const auto hold = std::make_shared<Hold>();
  hold->loop = environment.loop;
  auto owner = std::make_unique<std::shared_ptr<Hold>>(hold);
  const std::uint64_t hold_handle = environment.holds.Add(hold);
  if (hold_handle == 0) return kHostOutOfMemory;
  stalls.Begin();
  status = environment.Counted<Call::kLaunchHostFunc>(stream->stream, WaitForRelease, static_cast<void*>(owner.get()));
  if (status != kSuccess) {
    stalls.End();
    environment.holds.Remove(hold_handle);
    return status;
  }
  owner.release();
  environment.unreleased_holds += 1;
  environment.Out(1, static_cast<double>(hold_handle));
  return kSuccess;
}

Status ReleaseHold(Environment& environment, Arguments& arguments) {
  double handle;
  if (!arguments.Number(0, &handle)) return kInvalidArgument;
  std::shared_ptr<Hold>* hold;
  const Status status = environment.holds.Find(handle, &hold);
  if (status != kSuccess) return status;
  {
    EventLoop& loop = *environment.loop;
    const std::lock_guard<std::mutex> lock(loop.mutex);
    (*hold)->released = true;
    loop.for_streams.notify_all();
  }
  environment.holds.Remove(static_cast<std::uint64_t>(handle));
  environment.unreleased_holds -= 1;
  stalls.End();
  return kSuccess;
}

}  // namespace cistern
