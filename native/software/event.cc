#include "software/event.h"

#include <ctime>
#include <mutex>

#include "software/legacy_order.h"

namespace cistern::software {
namespace {

std::int64_t Now() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return std::int64_t{now.tv_sec} * 1000000000 + now.tv_nsec;
}

Status RecordWithTime(EventState& event, StreamState& stream) {
  // Held while the work is queued, so that the stream's thread cannot look for the mark before it
  // is set.
  std::lock_guard<SpinLock> guard(event.time_lock);
  Mark mark = CurrentMark(stream);
  if (IsReached(mark)) {
    event.timed_mark = mark;
    event.nanoseconds = Now();
  } else {
    Status status = Submit(stream, StampWork{&event}, &mark);
    if (status != kSuccess) return status;
  }
  event.mark.store(mark, std::memory_order_release);
  return kSuccess;
}

}  // namespace

Status CreateEvent(Device& device, unsigned flags, EventState** event) {
  EventState* state = event_table.Take();
  if (state == nullptr) return kErrorOutOfMemory;
  {
    std::lock_guard<SpinLock> guard(state->time_lock);
    state->mark.store(0, std::memory_order_relaxed);
    state->device = &device;
    state->flags = flags;
    state->timed_mark = 0;
  }
  event_table.Publish(*state);
  *event = state;
  return kSuccess;
}

Status DestroyEvent(EventState& event, std::uint64_t handle) {
  if (!EventTable::Close(event, handle)) return kErrorInvalidHandle;
  event_table.Recycle(event);
  return kSuccess;
}

Status RecordEvent(EventState& event, StreamState& stream) {
  Status status = OrderWithLegacy(stream);
  if (status != kSuccess) return status;
  if (event.HasTiming()) return RecordWithTime(event, stream);
  event.mark.store(CurrentMark(stream), std::memory_order_release);
  return kSuccess;
}

Status ElapsedTime(EventState& start, EventState& end, float* milliseconds) {
  std::int64_t times[2];
  EventState* events[2] = {&start, &end};
  for (EventState* event : events) {
    if (!event->HasTiming() || event->mark.load(std::memory_order_acquire) == 0) return kErrorInvalidHandle;
  }
  for (int i = 0; i < 2; ++i) {
    if (!IsComplete(*events[i])) return kErrorNotReady;
    std::lock_guard<SpinLock> guard(events[i]->time_lock);
    if (events[i]->timed_mark != events[i]->mark.load(std::memory_order_relaxed)) return kErrorNotReady;
    times[i] = events[i]->nanoseconds;
  }
  *milliseconds = static_cast<float>(static_cast<double>(times[1] - times[0]) / 1e6);
  return kSuccess;
}

void StampEvent(EventState& event, Mark mark) {
  std::int64_t now = Now();
  std::lock_guard<SpinLock> guard(event.time_lock);
  if (event.mark.load(std::memory_order_relaxed) != mark) return;
  event.timed_mark = mark;
  event.nanoseconds = now;
}

}  // namespace cistern::software
