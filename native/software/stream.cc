#include "software/stream.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <utility>

#include "platform/lasting.h"
#include "platform/thread.h"
#include "software/capture.h"
#include "software/device.h"
#include "software/event.h"
#include "software/ipc.h"
#include "software/legacy_order.h"
#include "software/managed_memory.h"
#include "software/settings.h"
#include "software/software_device.h"
#include "software/write_gate.h"

namespace cistern::software {
namespace {

// Above the ids of the default streams in strict mode.
std::atomic<std::uint64_t> next_stream_id{3};
std::atomic<int> live_streams{0};

PageUser UserOf(const StreamState& stream) {
  const std::uint64_t handle = stream.role == StreamRole::kCreated  ? StreamTable::HandleOf(stream)
                               : stream.role == StreamRole::kLegacy ? 1
                                                                    : 2;
  return {stream.device->ordinal, handle};
}

struct Executor {
  const StreamState& stream;
  Mark mark;

  void operator()(const WaitWork& work) const { WaitForMark(work.mark); }
  void operator()(const ValueWork& work) const {
    // Nobody announces that the word is written. Polls often at first, and then at intervals of a
    // small part of the elapsed time.
    constexpr std::chrono::microseconds kLongest{200};
    std::chrono::microseconds pause{1};
    while (!work.IsReached()) {
      std::this_thread::sleep_for(pause);
      pause = std::min(pause + pause / 4 + std::chrono::microseconds{1}, kLongest);
    }
  }
  void operator()(const CopyWork& work) const { Run(work, stream); }
  void operator()(const FillWork& work) const { Run(work, stream); }
  void operator()(const PrefetchWork& work) const { MoveManaged(work.place, work.address, work.bytes, UserOf(stream)); }
  void operator()(const HostFunctionWork& work) const {
    // "Host functions … may be serialized."
    static Lasting<std::mutex> one_at_a_time;
    std::unique_lock<std::mutex> lock(*one_at_a_time, std::defer_lock);
    if (IsStrict()) lock.lock();
    thread_state.is_in_host_function = true;
    work.function(work.user_data);
    thread_state.is_in_host_function = false;
  }
  void operator()(const StampWork& work) const { StampEvent(*work.event, mark); }
  void operator()(const SignalWork& work) const { SignalEvent(*work.event, work.generation, work.recording); }
  void operator()(const ForeignWaitWork& work) const { work.event->Await(work.recording); }
  void operator()(const FreeWork& work) const { work.device->memory.FinishFree(work.block); }
  // Not with the work itself, which is destroyed under the stream's lock.
  void operator()(KeepWork& work) const { work.object.reset(); }
};

// Forgets the stream; the slot may be in use again before this returns.
void Retire(StreamState& stream) {
  stream.device->RemoveStream(&stream);
  stream_table.Recycle(stream);
}

void CountBusy(StreamState& stream, int change) {
  stream.device->busy_streams.fetch_add(change, std::memory_order_acq_rel);
  if (stream.is_blocking && stream.role != StreamRole::kLegacy) {
    stream.device->busy_blocking_streams.fetch_add(change, std::memory_order_acq_rel);
  }
}

void* RunStream(void* argument) {
  StreamState& stream = *static_cast<StreamState*>(argument);
  std::unique_lock<std::mutex> lock(stream.mutex);
  for (;;) {
    stream.work_arrived.wait(lock, [&stream] { return !stream.queue.empty() || stream.is_closing; });
    if (stream.queue.empty()) break;
    std::uint64_t count = stream.completed.load(std::memory_order_relaxed) + 1;
    {
      Work work = std::move(stream.queue.front());
      stream.queue.pop_front();
      lock.unlock();
      std::visit(Executor{stream, MakeMark(stream.index, count)}, work);
      lock.lock();
    }
    stream.completed.store(count, std::memory_order_release);
    if (stream.submitted.load(std::memory_order_relaxed) == count) CountBusy(stream, -1);
    if (stream.waiters > 0) stream.work_completed.notify_all();
  }
  stream.has_thread = false;
  Retire(stream);
  return nullptr;
}

bool StartStreamThread(StreamState& stream) {
  // Never joined: a process may end while a stream is stalled.
  stream.has_thread = StartThread(RunStream, &stream, "cistern-stream");
  return stream.has_thread;
}

// The stream's mutex must be held.
Status EnqueueLocked(StreamState& stream, Work work, Mark* mark) {
  if (stream.is_closing) return kErrorInvalidHandle;
  if (!stream.has_thread && !StartStreamThread(stream)) return kErrorOutOfMemory;
  stream.queue.push_back(std::move(work));
  std::uint64_t submitted = stream.submitted.load(std::memory_order_relaxed);
  if (submitted == stream.completed.load(std::memory_order_relaxed)) CountBusy(stream, 1);
  stream.submitted.store(submitted + 1, std::memory_order_release);
  if (stream.queue.size() == 1) stream.work_arrived.notify_one();
  if (mark != nullptr) *mark = MakeMark(stream.index, submitted + 1);
  return kSuccess;
}

Status Enqueue(StreamState& stream, Work work, Mark* mark) {
  std::lock_guard<std::mutex> guard(stream.mutex);
  return EnqueueLocked(stream, std::move(work), mark);
}

void NoteOrder(StreamState& stream, Mark mark) {
  constexpr std::size_t kPruneFrom = 64;
  std::lock_guard<SpinLock> guard(stream.order_lock);
  std::vector<Mark>& known = stream.ordered_after;
  for (Mark& latest : known) {
    if (MarkSlot(latest) != MarkSlot(mark)) continue;
    latest = std::max(latest, mark);
    return;
  }
  if (known.size() >= kPruneFrom && known.size() == known.capacity()) {
    known.erase(std::remove_if(known.begin(), known.end(), IsReached), known.end());
  }
  known.push_back(mark);
}

// Destroys the thread's default streams when the thread ends.
struct PerThreadStreams {
  StreamState* streams[kMaxDevices] = {};
  std::uint64_t handles[kMaxDevices] = {};
  ~PerThreadStreams() {
    for (int i = 0; i < kMaxDevices; ++i) {
      if (streams[i] != nullptr) CloseStream(*streams[i], handles[i]);
    }
  }
};

}  // namespace

int LiveStreams() { return live_streams.load(std::memory_order_relaxed); }

Status CreateStream(Device& device, StreamRole role, unsigned flags, int priority, StreamState** stream) {
  StreamState* state = stream_table.Take();
  if (state == nullptr) return kErrorOutOfMemory;
  {
    // The thread that used the slot last may be about to end, still holding the lock.
    std::lock_guard<std::mutex> guard(state->mutex);
    state->device = &device;
    state->is_blocking = (flags & kStreamNonBlocking) == 0;
    state->role = role;
    state->flags = flags;
    state->priority = priority;
    state->id = next_stream_id.fetch_add(1, std::memory_order_relaxed);
    state->is_closing = false;
    std::lock_guard<SpinLock> order_guard(state->order_lock);
    state->ordered_after.clear();
  }
  device.AddStream(state);
  if (role == StreamRole::kCreated) live_streams.fetch_add(1, std::memory_order_relaxed);
  stream_table.Publish(*state);
  *stream = state;
  return kSuccess;
}

Status CloseStream(StreamState& stream, std::uint64_t handle) {
  if (!StreamTable::Close(stream, handle)) return kErrorInvalidHandle;
  if (stream.role == StreamRole::kCreated) live_streams.fetch_sub(1, std::memory_order_relaxed);
  if (stream.is_capturing.load(std::memory_order_acquire)) LeaveCapture(stream);
  std::unique_lock<std::mutex> lock(stream.mutex);
  stream.is_closing = true;
  if (stream.has_thread) {
    stream.work_arrived.notify_one();
  } else {
    Retire(stream);
  }
  return kSuccess;
}

Status PerThreadStreamOf(Device& device, StreamState** stream) {
  static thread_local PerThreadStreams own;
  StreamState*& slot = own.streams[device.ordinal];
  if (slot == nullptr) {
    Status status = CreateStream(device, StreamRole::kPerThread, kStreamDefault, 0, &slot);
    if (status != kSuccess) return status;
    own.handles[device.ordinal] = slot->handle.load(std::memory_order_relaxed);
  }
  *stream = slot;
  return kSuccess;
}

Status Submit(StreamState& stream, Work work, Mark* mark) {
  Status status = OrderWithLegacy(stream);
  return status == kSuccess ? Enqueue(stream, std::move(work), mark) : status;
}

Status SubmitAll(StreamState& stream, std::vector<Work> works, Mark* mark) {
  Status status = OrderWithLegacy(stream);
  std::lock_guard<std::mutex> guard(stream.mutex);
  for (Work& work : works) {
    // The first one starts the thread if there is none; after it no other fails.
    if (status == kSuccess) status = EnqueueLocked(stream, std::move(work), mark);
  }
  return status;
}

Status SubmitWait(StreamState& stream, Mark mark) {
  if (MarkSlot(mark) == stream.index || OrderedAfterCount(stream, MarkSlot(mark)) >= MarkCount(mark)) return kSuccess;
  if (!IsReached(mark)) {
    Status status = Enqueue(stream, WaitWork{mark}, nullptr);
    if (status != kSuccess) return status;
  }
  // Only now: another thread that finds it noted skips the wait.
  NoteOrder(stream, mark);
  return kSuccess;
}

Status OrderLegacyAfterBlocking(StreamState& legacy) {
  for (Mark mark : legacy.device->PendingMarks(true)) {
    Status status = SubmitWait(legacy, mark);
    if (status != kSuccess) return status;
  }
  return kSuccess;
}

std::uint64_t OrderedAfterCount(StreamState& stream, std::uint32_t slot) {
  std::lock_guard<SpinLock> guard(stream.order_lock);
  for (Mark known : stream.ordered_after) {
    if (MarkSlot(known) == slot) return MarkCount(known);
  }
  return 0;
}

void WaitForMark(Mark mark) {
  if (IsReached(mark)) return;
  StreamState& stream = stream_table.At(MarkSlot(mark));
  std::unique_lock<std::mutex> lock(stream.mutex);
  ++stream.waiters;
  stream.work_completed.wait(lock, [mark] { return IsReached(mark); });
  --stream.waiters;
}

void Run(const CopyWork& work, const StreamState& stream) {
  const int device = stream.device->ordinal;
  const auto address = [](const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer); };
  if (work.reads_managed) AccessManaged(device, address(work.source), work.bytes, false, UserOf(stream));
  if (work.writes_managed) AccessManaged(device, address(work.destination), work.bytes, true, UserOf(stream));
  {
    const WriteGate::Writer writer(write_gate, stream.index);
    std::memmove(work.destination, work.source, work.bytes);
  }
  std::free(work.staged);
}

void Run(const FillWork& work, const StreamState& stream) {
  const std::uint64_t bytes = work.is_bytes ? work.count : work.count * sizeof work.value;
  if (work.writes_managed) {
    AccessManaged(stream.device->ordinal, reinterpret_cast<std::uintptr_t>(work.destination), bytes, true, UserOf(stream));
  }
  const WriteGate::Writer writer(write_gate, stream.index);
  if (work.is_bytes) {
    std::memset(work.destination, static_cast<int>(work.value), work.count);
  } else {
    std::fill_n(static_cast<std::uint32_t*>(work.destination), work.count, work.value);
  }
}

}  // namespace cistern::software
