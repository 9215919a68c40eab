// Promises for work on a device.
//
// One thread for each environment asks, with growing pauses, which of the events that promises wait for have happened, and has the event
// loop resolve those. It also looks after host functions, whose turn never comes once their device is in error. It starts with the first
// promise that has to wait, or the first host function.
#ifndef CISTERN_ADDON_COMPLETIONS_H_
#define CISTERN_ADDON_COMPLETIONS_H_

#include <napi.h>

#include <cstdint>
#include <memory>
#include <optional>

#include "addon/bindings.h"
#include "addon/staging.h"
#include "order/order_checker.h"

namespace cistern {

// A user's event whose recording promises and stopped calls wait for. Recording the event again would move them to the new recording, so
// the event is exchanged before (DetachWatchedEvent), and the last of them destroys the one that was taken away.
struct WatchedEvent {
  Event event;
  int device;
  int waiters;
  std::uint64_t owner;  // the event's handle; zero once the handle has another event, or none
};

struct Completion {
  Completion* next = nullptr;
  Event event = nullptr;
  int device = 0;
  Context context = nullptr;
  Status status = kErrorNotReady;
  WatchedEvent* watched = nullptr;   // null: the event is an internal one
  napi_deferred deferred = nullptr;  // null: nobody waits, only the event and the block are to be given back
  StagingBlock block;
  order::Position position;  // of the event, for the order checker
  std::uint64_t result_bytes = 0;
  bool gives_bytes = false;           // resolves with the first bytes of the block instead of the status
  Napi::ObjectReference destination;  // a view that is filled with them; empty: none
};

// Makes a context the current one of the completion thread. `current` is the one that is.
Status MakeCurrent(const DriverTable& driver, Context context, Context* current);

// Starts the thread if need be. False where that fails.
bool StartPoller(Environment& environment);

// Hands a completion, whose event and device are set, to the thread.
void Await(Environment& environment, std::unique_ptr<Completion> completion);

// Records an internal event. The device's context is current.
Status RecordInternalEvent(Environment& environment, const StreamEntry& stream, Event* event);

// One that waits for the entry's recording begins, and ends.
WatchedEvent* WatchEvent(Environment& environment, std::uint64_t handle, EventEntry* entry);
void ForgetEvent(Environment& environment, WatchedEvent* watched);

// Leaves the entry's event to the promises that wait for it, and puts another one (or none) in its place.
void DetachWatchedEvent(EventEntry* entry, Event replacement);

// Resolves the promises that are due. On the JavaScript thread.
void DeliverCompletions(Environment& environment);

// Promises are raw Node-API, like every call that can run JavaScript: docs/design/001. One whose worker is terminated stays as it is.
void Resolve(napi_env env, napi_deferred deferred, Status status);
// Resolves with a copy of the bytes in a new ArrayBuffer.
void ResolveWithBytes(Environment& environment, napi_deferred deferred, const void* data, std::uint64_t bytes);

// Gives JavaScript a promise of a status. The body, which takes the promise, returns the status if it knows it already; else it has seen to
// it that the promise is resolved.
template <typename Body>
Status GivePromise(Napi::Env env, Napi::Value* result, Body&& body) {
  napi_deferred deferred;
  napi_value promise;
  if (napi_create_promise(env, &deferred, &promise) != napi_ok) return kHostOutOfMemory;
  *result = Napi::Value(env, promise);
  const std::optional<Status> status = Guarded([&]() -> std::optional<Status> { return body(deferred); });
  if (status.has_value()) Resolve(env, deferred, *status);
  return status.value_or(kSuccess);
}

}  // namespace cistern

#endif  // CISTERN_ADDON_COMPLETIONS_H_
