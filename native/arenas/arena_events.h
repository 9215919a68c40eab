// The events of an arena for native threads. One is recorded for a free or a wait, and again when nobody uses it any more; until
// then it lies with the thread that used it last, so that the next free there takes no lock.
#ifndef CISTERN_ARENAS_ARENA_EVENTS_H_
#define CISTERN_ARENAS_ARENA_EVENTS_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "arenas/thread_state.h"
#include "cuda/driver_in_use.h"

namespace cistern::arenas {

struct ArenaEvent {
  Event event = nullptr;
  std::atomic<int> users{0};
};

class ArenaEvents {
 public:
  // `user`: whose threads they are.
  ArenaEvents(const DriverInUse& driver, ThreadUser& user) : driver_(driver), user_(user) {}
  ArenaEvents(const ArenaEvents&) = delete;
  ArenaEvents& operator=(const ArenaEvents&) = delete;

  // An idle event, or a new one, with the caller as its user. May throw std::bad_alloc.
  Status Acquire(ArenaEvent** event);
  // One user less. Asks for no memory.
  void Release(ArenaEvent* event);
  // The idle events of a thread that ends.
  void TakeFrom(const std::vector<ArenaEvent*>& idle);
  // Destroys them all. Returns those that the driver has refused, as far as there is memory to list them.
  std::vector<Event> Destroy();

 private:
  const DriverInUse& driver_;
  ThreadUser& user_;
  std::mutex mutex_;
  std::vector<ArenaEvent*> idle_;  // has room for all
  std::vector<std::unique_ptr<ArenaEvent>> all_;
};

}  // namespace cistern::arenas

#endif  // CISTERN_ARENAS_ARENA_EVENTS_H_
