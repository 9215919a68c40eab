// An event holds the mark of its latest recording, and the time of that recording.
//
// Recording on any stream is one store of the mark. Only a timing event needs more: the time
// immediately if the stream is idle, else work on the stream that writes it. A time belongs to the
// recording whose mark it carries; work of an overwritten recording finds another mark and leaves
// the event alone.
#ifndef CISTERN_SOFTWARE_EVENT_H_
#define CISTERN_SOFTWARE_EVENT_H_

#include <atomic>
#include <cstdint>

#include "cuda/driver_table.h"
#include "software/handle_table.h"
#include "software/spin_lock.h"
#include "software/stream.h"

namespace cistern::software {

struct alignas(64) EventState : HandleSlot {
  std::atomic<Mark> mark{0};  // 0: never recorded
  Device* device = nullptr;
  unsigned flags = 0;

  SpinLock time_lock;
  Mark timed_mark = 0;
  std::int64_t nanoseconds = 0;

  bool HasTiming() const { return (flags & kEventDisableTiming) == 0; }
};

using EventTable = HandleTable<EventState, HandleKind::kEvent>;
inline EventTable event_table;

Status CreateEvent(Device& device, unsigned flags, EventState** event);
Status DestroyEvent(EventState& event, std::uint64_t handle);
Status RecordEvent(EventState& event, StreamState& stream);
Status ElapsedTime(EventState& start, EventState& end, float* milliseconds);

// Runs on the stream's thread.
void StampEvent(EventState& event, Mark mark);

inline bool IsComplete(const EventState& event) {
  Mark mark = event.mark.load(std::memory_order_acquire);
  return mark == 0 || IsReached(mark);
}

}  // namespace cistern::software

#endif  // CISTERN_SOFTWARE_EVENT_H_
