#include "arenas/arena_events.h"

#include "arenas/thread_arena.h"
#include "cuda/relaxed_mode_scope.h"

namespace cistern::arenas {

Status ArenaEvents::Acquire(ArenaEvent** event) {
  ThreadState* const state = ThreadState::Find(user_);
  *event = nullptr;
  if (state != nullptr && !state->events.empty()) {
    *event = state->events.back();
    state->events.pop_back();
  } else {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!idle_.empty()) {
      *event = idle_.back();
      idle_.pop_back();
    }
  }
  if (*event == nullptr) {
    auto fresh = std::make_unique<ArenaEvent>();
    const DriverTable* table = driver_;
    const RelaxedModeScope relaxed(table);
    Status status = table->EventCreate(&fresh->event, kEventDisableTiming);
    if (status != kSuccess) return status;
    status = Guarded([&] {
      const std::lock_guard<std::mutex> lock(mutex_);
      idle_.reserve(all_.size() + 1);
      all_.reserve(all_.size() + 1);
      *event = fresh.get();
      all_.push_back(std::move(fresh));
      return kSuccess;
    });
    if (status != kSuccess) {
      table->EventDestroy(fresh->event);
      return status;
    }
  }
  (*event)->users.store(1);
  return kSuccess;
}

void ArenaEvents::Release(ArenaEvent* event) {
  if (event->users.fetch_sub(1) != 1) return;
  ThreadState* const state = ThreadState::Known(user_);
  if (state != nullptr && state->events.size() < kMostEventsOfThread) {
    state->events.push_back(event);  // there is room
    return;
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  idle_.push_back(event);  // here, too
}

void ArenaEvents::TakeFrom(const std::vector<ArenaEvent*>& idle) {
  const std::lock_guard<std::mutex> lock(mutex_);
  idle_.insert(idle_.end(), idle.begin(), idle.end());
}

std::vector<Event> ArenaEvents::Destroy() {
  std::vector<Event> refused;
  Guarded([&] { return refused.reserve(all_.size()), kSuccess; });
  for (const std::unique_ptr<ArenaEvent>& each : all_) {
    if (driver_->EventDestroy(each->event) != kSuccess && refused.size() < refused.capacity()) refused.push_back(each->event);
  }
  return refused;
}

}  // namespace cistern::arenas
