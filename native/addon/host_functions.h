// JavaScript functions in stream order, and how blocking calls deal with them.
//
//     stream:  ... work | say that its turn has come | gate | work ...
//     JavaScript thread:                  run the function, open the gate
//
// The driver's callback only announces that a function's turn has come; a gate (gates.h) holds the
// stream. A function in a graph is announced at each launch, and the driver's callback waits until
// JavaScript has run it. The launch itself counts as one function, which ends with the last turn of those
// that it runs; it is no work of the driver, so nothing can fail after a graph was launched.
//
// While a function is outstanding, the JavaScript thread must not wait for a stream inside the driver.
// It polls instead, and hands control back (kHostFunctionReady) once a function is ready to run. See
// docs/design/015-host-functions-and-holds.md.
#ifndef CISTERN_ADDON_HOST_FUNCTIONS_H_
#define CISTERN_ADDON_HOST_FUNCTIONS_H_

#include <napi.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <list>
#include <memory>
#include <mutex>

#include "addon/environment.h"
#include "addon/user_objects.h"
#include "order/order_checker.h"

namespace cistern {

// A function in a graph, which the graph and the environment hold.
struct HostNode final : GraphPart {
  // That it will have because of a launch. Which of two executable graphs has it first, nobody can tell.
  struct Turn {
    QueuedFunction* launch;
    GraphExec exec;
    order::Position position;
  };

  explicit HostNode(const Environment& environment) : GraphPart(environment) {}
  ~HostNode() override;
  void End(Environment& environment) override;
  void EndAlone() override;

  std::atomic<int> owners{2};
  Napi::FunctionReference callback;  // empty once the environment has let go of it
  std::list<Turn> turns;             // in the order of the launches
};

// Shared by its environment and the driver, which holds it until it has called back; that of a launch, by
// its environment and the turns. After an error of the device, they never come.
struct QueuedFunction {
  std::atomic<int> owners{2};
  QueuedFunction* next = nullptr;
  std::shared_ptr<EventLoop> loop;
  std::shared_ptr<Gate> gate;  // null: the stream does not wait
  HostNode* node = nullptr;    // whose turn it is; such a function is not outstanding
  std::size_t turns = 0;       // of a launch: that have not come yet
  std::uint64_t number = 0;    // its position among the functions that the environment has launched
  Context context = nullptr;
  Event witness = nullptr;           // of the context, never recorded: a query of it fails if the device is in error
  Napi::FunctionReference callback;  // empty once the environment has let go of it: the driver's thread may delete this object
  order::Position position;          // what comes before it, for the order checker
  // Guarded by the loop's mutex.
  bool is_called = false;    // its turn has come, or never will
  Status status = kSuccess;  // why it never will
  bool has_run = false;      // if it is of a node
};

// Runs the host functions that are ready when it begins, and returns how many it ran.
int RunReadyHostFunctions(Environment& environment);

// Whether a call of JavaScript would run: false while a worker is being terminated, or while a
// time-out of node:vm cuts off the running code.
bool MayRunJavaScript(Napi::Env env);

// Makes those functions ready that will never get their turn, because their device is in error.
// Called on the completion thread; the lock, which is the loop's, is released meanwhile.
void FailLostHostFunctions(EventLoop& loop, const DriverTable& driver, Context* current, std::unique_lock<std::mutex>& lock);

// Makes a launch of a graph with functions, and calls back if some of them will never run. The stream's
// context must be current.
Status LaunchHostFunctions(Environment& environment, const GraphExecEntry& exec, const StreamEntry& stream, const Napi::Value& callback);

// The event loop ends, and will run no more functions whose turn has come. The loop's mutex must be held.
void ForgetTurn(QueuedFunction* function);

// The environment ends: lets go of all remaining functions.
void ForgetHostFunctions(Environment& environment);

// Before a driver call that waits for the whole device: kSuccess if nothing of this environment can
// stall, otherwise the status to return.
Status BeforeWaitingForDevice(Environment& environment);

// Before a driver call that allocates plain memory, which may wait for the device: the same, for
// the host functions that are outstanding as it begins and for some generations of those that they
// queue. If streams are held, the call is made nevertheless, since the host functions may be behind
// a hold.
Status BeforeAllocating(Environment& environment);

inline bool HostFunctionIsReady(EventLoop& loop) {
  const std::lock_guard<std::mutex> lock(loop.mutex);
  return !loop.ready_host_functions.empty();
}

// Before a driver call that waits for whatever `query` asks about: kSuccess if it has happened or
// nothing can stall.
template <typename Query>
Status BeforeWaitingFor(Environment& environment, Query&& query) {
  if (environment.outstanding_host_functions == 0) return kSuccess;
  EventLoop& loop = *environment.loop;
  std::chrono::microseconds delay{10};
  for (;;) {
    const Status status = query();
    if (status != kErrorNotReady) return status;
    // As in the driver, whose host functions must not call it: the running function might be what
    // this call waits for.
    if (environment.running_host_functions > 0) return kErrorNotPermitted;
    std::unique_lock<std::mutex> lock(loop.mutex);
    loop.for_javascript.wait_for(lock, delay, [&] { return loop.closed || !loop.ready_host_functions.empty(); });
    if (loop.closed) return kSuccess;  // the process ends, and every stream was released
    if (!loop.ready_host_functions.empty()) return kHostFunctionReady;
    delay = std::min(2 * delay, std::chrono::microseconds{1000});
  }
}

}  // namespace cistern

#endif  // CISTERN_ADDON_HOST_FUNCTIONS_H_
