#include "strict_driver/host_functions.h"

#include "strict_driver/settings.h"
#include "strict_driver/stream.h"

namespace cistern::strict {
namespace {

struct Callback {
  HostFunction function;
  void* data;
  const ContextState* context;  // null: none
  bool* is_done;                // null: nobody waits
};

std::deque<Callback>& callbacks = *new std::deque<Callback>;
std::condition_variable& callback_arrived = *new std::condition_variable;
bool has_thread = false;

void Run(Lock& lock, const Callback& callback) {
  const bool is_in_error = callback.context != nullptr && callback.context->sticky_error != kSuccess;
  if (!is_in_error && !driver.has_ended) {
    driver.running_callbacks += 1;
    lock.unlock();
    thread.is_in_callback = true;
    callback.function(callback.data);
    thread.is_in_callback = false;
    lock.lock();
    driver.running_callbacks -= 1;
  }
  if (callback.is_done != nullptr) *callback.is_done = true;
  changed.notify_all();
}

void RunCallbacks() {
  Lock lock(big_lock);
  for (;;) {
    callback_arrived.wait(lock, [] { return !callbacks.empty(); });
    const Callback callback = callbacks.front();
    callbacks.pop_front();
    Run(lock, callback);
  }
}

void Queue(const Callback& callback) {
  if (!has_thread) {
    has_thread = true;
    StartThread(RunCallbacks);
  }
  callbacks.push_back(callback);
  callback_arrived.notify_one();
}

}  // namespace

void CallLater(HostFunction function, void* data) { Queue({function, data, nullptr, nullptr}); }

void RunHostFunction(Lock& lock, ContextState& context, const Operation& operation) {
  bool is_done = false;
  const Callback callback{operation.host_function, operation.host_data, &context, &is_done};
  if (!settings().serializes_callbacks) {
    Run(lock, callback);
    return;
  }
  Queue(callback);
  changed.wait(lock, [&] { return is_done; });
}

}  // namespace cistern::strict
