#include "strict_driver/stream.h"

#include <unistd.h>

#include <csignal>
#include <random>
#include <thread>
#include <utility>

#include "strict_driver/capture.h"
#include "strict_driver/host_functions.h"
#include "strict_driver/report.h"
#include "strict_driver/settings.h"

namespace cistern::strict {
namespace {

constexpr unsigned kPollMicroseconds = 20;

// Mostly none or a short one, occasionally the longest.
void Pause(const StreamState& stream) {
  const unsigned longest = settings().delay_microseconds;
  if (longest == 0) return;
  thread_local std::minstd_rand random(static_cast<unsigned>(settings().seed * 7919 + stream.id));
  const unsigned pick = static_cast<unsigned>(random()) % 8;
  if (pick >= 3) usleep(pick == 7 ? longest : static_cast<unsigned>(random()) % (longest / 4 + 1));
}

bool IsInError(const StreamState& stream) { return stream.context->sticky_error != kSuccess; }

// Called without the lock. False if an error ended the wait.
bool WaitForCondition(const StreamState& stream, const std::function<bool()>& condition) {
  while (!condition()) {
    usleep(kPollMicroseconds);
    const Lock lock(big_lock);
    if (IsInError(stream)) return false;
  }
  return true;
}

// Runs one operation. False if the context is in error: then the operation counts as never
// completed.
bool Run(Lock& lock, StreamState& stream, const Operation& operation) {
  stream.at = "the wait for another stream";
  changed.wait(lock, [&] { return AreReached(operation.after) || IsInError(stream); });
  if (IsInError(stream)) return false;
  stream.at = operation.name;
  lock.unlock();
  Pause(stream);
  const bool goes_on = !operation.condition || WaitForCondition(stream, operation.condition);
  if (goes_on && operation.run && operation.fault == kSuccess) operation.run();
  lock.lock();
  if (IsInError(stream)) return false;
  if (operation.fault != kSuccess) {
    Poison(stream.context, operation.fault);
    return false;
  }
  if (operation.host_function != nullptr) RunHostFunction(lock, *stream.context, operation);
  return !IsInError(stream);
}

void RunStream(const StreamRef& stream) {
  Lock lock(big_lock);
  for (;;) {
    stream->at = "nothing";
    stream->arrived.wait(lock, [&] { return !stream->queue.empty() || stream->is_destroyed; });
    if (stream->queue.empty()) break;
    const Operation operation = std::move(stream->queue.front());
    stream->queue.pop_front();
    if (!Run(lock, *stream, operation)) continue;
    stream->completed += 1;
    changed.notify_all();
  }
  stream->has_thread = false;
  stream->context->streams.erase(stream);
}

}  // namespace

bool Place::IsReached() const { return stream == nullptr || stream->completed >= count; }

bool AreReached(const std::vector<Place>& places) {
  for (const Place& place : places) {
    if (!place.IsReached()) return false;
  }
  return true;
}

Status FindStream(Stream handle, StreamRef* stream, bool gets_work) {
  ContextState* current = thread.current;
  if (handle == nullptr || handle == LegacyStream()) {
    *stream = current->legacy;
    return kSuccess;
  }
  if (handle == PerThreadStream()) {
    StreamRef& own = thread.default_streams[current];
    if (own == nullptr) own = NewStream(current, Role::kPerThread, kStreamDefault, 0);
    *stream = own;
    return kSuccess;
  }
  *stream = driver.streams.Find(handle);
  if (*stream == nullptr) {
    Report("MISUSE", "%s: %p is %s", thread.function, static_cast<void*>(handle),
           driver.streams.WasEverLive(handle) ? "a destroyed stream" : "not a stream");
    return kErrorInvalidHandle;
  }
  if (gets_work && (*stream)->context != current) {
    Report("MISUSE", "%s: a stream of device %d gets work while device %d is current", thread.function, (*stream)->context->device,
           current->device);
    return kErrorInvalidHandle;
  }
  return kSuccess;
}

StreamRef NewStream(ContextState* context, Role role, unsigned flags, int priority) {
  auto stream = std::make_shared<StreamState>();
  stream->context = context;
  stream->role = role;
  stream->flags = flags;
  stream->priority = priority;
  stream->id = ++driver.last_stream_id;
  context->streams.insert(stream);
  return stream;
}

Status Submit(const StreamRef& stream, Operation operation, Place* place) {
  ContextState* context = stream->context;
  const Status status = CheckUncaptured(*stream);
  if (status != kSuccess) return status;
  if (context->sticky_error != kSuccess) return context->sticky_error;
  // Work of the legacy default stream waits for all earlier work in every blocking stream, and that
  // for earlier work of the legacy stream.
  if (stream->role == Role::kLegacy) {
    for (Place& other : PendingOf(*context, true)) {
      if (other.stream != stream) operation.after.push_back(std::move(other));
    }
  } else if (stream->IsBlocking() && !context->legacy->IsIdle()) {
    operation.after.push_back({context->legacy, context->legacy->submitted});
  }
  const Status fault = std::exchange(thread.pending_fault, kSuccess);
  if (operation.fault == kSuccess) operation.fault = fault;
  stream->queue.push_back(std::move(operation));
  stream->submitted += 1;
  if (place != nullptr) *place = {stream, stream->submitted};
  if (!stream->has_thread) {
    stream->has_thread = true;
    context->streams.insert(stream);
    StartThread([stream] { RunStream(stream); });
  }
  stream->arrived.notify_one();
  return kSuccess;
}

void EndStream(const StreamRef& stream) {
  stream->is_destroyed = true;
  if (stream->has_thread) {
    stream->arrived.notify_one();
  } else {
    stream->context->streams.erase(stream);
  }
}

std::vector<Place> PendingOf(const ContextState& context, bool only_blocking) {
  std::vector<Place> places;
  for (const StreamRef& stream : context.streams) {
    if ((!only_blocking || stream->IsBlocking()) && !stream->IsIdle()) places.push_back({stream, stream->submitted});
  }
  return places;
}

void Poison(ContextState* context, Status error) {
  Report("NOTE", "device %d is in error %d from here on", context->device, error);
  context->sticky_error = error;
  changed.notify_all();
}

void StartThread(std::function<void()> body) {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread(std::move(body)).detach();
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

}  // namespace cistern::strict
