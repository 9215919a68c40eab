// JavaScript functions in a stream's order, and what a blocking call has to do about them.
//
// The stream stands still while its host function waits for the JavaScript thread. So that thread must not block in the driver while a host
// function is outstanding: it polls instead, and hands control back (kHostFunctionReady) once one is ready to run.
#ifndef CISTERN_ADDON_HOST_FUNCTIONS_H_
#define CISTERN_ADDON_HOST_FUNCTIONS_H_

#include <node_api.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <mutex>

#include "addon/environment.h"
#include "order/order_checker.h"

namespace cistern {

// Owned by the driver from its launch to the end of its turn; JavaScript borrows it in between.
struct QueuedFunction {
  QueuedFunction* next = nullptr;
  std::shared_ptr<EventLoop> loop;
  napi_ref callback = nullptr;
  order::Position position;  // what comes before it, for the order checker
  bool finished = false;     // guarded by the loop's mutex
};

struct Hold {
  std::shared_ptr<EventLoop> loop;
  bool released = false;  // guarded by the loop's mutex
};

// Runs the host functions that are ready when it begins, and returns how many it ran.
int RunReadyHostFunctions(Environment& environment, napi_env env);

// Before a driver call that waits for all of a device: kSuccess where nothing can stall, else the status to hand back.
Status BeforeWaitingForDevice(Environment& environment);

inline bool HostFunctionIsReady(EventLoop& loop) {
  const std::lock_guard<std::mutex> lock(loop.mutex);
  return !loop.ready_host_functions.empty();
}

// Before a driver call that waits for what `query` asks about: kSuccess where it has happened or nothing can stall.
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
