// Streams: work in order, each on its own thread, with a position in time that everything else
// refers to.
//
// Each stream slot counts what was submitted to it and what has completed. A pair (slot, count) is
// a *mark*: "everything submitted to this stream up to here". An event's recording is a mark, a
// wait is for a mark, memory freed on a stream carries one, and all of them ask the same question:
// completed >= count? The counters of a slot continue when another stream takes it over, so a mark
// outlives its stream: a slot is free only once all its work has completed, hence every mark of an
// ended stream has been reached.
//
//     submitted  ------------------------> 7
//     completed  -----------> 4                     mark (slot, 5): not reached; mark (slot, 4): reached
//
// Invariant: completed <= submitted; a stream is idle if they are equal. Then records, waits and
// pool calls need no thread at all. A thread is started by the first work that must be queued, and
// ends when the stream is destroyed and its queue is empty.
//
// Priorities are stored and reported; the threads are scheduled alike.
//
// The legacy default stream waits for what was submitted earlier to the device's blocking streams,
// and they wait for it; OrderWithLegacy submits those waits. A wait always names a count that was
// submitted before it, so there can be no cycle.
//
// Locks: a stream's mutex, then the device's list of streams, then the handle table.
#ifndef CISTERN_SOFTWARE_STREAM_H_
#define CISTERN_SOFTWARE_STREAM_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <variant>
#include <vector>

#include "cuda/driver_table.h"
#include "software/handle_table.h"
#include "software/spin_lock.h"

namespace cistern::software {

class Device;
struct EventState;
struct ForeignEvent;

// [stream slot 20 bits | count 44 bits]; 0 is no mark.
using Mark = std::uint64_t;
inline constexpr int kMarkCountBits = 44;
inline Mark MakeMark(std::uint32_t slot, std::uint64_t count) { return std::uint64_t{slot} << kMarkCountBits | count; }
inline std::uint32_t MarkSlot(Mark mark) { return static_cast<std::uint32_t>(mark >> kMarkCountBits); }
inline std::uint64_t MarkCount(Mark mark) { return mark & ((std::uint64_t{1} << kMarkCountBits) - 1); }

struct WaitWork {
  Mark mark;
};
struct CopyWork {
  void* destination;
  const void* source;
  std::size_t bytes;
  void* staged;  // freed afterwards
  bool writes_managed;
  bool reads_managed;
};
struct FillWork {
  void* destination;
  std::uint32_t value;
  std::size_t count;
  bool is_bytes;
  bool writes_managed;
};
// Moves pages of managed memory to a place (managed_memory.h).
struct PrefetchWork {
  std::uint64_t address;
  std::uint64_t bytes;
  int place;
};
// Lasts until (int32_t)(*word - value) >= 0.
struct ValueWork {
  const std::atomic<std::uint32_t>* word;
  std::uint32_t value;
  bool IsReached() const { return static_cast<std::int32_t>(word->load(std::memory_order_acquire) - value) >= 0; }
};
struct HostFunctionWork {
  HostFunction function;
  void* user_data;
};
// Writes the time of a recording into its event, unless the event has been recorded again.
struct StampWork {
  EventState* event;
};
// Tells other processes that a recording has happened.
struct SignalWork {
  EventState* event;
  std::uint64_t generation;
  std::uint64_t recording;
};
// Lasts until a recording of another process has happened.
struct ForeignWaitWork {
  std::shared_ptr<const ForeignEvent> event;
  std::uint64_t recording;
};
// Gives plain memory back that was freed in stream order.
struct FreeWork {
  Device* device;
  std::uint32_t block;
};
// Keeps what earlier work of the stream uses.
struct KeepWork {
  std::shared_ptr<const void> object;
};
using Work = std::variant<WaitWork, ValueWork, CopyWork, FillWork, PrefetchWork, HostFunctionWork, StampWork, SignalWork, ForeignWaitWork,
                          FreeWork, KeepWork>;

enum class StreamRole { kCreated, kLegacy, kPerThread };

struct alignas(64) StreamState : HandleSlot {
  std::atomic<std::uint64_t> submitted{0};  // written under mutex
  std::atomic<std::uint64_t> completed{0};  // written under mutex
  Device* device = nullptr;
  bool is_blocking = true;  // ordered with the legacy stream
  StreamRole role = StreamRole::kCreated;
  unsigned flags = 0;
  int priority = 0;
  std::uint64_t id = 0;
  std::atomic<bool> is_capturing{false};  // capture.h

  // What work on this stream comes after, by its own waits: at most one mark per other stream, the
  // latest.
  SpinLock order_lock;
  std::vector<Mark> ordered_after;

  std::mutex mutex;
  std::condition_variable work_arrived;
  std::condition_variable work_completed;
  std::deque<Work> queue;
  int waiters = 0;
  bool has_thread = false;
  bool is_closing = false;
};

using StreamTable = HandleTable<StreamState, HandleKind::kStream>;
inline StreamTable stream_table;

inline bool IsIdle(const StreamState& stream) {
  return stream.completed.load(std::memory_order_acquire) == stream.submitted.load(std::memory_order_acquire);
}
inline Mark CurrentMark(const StreamState& stream) { return MakeMark(stream.index, stream.submitted.load(std::memory_order_acquire)); }
inline bool IsReached(Mark mark) { return stream_table.At(MarkSlot(mark)).completed.load(std::memory_order_acquire) >= MarkCount(mark); }

// Creates a stream and makes its handle valid.
Status CreateStream(Device& device, StreamRole role, unsigned flags, int priority, StreamState** stream);

// Makes the handle invalid. Work in the queue still runs.
Status CloseStream(StreamState& stream, std::uint64_t handle);

// The calling thread's own default stream of a device; it is destroyed with the thread.
Status PerThreadStreamOf(Device& device, StreamState** stream);

// Queues work behind everything submitted, and behind what the legacy stream's rules put before it.
// Unless null, *mark receives the work's own mark.
Status Submit(StreamState& stream, Work work, Mark* mark);

// The same for several works, between which nothing else comes; *mark is the last one's.
Status SubmitAll(StreamState& stream, std::vector<Work> works, Mark* mark);

// Work submitted to the stream from now on starts once the mark is reached.
Status SubmitWait(StreamState& stream, Mark mark);

// The latest count of a slot that the stream has waited for, 0 if none.
std::uint64_t OrderedAfterCount(StreamState& stream, std::uint32_t slot);

void WaitForMark(Mark mark);

// Copies and fills on the calling thread, as the stream.
void Run(const CopyWork& work, const StreamState& stream);
void Run(const FillWork& work, const StreamState& stream);

}  // namespace cistern::software

#endif  // CISTERN_SOFTWARE_STREAM_H_
