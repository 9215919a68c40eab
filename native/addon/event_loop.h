// The part of an environment that other threads hold: how they reach its event loop, and what they
// wait for.
//
// Driver threads announce here that a host function's turn has come, and the completion thread
// waits here for work. They may outlive the environment, so they share ownership of this object.
// Close releases all of them, and every held stream.
#ifndef CISTERN_ADDON_EVENT_LOOP_H_
#define CISTERN_ADDON_EVENT_LOOP_H_

#include <napi.h>

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

#include "cuda/driver_table.h"

namespace cistern {

class Environment;
class GraphPart;
struct Completion;
struct ExportedTensor;
struct Gate;
struct ProcessStep;
struct QueuedFunction;

// An intrusive list, linked through its members' `next`: appending allocates nothing, so it cannot
// fail on a driver thread.
template <typename Node>
class IntrusiveList {
 public:
  bool empty() const { return first_ == nullptr; }
  void Append(Node* node) {
    node->next = nullptr;
    (first_ == nullptr ? first_ : last_->next) = node;
    last_ = node;
  }
  Node* TakeFirst() {
    Node* node = first_;
    if (node != nullptr) first_ = node->next;
    return node;
  }
  int Count() const {
    int count = 0;
    for (const Node* node = first_; node != nullptr; node = node->next) count += 1;
    return count;
  }
  void Remove(Node* node) {
    IntrusiveList others;
    while (Node* each = TakeFirst()) {
      if (each != node) others.Append(each);
    }
    *this = others;
  }
  IntrusiveList TakeAll() {
    const IntrusiveList all = *this;
    first_ = nullptr;
    return all;
  }

 private:
  Node* first_ = nullptr;
  Node* last_ = nullptr;
};

// Handles what is due on the JavaScript thread; in environment.cc.
void OnWake(Napi::Env env, Napi::Function, Environment* environment, void*);
using WakeFunction = Napi::TypedThreadSafeFunction<Environment, void, OnWake>;

struct EventLoop {
  std::mutex mutex;
  std::condition_variable for_javascript;   // a host function became ready
  std::condition_variable for_streams;      // a gate was opened
  std::condition_variable for_poller;       // a completion needs polling
  std::condition_variable for_close;        // the poller is out of the driver
  std::atomic<bool> is_asked{false};        // for superblocks, see global_arena.h
  std::atomic<bool> has_admissions{false};  // see admission.h

  // The mutex guards the rest.
  bool closed = false;
  bool wake_posted = false;
  bool poller_in_driver = false;
  WakeFunction wake;
  std::set<Gate*> shut_gates;
  std::vector<QueuedFunction*> outstanding_host_functions;
  IntrusiveList<QueuedFunction> ready_host_functions;
  IntrusiveList<Completion> pending_completions;
  IntrusiveList<Completion> finished_completions;
  IntrusiveList<ProcessStep> finished_steps;
  // Those whose deleters were called; see exported_tensor.h.
  IntrusiveList<ExportedTensor> released_tensors;
  bool has_closed_tensors = false;
  // Those of graphs that have ended; see user_objects.h.
  IntrusiveList<GraphPart> ended_parts;

  // Makes the event loop call OnWake soon. The mutex must be held; any thread.
  void PostWake();

  // Releases every waiting thread, and returns once none of them will call the driver or JavaScript
  // again. Idempotent.
  void Close();
};

// Host functions and holds of the whole process that stall a stream until JavaScript acts. A wait for
// another process counts as a hold.
class Stalls {
 public:
  // Counts one that is about to be queued. Waits while another thread has excluded stalls.
  void BeginHostFunction() { Begin(host_functions_); }
  void BeginHold() { Begin(holds_); }
  void EndHostFunctions(int number = 1) { host_functions_ -= number; }
  void EndHolds(int number = 1) { holds_ -= number; }
  // Keeps new stalls from beginning while the lock lives; the lock is not owned if a stall exists
  // already. Under the lock, a wait for a device ends by itself, and so does a call that waits
  // while it keeps other threads out of the driver.
  std::unique_lock<std::mutex> Exclude();
  // The same, but also not owned if another thread holds it, which may take as long as a device
  // works.
  std::unique_lock<std::mutex> TryExclude();
  // Waits until no host function is outstanding in the process, for a short time only.
  void AwaitHostFunctions() const {
    if (host_functions_ != 0) AwaitSome();
  }

 private:
  void Begin(std::atomic<int>& count) {
    const std::lock_guard<std::mutex> lock(mutex_);
    count += 1;
  }
  void AwaitSome() const;
  bool AnyLeft() const { return host_functions_ != 0 || holds_ != 0; }

  std::mutex mutex_;
  std::atomic<int> host_functions_{0};
  std::atomic<int> holds_{0};
};

extern Stalls& stalls;

// Closes every event loop of the process, including future ones: the process ends.
void CloseEventLoops();
// Registers CloseEventLoops to run before the driver is torn down. Called after each step that may
// have registered the driver's own teardown, since exit handlers run last in, first out.
void CloseEventLoopsAtExit();
void AddToExitList(const std::shared_ptr<EventLoop>& loop);
void RemoveFromExitList(const std::shared_ptr<EventLoop>& loop);

}  // namespace cistern

#endif  // CISTERN_ADDON_EVENT_LOOP_H_
