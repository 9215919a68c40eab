#include "addon/event_loop.h"

#include <chrono>
#include <cstdlib>
#include <set>
#include <thread>

#include "addon/gates.h"
#include "addon/host_functions.h"
#include "platform/lasting.h"

namespace cistern {

// Never destroyed: threads may still use it while the process ends.
Stalls& stalls = *new Stalls;

std::unique_lock<std::mutex> Stalls::Exclude() {
  std::unique_lock<std::mutex> lock(mutex_);
  if (AnyLeft()) lock.unlock();
  return lock;
}

std::unique_lock<std::mutex> Stalls::TryExclude() {
  std::unique_lock<std::mutex> lock(mutex_, std::try_to_lock);
  if (lock.owns_lock() && AnyLeft()) lock.unlock();
  return lock;
}

void Stalls::AwaitSome() const {
  constexpr std::chrono::milliseconds kPatience{100};
  constexpr std::chrono::microseconds kPause{200};
  const auto end = std::chrono::steady_clock::now() + kPatience;
  while (host_functions_ != 0 && std::chrono::steady_clock::now() < end) std::this_thread::sleep_for(kPause);
}

namespace {

struct ExitList {
  std::mutex mutex;
  std::set<std::shared_ptr<EventLoop>> loops;
  bool closed = false;
};

ExitList& Loops() {
  static Lasting<ExitList> list;
  return *list;
}

}  // namespace

void EventLoop::PostWake() {
  if (!wake_posted && !closed) wake_posted = wake.NonBlockingCall() == napi_ok;
}

void EventLoop::Close() {
  std::unique_lock<std::mutex> lock(mutex);
  closed = true;
  while (QueuedFunction* function = ready_host_functions.TakeFirst()) ForgetTurn(function);
  for (Gate* gate : shut_gates) OpenLocked(*gate);
  shut_gates.clear();
  for_javascript.notify_all();
  for_streams.notify_all();
  for_poller.notify_all();
  for_close.wait(lock, [this] { return !poller_in_driver; });
}

void CloseEventLoops() {
  ExitList& list = Loops();
  const std::lock_guard<std::mutex> lock(list.mutex);
  list.closed = true;
  for (const std::shared_ptr<EventLoop>& loop : list.loops) loop->Close();
}

void CloseEventLoopsAtExit() { std::atexit(CloseEventLoops); }

void AddToExitList(const std::shared_ptr<EventLoop>& loop) {
  ExitList& list = Loops();
  const std::lock_guard<std::mutex> lock(list.mutex);
  list.loops.insert(loop);
  if (list.closed) loop->Close();
}

void RemoveFromExitList(const std::shared_ptr<EventLoop>& loop) {
  ExitList& list = Loops();
  const std::lock_guard<std::mutex> lock(list.mutex);
  list.loops.erase(loop);
}

}  // namespace cistern
