// When memory of a lane may be used: the stream order of an arena for native threads.
//
// A lane holds memory that was freed on one stream, and serves that stream without waiting. Each lane has a list of events,
// `before`: all of them come before the lane's memory may be used on another stream; those that are not `awaited` also before it
// may be used on its own.
//
// A free takes a number from a counter of its thread's arena before it calls the driver, and a wait after it has. So an event of a
// stream covers the waits and frees of that stream with smaller numbers, in whatever order the driver was called, and no driver
// is called under a lock.
//
// The context of the streams is current in all calls that take one. A call with a lock lets go of it while it calls the driver.
#ifndef CISTERN_ARENAS_LANE_ORDER_H_
#define CISTERN_ARENAS_LANE_ORDER_H_

#include <cstdint>
#include <mutex>
#include <vector>

#include "arenas/arena_events.h"
#include "arenas/thread_arena.h"

namespace cistern::arenas {

// When an event is recorded for a free: at the free; on the legacy default stream when another stream wants the
// memory, and elsewhere at the free, since nobody announces the end of a stream; never.
enum class DeallocationEvents { kEager = 0, kDeferred = 1, kOff = 2 };

class LaneOrder {
 public:
  LaneOrder(const DriverInUse& driver, DeallocationEvents policy, ArenaEvents& events)
      : driver_(driver), policy_(policy), events_(events) {}

  // kCapturing for a stream that is captured, and for the legacy default stream while one is that it waits for.
  Status RefuseCaptured(Stream stream) const;
  // A stream's identity, since the driver may give the handle of one that has ended to another.
  Status Identify(Stream stream, std::uint64_t* key) const;
  bool RecordsAtFree(Stream stream) const;
  Status AwaitAll(Stream stream, const std::vector<EventUse>& uses) const;

  // A lane's memory comes after what its stream was given until the number was taken. Consumes a user of the
  // event, which is null unless RecordsAtFree. There must be room in `before`.
  void NoteOrder(Lane& lane, std::uint64_t number, ArenaEvent* event);
  // Something was freed into the lane of a stream. The event is null if none is recorded, or the driver has refused it. There
  // must be room in `before`.
  void NoteFrees(ThreadArena& arena, Lane& lane, std::uint64_t number, ArenaEvent* event);

  // Before memory of a lane may be used on its own stream.
  Status AwaitOwn(ThreadArena& arena, Lane& lane, Stream stream, std::unique_lock<std::mutex>& lock);
  // Records the event of a lane of the legacy default stream. kCapturing if that would invalidate a capture.
  Status RecordLate(ThreadArena& arena, Lane& lane, std::unique_lock<std::mutex>& lock);
  // Replaces the events of the lane that belongs to no stream, to which each fold adds, by one that comes after them on `joining`.
  Status JoinEvents(Lane& common, Stream joining, std::unique_lock<std::mutex>& lock);

 private:
  const DriverInUse& driver_;
  const DeallocationEvents policy_;
  ArenaEvents& events_;
};

}  // namespace cistern::arenas

#endif  // CISTERN_ARENAS_LANE_ORDER_H_
