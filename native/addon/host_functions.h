// JavaScript functions in a stream's order, and what a blocking call has to do about them.
//
//     stream:  ... work | say that its turn has come | gate | work ...
//     JavaScript thread:                  run the function, open the gate
//
// The driver's callback says only that a function's turn has come; what the stream stands still at is a gate (gates.h). As long as a
// function is outstanding, the JavaScript thread must not wait for a stream inside the driver: it polls instead, and hands control back
// (kHostFunctionReady) once a function is ready to run. docs/design/015-host-functions-and-holds.md has the whole of it.
#ifndef CISTERN_ADDON_HOST_FUNCTIONS_H_
#define CISTERN_ADDON_HOST_FUNCTIONS_H_

#include <napi.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>

#include "addon/environment.h"
#include "order/order_checker.h"

namespace cistern {

// Held by the driver until it has called back, which after an error of the device it never does, and by its environment.
struct QueuedFunction {
  std::atomic<int> owners{2};
  QueuedFunction* next = nullptr;
  std::shared_ptr<EventLoop> loop;
  std::shared_ptr<Gate> gate;
  std::uint64_t number = 0;  // of those that the environment has launched
  Context context = nullptr;
  Napi::FunctionReference callback;  // empty once the environment has given up its part: the driver's thread may delete this
  order::Position position;          // what comes before it, for the order checker
  // Guarded by the loop's mutex.
  bool is_called = false;    // its turn has come, or never will
  Status status = kSuccess;  // why it never will
};

// Runs the host functions that are ready when it begins, and returns how many it ran.
int RunReadyHostFunctions(Environment& environment);

// Makes those ready that will never have their turn, because their device is in error. On the thread that looks after completions; the
// lock, which is the loop's, is released meanwhile.
void FailLostHostFunctions(EventLoop& loop, const DriverTable& driver, Context* current, std::unique_lock<std::mutex>& lock);

// The environment ends: gives up its part of all that are left.
void ForgetHostFunctions(EventLoop& loop);

// Before a driver call that waits for all of a device: kSuccess if nothing of this environment can stall, else the status to hand back.
Status BeforeWaitingForDevice(Environment& environment);

// Before a driver call that allocates plain memory, which may wait for the device: the same, for the host functions that are outstanding as
// it begins and for some generations of those that they queue. If streams are held the call is made all the same, since the host functions
// may be behind a hold.
Status BeforeAllocating(Environment& environment);

inline bool HostFunctionIsReady(EventLoop& loop) {
  const std::lock_guard<std::mutex> lock(loop.mutex);
  return !loop.ready_host_functions.empty();
}

// Before a driver call that waits for what `query` asks about: kSuccess if it has happened or nothing can stall.
template <typename Query>
Status BeforeWaitingFor(Environment& environment, Query&& query) {
  if (environment.outstanding_host_functions == 0) return kSuccess;
  EventLoop& loop = *environment.loop;
  std::chrono::microseconds delay{10};
  for (;;) {
    const Status status = query();
    if (status != kErrorNotReady) return status;
    // As in the driver, whose host functions must not call it: the function that runs might be what this call waits for.
    if (environment.running_host_functions > 0) return kErrorNotPermitted;
    std::unique_lock<std::mutex> lock(loop.mutex);
    loop.for_javascript.wait_for(lock, delay, [&] { return loop.closed || !loop.ready_host_functions.empty(); });
    if (loop.closed) return kSuccess;  // the process ends, and every stream was let go
    if (!loop.ready_host_functions.empty()) return kHostFunctionReady;
    delay = std::min(2 * delay, std::chrono::microseconds{1000});
  }
}

}  // namespace cistern

#endif  // CISTERN_ADDON_HOST_FUNCTIONS_H_
