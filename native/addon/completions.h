// Promises for work on a device.
//
// One thread for each environment polls, with growing pauses, the events that promises wait for,
// and makes the event loop resolve the promises whose events are complete. It also watches host
// functions, which never run once their device is in error. It starts with the first promise that
// has to wait, or with the first host function.
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

// A user's event whose recording promises and stopped calls wait for. Recording the event again
// would make them wait for the new recording. So the entry gets another event first
// (DetachWatchedEvent), and the last waiter destroys the detached one.
struct WatchedEvent {
  Event event;
  int device;
  int waiters;
  std::uint64_t owner;  // the event's handle; zero once the handle has another event, or none
  SharedObject shared;  // of the event, once its handle has none
};

struct Completion {
  Completion* next = nullptr;
  Event event = nullptr;
  int device = 0;
  Context context = nullptr;
  Status status = kErrorNotReady;
  WatchedEvent* watched = nullptr;   // null: the event is an internal one
  napi_deferred deferred = nullptr;  // null: nobody waits, and only the event and the block are to be given back
  StagingBlock block;
  order::Position position;  // of the event, for the order checker
  std::uint64_t result_bytes = 0;
  bool gives_bytes = false;           // resolves with the first bytes of the block instead of the status
  Napi::ObjectReference destination;  // a view to fill with them; empty: none
};

// Makes a context current on the completion thread. `current` is the one that is current now.
Status MakeCurrent(const DriverTable& driver, Context context, Context* current);

// Starts the thread if it is not running. False if that fails.
bool StartPoller(Environment& environment);

// Hands a completion with its event and device to the thread.
void Await(Environment& environment, std::unique_ptr<Completion> completion);

// Frees idle staging memory beyond what is kept, unless that would have to wait.
void FreeStagingSurplus(Environment& environment, int device);

// Records an internal event. The device's context must be current.
Status RecordInternalEvent(Environment& environment, const StreamEntry& stream, Event* event);

// A waiter for the entry's recording begins, and ends.
WatchedEvent* WatchEvent(Environment& environment, std::uint64_t handle, EventEntry* entry);
void ForgetEvent(Environment& environment, WatchedEvent* watched);

// Leaves the entry's event to the promises that wait for it, and puts another one (or none) in its
// place.
void DetachWatchedEvent(EventEntry* entry, Event replacement);

// Resolves the promises that are due. Called on the JavaScript thread.
void DeliverCompletions(Environment& environment);

// Promises use raw Node-API, like every call that can run JavaScript: docs/design/001. If the
// worker is being terminated, the promise stays pending.
void Resolve(napi_env env, napi_deferred deferred, Status status);
// Resolves with a copy of the bytes in a new ArrayBuffer.
void ResolveWithBytes(Environment& environment, napi_deferred deferred, const void* data, std::uint64_t bytes);

// Gives JavaScript a promise of a status. The body takes the promise. It returns the status if that
// is already known; otherwise it has arranged for the promise to be resolved.
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
