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
#include <memory>
#include <vector>

#include "cuda/driver_table.h"
#include "software/capture.h"
#include "software/handle_table.h"
#include "software/ipc.h"
#include "software/spin_lock.h"
#include "software/stream.h"

namespace cistern::software {

// Of an event that was last recorded in a capture. No stream has slot 0.
inline constexpr Mark kCapturedMark = 1;

struct alignas(64) EventState : HandleSlot {
  std::atomic<Mark> mark{0};  // 0: never recorded
  Device* device = nullptr;
  unsigned flags = 0;

  SpinLock time_lock;
  Mark timed_mark = 0;
  std::int64_t nanoseconds = 0;

  // Of an event that other processes can wait for: its slot, and recordings that have happened before
  // earlier ones. Guarded by time_lock.
  EventSlot* slot = nullptr;
  std::uint32_t slot_index = 0;
  std::uint64_t generation = 0;  // of the slot
  std::vector<std::uint64_t> early;
  // Of the last recording in a capture, which counts while the mark says so. Guarded by GraphMutex.
  std::unique_ptr<CapturePoint> captured;
  // Set if it is an event of another process.
  std::shared_ptr<const ForeignEvent> foreign;

  bool HasTiming() const { return (flags & kEventDisableTiming) == 0; }
};

using EventTable = HandleTable<EventState, HandleKind::kEvent>;
inline EventTable event_table;

Status CreateEvent(Device& device, unsigned flags, EventState** event);
Status DestroyEvent(EventState& event, std::uint64_t handle);
Status RecordEvent(EventState& event, StreamState& stream);
Status ElapsedTime(EventState& start, EventState& end, float* milliseconds);

// These run on the stream's thread.
void StampEvent(EventState& event, Mark mark);
void SignalEvent(EventState& event, std::uint64_t generation, std::uint64_t recording);

// An event of another process.
Status OpenForeignEvent(Device& device, ForeignEvent foreign, EventState** event);

inline bool IsCaptured(const EventState& event) { return event.mark.load(std::memory_order_acquire) == kCapturedMark; }

inline bool IsComplete(const EventState& event) {
  if (event.foreign != nullptr) return event.foreign->IsOver(event.foreign->Latest()) || event.foreign->file->HasOwnerEnded();
  Mark mark = event.mark.load(std::memory_order_acquire);
  return mark == 0 || IsReached(mark);
}

}  // namespace cistern::software

#endif  // CISTERN_SOFTWARE_EVENT_H_
