#include "software/event.h"

#include <algorithm>
#include <chrono>
#include <mutex>
#include <utility>

#include "software/device.h"
#include "software/legacy_order.h"

namespace cistern::software {
namespace {

std::int64_t Now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

[[gnu::noinline]] Status RecordWithTime(EventState& event, StreamState& stream) {
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

// The event's time_lock must be held, and `early` have room.
void CompleteRecording(EventState& event, std::uint64_t recording) {
  event.early.push_back(recording);
  std::uint64_t completed = event.slot->completed.load(std::memory_order_relaxed);
  for (;;) {
    const auto next = std::find(event.early.begin(), event.early.end(), completed + 1);
    if (next == event.early.end()) break;
    event.early.erase(next);
    ++completed;
  }
  event.slot->completed.store(completed, std::memory_order_release);
}

// One that other processes can wait for. Recordings of one event may happen out of order, on two
// streams; others are told of them in order.
[[gnu::noinline]] Status RecordForOthers(EventState& event, StreamState& stream) {
  std::lock_guard<SpinLock> guard(event.time_lock);
  const Mark mark = CurrentMark(stream);
  const std::uint64_t recording = event.slot->recorded.load(std::memory_order_relaxed) + 1;
  const bool is_over = IsReached(mark);
  // Here, since the stream's thread could refuse nothing.
  event.early.reserve(static_cast<std::size_t>(recording - event.slot->completed.load(std::memory_order_relaxed)));
  if (!is_over) {
    const Status status = Submit(stream, SignalWork{&event, event.generation, recording}, nullptr);
    if (status != kSuccess) return status;
  }
  event.slot->recorded.store(recording, std::memory_order_release);
  event.mark.store(mark, std::memory_order_release);
  if (is_over) CompleteRecording(event, recording);
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
    state->slot = nullptr;
    state->early.clear();
    if ((flags & kEventInterprocess) != 0) {
      Status status = device.memory.OpenSharedPages();
      if (status == kSuccess) state->slot = device.memory.shared_pages().TakeEvent(&state->slot_index);
      if (state->slot == nullptr) {
        event_table.Recycle(*state);
        return status == kSuccess ? kErrorOutOfMemory : status;
      }
      state->generation = state->slot->generation.load(std::memory_order_relaxed);
    }
  }
  event_table.Publish(*state);
  *event = state;
  return kSuccess;
}

Status DestroyEvent(EventState& event, std::uint64_t handle) {
  if (!EventTable::Close(event, handle)) return kErrorInvalidHandle;
  {
    std::lock_guard<SpinLock> guard(event.time_lock);
    if (event.slot != nullptr) event.device->memory.shared_pages().GiveEvent(event.slot_index);
    event.slot = nullptr;
    event.foreign = nullptr;
  }
  event_table.Recycle(event);
  return kSuccess;
}

Status RecordEvent(EventState& event, StreamState& stream) {
  if (IsCapturing(stream)) return CaptureRecord(stream, event);
  Status status = OrderWithLegacy(stream);
  if (status != kSuccess) return status;
  if (event.HasTiming()) return RecordWithTime(event, stream);
  if (event.slot != nullptr) return RecordForOthers(event, stream);
  if (event.foreign != nullptr) return kErrorNotSupported;  // only its own process records it here
  event.mark.store(CurrentMark(stream), std::memory_order_release);
  return kSuccess;
}

Status ElapsedTime(EventState& start, EventState& end, float* milliseconds) {
  if (IsCaptured(start) || IsCaptured(end)) return kErrorCapturedEvent;
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

// The event may have been destroyed, and its slot used again, since the work was queued.
void SignalEvent(EventState& event, std::uint64_t generation, std::uint64_t recording) {
  std::lock_guard<SpinLock> guard(event.time_lock);
  if (event.slot != nullptr && event.generation == generation) CompleteRecording(event, recording);
}

Status OpenForeignEvent(Device& device, ForeignEvent foreign, EventState** event) {
  const Status status = CreateEvent(device, kEventDisableTiming, event);
  if (status != kSuccess) return status;
  (*event)->foreign = std::make_shared<const ForeignEvent>(std::move(foreign));
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
