#include "arenas/thread_state.h"

#include <algorithm>
#include <utility>

namespace cistern::arenas {
namespace {

thread_local bool has_thread_ended = false;  // its destructors run

struct ThreadStates {
  std::vector<std::unique_ptr<ThreadState>> all;
  ThreadState* last = nullptr;
  ~ThreadStates() {
    has_thread_ended = true;
    for (const std::unique_ptr<ThreadState>& each : all) {
      if (const std::shared_ptr<ThreadUser> user = each->user.lock()) user->EndThread(*each);
    }
  }
};

ThreadStates& StatesOfThread() {
  thread_local ThreadStates states;
  return states;
}

}  // namespace

ThreadState* ThreadState::Known(const ThreadUser& user) {
  if (has_thread_ended) return nullptr;
  ThreadStates& states = StatesOfThread();
  if (states.last != nullptr && states.last->number == user.number()) return states.last;
  for (const std::unique_ptr<ThreadState>& each : states.all) {
    if (each->number == user.number()) return states.last = each.get();
  }
  return nullptr;
}

ThreadState* ThreadState::Find(ThreadUser& user) {
  ThreadState* const known = Known(user);
  if (known != nullptr || has_thread_ended) return known;
  ThreadStates& states = StatesOfThread();
  states.last = nullptr;
  states.all.erase(std::remove_if(states.all.begin(), states.all.end(), [](const auto& each) { return each->user.expired(); }),
                   states.all.end());
  auto state = std::make_unique<ThreadState>();
  state->events.reserve(kMostEventsOfThread);
  state->number = user.number();
  state->user = user.weak_from_this();
  states.all.push_back(std::move(state));
  return states.last = states.all.back().get();
}

}  // namespace cistern::arenas
