#include "addon/completions.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <system_error>

#include "addon/captures.h"
#include "addon/hand_overs.h"
#include "addon/host_functions.h"
#include "addon/order.h"
#include "platform/thread.h"

namespace cistern {

Status MakeCurrent(const DriverTable& driver, Context context, Context* current) {
  if (context == *current) return kSuccess;
  const Status status = driver.CtxSetCurrent(context);
  if (status != kSuccess) return status;
  if (*current == nullptr) {
    // Otherwise a query here would invalidate a graph that another thread of the process captures.
    int mode = kCaptureModeRelaxed;
    driver.ThreadExchangeStreamCaptureMode(&mode);
  }
  *current = context;
  return kSuccess;
}

namespace {

using Clock = std::chrono::steady_clock;

// How long the poller sleeps if nothing has ended for some time. On average, a promise is late by half of that: by a quarter of
// the time that it has waited, but at most 25 us during the first 50 ms, which costs a few per cent of a processor; and then by half
// a thousandth of that time, up to 0.5 ms.
Clock::duration PauseAfter(Clock::duration idle) {
  constexpr Clock::duration kShortest = std::chrono::microseconds{10};
  constexpr Clock::duration kUsual = std::chrono::microseconds{50};
  constexpr Clock::duration kLongest = std::chrono::milliseconds{1};
  return std::clamp(std::max(std::min(idle / 2, kUsual), idle / 1000), kShortest, kLongest);
}

void Poll(const std::shared_ptr<EventLoop>& loop, const DriverTable& driver) {
  SleepPrecisely();
  constexpr std::chrono::milliseconds kBetweenLooks{100};
  Context current = nullptr;
  int waiting = 0;
  auto next_look = Clock::now();
  auto last_progress = next_look;
  std::unique_lock<std::mutex> lock(loop->mutex);
  while (!loop->closed) {
    if (!loop->outstanding_host_functions.empty() && Clock::now() >= next_look) {
      try {
        FailLostHostFunctions(*loop, driver, &current, lock);
      } catch (const std::bad_alloc&) {
        // It looks again after a while.
      }
      next_look = Clock::now() + kBetweenLooks;
      continue;
    }
    if (loop->pending_completions.empty()) {
      if (loop->outstanding_host_functions.empty()) {
        loop->for_poller.wait(lock);
      } else {
        loop->for_poller.wait_until(lock, next_look);
      }
      last_progress = Clock::now();
      continue;
    }
    IntrusiveList<Completion> pending = loop->pending_completions.TakeAll();
    loop->poller_in_driver = true;
    lock.unlock();
    IntrusiveList<Completion> still_pending;
    IntrusiveList<Completion> finished;
    const int waiting_before = waiting;
    waiting = 0;
    const AwakeScope awake(&driver);
    while (Completion* completion = pending.TakeFirst()) {
      completion->status = awake.is_awake() ? MakeCurrent(driver, completion->context, &current) : Status{kErrorNotReady};
      if (completion->status == kSuccess) completion->status = driver.EventQuery(completion->event);
      waiting += completion->status == kErrorNotReady ? 1 : 0;
      (completion->status == kErrorNotReady ? still_pending : finished).Append(completion);
    }
    lock.lock();
    loop->poller_in_driver = false;
    loop->for_close.notify_all();
    const bool progress = !finished.empty() || waiting > waiting_before;
    while (Completion* completion = still_pending.TakeFirst()) loop->pending_completions.Append(completion);
    while (Completion* completion = finished.TakeFirst()) loop->finished_completions.Append(completion);
    if (!loop->finished_completions.empty()) loop->PostWake();
    const auto now = Clock::now();
    if (progress) last_progress = now;
    if (!loop->closed && !loop->pending_completions.empty()) loop->for_poller.wait_for(lock, PauseAfter(now - last_progress));
  }
}

// Copies the bytes of a completion to their destination, unless that has become too small.
Status Fill(const Completion& completion) {
  if (completion.status != kSuccess) return completion.status;
  ByteView view;
  if (!ReadView(completion.destination.Value(), &view) || view.bytes < completion.result_bytes) return kInvalidArgument;
  std::memcpy(view.data, completion.block.pointer, completion.result_bytes);
  return kSuccess;
}

}  // namespace

void FreeStagingSurplus(Environment& environment, int device) {
  if (!environment.staging.HasSurplus()) return;
  const RelaxedContextScope context(environment, device);
  // The driver's free waits for the device. If it may not now, a later delivery tries again.
  const std::unique_lock<std::mutex> no_stalls = stalls.TryExclude();
  if (context.status() == kSuccess && no_stalls.owns_lock()) environment.staging.FreeSurplus(environment.own_calls());
}

bool StartPoller(Environment& environment) {
  if (environment.poller.joinable()) return true;
  try {
    environment.poller = std::thread([loop = environment.loop, driver = environment.backend] { Poll(loop, *driver); });
  } catch (const std::system_error&) {
    return false;  // the process cannot start more threads
  }
  return true;
}

void Await(Environment& environment, std::unique_ptr<Completion> completion) {
  environment.ContextOf(completion->device, &completion->context);
  if (completion->deferred != nullptr) {
    completion->position = PositionOf(environment, completion->event);
    environment.KeepAlive();
  }
  EventLoop& loop = *environment.loop;
  const std::lock_guard<std::mutex> lock(loop.mutex);
  loop.pending_completions.Append(completion.release());
  loop.for_poller.notify_one();
}

Status RecordInternalEvent(Environment& environment, const StreamEntry& stream, Event* event) {
  Status status = environment.internal_events.Acquire(*environment.driver, stream.device, event);
  if (status != kSuccess) return status;
  status = environment.driver->EventRecord(*event, stream.stream);
  if (status != kSuccess) environment.internal_events.Release(*event, stream.device);
  return status;
}

WatchedEvent* WatchEvent(Environment& environment, std::uint64_t handle, EventEntry* entry) {
  if (entry->watched == nullptr) {
    auto watched = std::make_unique<WatchedEvent>(WatchedEvent{entry->event, entry->device, 0, handle, {}});
    environment.watched_events.push_back(watched.get());
    entry->watched = watched.release();
  }
  entry->watched->waiters += 1;
  return entry->watched;
}

void ForgetEvent(Environment& environment, WatchedEvent* watched) {
  watched->waiters -= 1;
  if (watched->waiters > 0) return;
  if (watched->owner != 0) {
    environment.events.Peek(watched->owner)->watched = nullptr;
  } else if (watched->shared.hand_over != 0) {
    EndShare(environment, watched->shared);
  } else {
    const RelaxedContextScope context(environment, watched->device);
    if (context.status() == kSuccess) environment.driver->EventDestroy(watched->event);
  }
  std::vector<WatchedEvent*>& all = environment.watched_events;
  *std::find(all.begin(), all.end(), watched) = all.back();
  all.pop_back();
  delete watched;
}

void DetachWatchedEvent(EventEntry* entry, Event replacement) {
  entry->watched->owner = 0;
  entry->watched->shared = entry->shared;
  entry->watched = nullptr;
  entry->event = replacement;
}

void Resolve(napi_env env, napi_deferred deferred, Status status) { napi_resolve_deferred(env, deferred, Napi::Number::New(env, status)); }

void ResolveWithBytes(Environment& environment, napi_deferred deferred, const void* data, std::uint64_t bytes) {
  const Napi::Env env = environment.env;
  // Through the constructor, which throws if there is no memory; napi_create_arraybuffer ends the
  // process.
  const napi_value length = Napi::Number::New(env, static_cast<double>(bytes));
  napi_value instance = nullptr;
  napi_value error;
  if (napi_new_instance(env, environment.array_buffer_constructor.Value(), 1, &length, &instance) != napi_ok && env.IsExceptionPending()) {
    napi_get_and_clear_last_exception(env, &error);
  }
  Napi::ArrayBuffer buffer(env, instance);
  if (!buffer.IsArrayBuffer() || buffer.ByteLength() != bytes) {
    Resolve(env, deferred, kHostOutOfMemory);
    return;
  }
  if (bytes > 0) std::memcpy(buffer.Data(), data, bytes);
  napi_resolve_deferred(env, deferred, buffer);
}

void DeliverCompletions(Environment& environment) {
  const Napi::Env env = environment.env;
  EventLoop& loop = *environment.loop;
  IntrusiveList<Completion> finished;
  {
    const std::lock_guard<std::mutex> lock(loop.mutex);
    finished = loop.finished_completions.TakeAll();
  }
  while (Completion* next = finished.TakeFirst()) {
    const Napi::HandleScope scope(env);
    const std::unique_ptr<Completion> completion(next);
    if (completion->deferred != nullptr) {
      if (completion->status == kSuccess) NoteHostReached(environment, completion->position);
      if (completion->gives_bytes && completion->status == kSuccess) {
        ResolveWithBytes(environment, completion->deferred, completion->block.pointer, completion->result_bytes);
      } else {
        Resolve(env, completion->deferred, completion->destination.IsEmpty() ? completion->status : Fill(*completion));
      }
      environment.LetGo();
    }
    if (completion->watched != nullptr) {
      ForgetEvent(environment, completion->watched);
    } else if (completion->status == kSuccess) {
      environment.internal_events.Release(completion->event, completion->device);
      if (completion->block.pointer != nullptr) environment.staging.Release(completion->block);
      FreeStagingSurplus(environment, completion->device);
    }
    // After an error neither is used again before the environment ends: the device may still be
    // writing to the block.
  }
}

Status StreamCompletion(Environment& environment, const Napi::CallbackInfo& info, Napi::Value* result) {
  return GivePromise(info.Env(), result, [&](napi_deferred deferred) -> std::optional<Status> {
    StreamEntry* stream;
    Status status = FindUncapturedStream(environment, info[0], &stream);
    if (status != kSuccess) return status;
    const RelaxedContextScope context(environment, stream->device);
    status = context.status() == kSuccess ? environment.driver->StreamQuery(stream->stream) : context.status();
    if (status != kErrorNotReady) return status;

    auto completion = std::make_unique<Completion>();
    status = StartPoller(environment) ? RecordInternalEvent(environment, *stream, &completion->event) : kHostOutOfMemory;
    if (status != kSuccess) return status;
    completion->device = stream->device;
    completion->deferred = deferred;
    Await(environment, std::move(completion));
    return std::nullopt;
  });
}

Status EventCompletion(Environment& environment, const Napi::CallbackInfo& info, Napi::Value* result) {
  return GivePromise(info.Env(), result, [&](napi_deferred deferred) -> std::optional<Status> {
    double handle;
    if (!ReadNumber(info[0], &handle)) return kInvalidArgument;
    EventEntry* event;
    Status status = environment.events.Find(handle, &event);
    if (status == kSuccess) status = CheckNotCaptured(*event);
    if (status != kSuccess) return status;
    const RelaxedContextScope context(environment, event->device);
    status = context.status() == kSuccess ? environment.driver->EventQuery(event->event) : context.status();
    if (status != kErrorNotReady) return status;

    if (!StartPoller(environment)) return kHostOutOfMemory;
    auto completion = std::make_unique<Completion>();
    completion->watched = WatchEvent(environment, static_cast<std::uint64_t>(handle), event);
    completion->event = event->event;
    completion->device = event->device;
    completion->deferred = deferred;
    Await(environment, std::move(completion));
    return std::nullopt;
  });
}

}  // namespace cistern
