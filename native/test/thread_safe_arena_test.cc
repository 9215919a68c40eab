// Arenas for native threads: what a thread frees may be used by others in order only, and nothing is lost,
// however threads come, free each other's memory and end.
#include <cstring>
#include <deque>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "order/checked_table.h"
#include "thread_safe_fixture.h"

namespace cistern::test {
namespace {

// Whether a stream that could have run by now has not.
bool StillWaits(Stream stream) {
  SleepMilliseconds(20);
  return driver.StreamQuery(stream) == kErrorNotReady;
}

// Runs a body on a thread of its own, with the device current.
template <typename Body>
void OnThread(Body&& body) {
  std::thread([&] {
    OnDevice device(0);
    body();
  }).join();
}

}  // namespace

TEST("a thread-safe arena allocates, frees and counts, and ends its arena with the last tenant") {
  const int ended = ended_arenas;
  Global global(kMiB);
  {
    Resource resource(global);
    TestStream stream;
    const DevicePointer first = resource.Allocate(1000, stream);
    CHECK(first % 256 == 0);
    CHECK(resource.Allocate(0, stream) == 0);
    const DevicePointer aligned = resource.Allocate(300, stream, 4096);
    CHECK(aligned % 4096 == 0);
    CHECK(resource.Statistics().live_bytes == 1300);
    CHECK(resource.Statistics().live_allocations == 2);
    CHECK(resource.Statistics().reserved_bytes == kSuperblock);
    resource.Free(first, 1000, stream);
    CHECK(resource.Allocate(1000, stream) == first);
    resource.Free(first, 1000, stream);
    resource.Free(aligned, 300, stream);
    resource.Free(0, 0, stream);
    CHECK(resource.Statistics().live_allocations == 0);
    global.Close();
    CHECK(ended_arenas == ended);
    stream.Synchronize();
  }
  CHECK(ended_arenas == ended + 1);
}

TEST("statistics of a thread-safe arena fill what a caller of an older header has, and no more") {
  Global global(kMiB);
  Resource resource(global);
  TestStream stream;
  const DevicePointer block = resource.Allocate(1000, stream);
  using Statistics = cistern_resource_statistics;
  for (const std::size_t size : {sizeof(std::size_t), offsetof(Statistics, live_allocations), offsetof(Statistics, reserved_bytes),
                                 offsetof(Statistics, reserved_bytes) + 4, sizeof(Statistics)}) {
    Statistics statistics = {size, 1, 2, 3};
    resource.c->statistics(resource.c->state, &statistics);
    CHECK(statistics.size == size);
    CHECK(statistics.live_bytes == (size >= offsetof(Statistics, live_allocations) ? 1000 : 1));
    CHECK(statistics.live_allocations == (size >= offsetof(Statistics, reserved_bytes) ? 1 : 2));
    CHECK(statistics.reserved_bytes == (size >= sizeof(Statistics) ? kSuperblock : 3));
  }
  resource.Free(block, 1000, stream);
}

TEST("a thread-safe arena refuses wrong pointers, sizes and alignments in words, and stays as it was") {
  Global global(kMiB);
  Resource resource(global);
  TestStream stream;
  const DevicePointer block = resource.Allocate(1000, stream);
  DevicePointer pointer = 1;
  CHECK(resource.TryFree(block, 999, stream) == CISTERN_INVALID_POINTER);
  CHECK(resource.LastError().find("was allocated with 1000 bytes, and freed with 999") != std::string::npos);
  CHECK(resource.TryFree(block + 256, 744, stream) == CISTERN_INVALID_POINTER);
  CHECK(resource.TryFree(8, 1000, stream) == CISTERN_INVALID_POINTER);
  CHECK(resource.LastError() == "0x8 is no allocation of this resource, or was freed already");
  for (const std::uint64_t alignment : {std::uint64_t{0}, std::uint64_t{3}, 2 * kSuperblock}) {
    CHECK(resource.TryAllocate(8, stream, &pointer, alignment) == CISTERN_INVALID_ARGUMENT);
    CHECK(pointer == 0);
  }
  CHECK(resource.LastError() == "the alignment must be a power of two up to 65536, got 131072");
  CHECK(resource.TryAllocate(2 * kMiB, stream, &pointer) == CISTERN_OUT_OF_MEMORY);
  CHECK(resource.TryAllocate(~std::uint64_t{0}, stream, &pointer) == CISTERN_OUT_OF_MEMORY);
  // Each thread has its own.
  OnThread([&] { CHECK(resource.LastError() == "no call has failed on this thread"); });
  CHECK(resource.Statistics().live_bytes == 1000);
  resource.Free(block, 1000, stream);
  CHECK(resource.TryFree(block, 1000, stream) == CISTERN_INVALID_POINTER);
}

TEST("memory freed on a stream serves it at once, and another stream after its work") {
  for (const DeallocationEvents events : {DeallocationEvents::kEager, DeallocationEvents::kDeferred}) {
    Global global(kSuperblock);
    Resource resource(global, events);
    TestStream first, second;
    Gate gate;
    const DevicePointer block = resource.Allocate(kSuperblock, first);
    gate.Close(first);
    CHECK_OK(driver.MemsetD8Async(block, 1, kSuperblock, first));
    resource.Free(block, kSuperblock, first);
    CHECK(resource.Allocate(kSuperblock, first) == block);
    resource.Free(block, kSuperblock, first);
    CHECK(resource.Allocate(kSuperblock, second) == block);
    CHECK_OK(driver.MemsetD8Async(block, 2, kSuperblock, second));
    CHECK(StillWaits(second));
    gate.Open();
    second.Synchronize();
    CHECK(*reinterpret_cast<const unsigned char*>(block) == 2);
    resource.Free(block, kSuperblock, second);
  }
}

TEST("memory of the legacy default stream is ordered too, under every policy") {
  for (const DeallocationEvents events : {DeallocationEvents::kEager, DeallocationEvents::kDeferred, DeallocationEvents::kOff}) {
    Global global(kSuperblock);
    Resource resource(global, events);
    TestStream stream;
    DevicePointer block = resource.Allocate(kSuperblock, nullptr);
    CHECK_OK(driver.MemsetD8Async(block, 1, kSuperblock, LegacyStream()));
    resource.Free(block, kSuperblock, LegacyStream());
    block = resource.Allocate(kSuperblock, stream);
    CHECK_OK(driver.MemsetD8Async(block, 2, kSuperblock, stream));
    stream.Synchronize();
    CHECK(*reinterpret_cast<const unsigned char*>(block) == 2);
    CHECK(resource.waits == (events == DeallocationEvents::kOff ? 1 : 0));
    resource.Free(block, kSuperblock, stream);
  }
}

TEST("memory that was freed on the legacy default stream without an event has one before it serves another stream") {
  Global global(kSuperblock);
  Resource resource(global, DeallocationEvents::kDeferred);
  TestStream stream;
  Gate gate;
  const DevicePointer block = resource.Allocate(kSuperblock, LegacyStream());
  gate.Close(LegacyStream());
  resource.Free(block, kSuperblock, LegacyStream());
  CHECK(resource.Allocate(kSuperblock, stream) == block);
  CHECK_OK(driver.MemsetD8Async(block, 2, kSuperblock, stream));
  CHECK(StillWaits(stream));
  gate.Open();
  stream.Synchronize();
  resource.Free(block, kSuperblock, stream);
}

TEST("without events, memory stays with its stream until the device was waited for") {
  Global global(2 * kSuperblock);
  Resource resource(global, DeallocationEvents::kOff);
  TestStream first, second;
  const DevicePointer block = resource.Allocate(kSuperblock, first);
  resource.Free(block, kSuperblock, first);
  // There is another superblock.
  const DevicePointer other = resource.Allocate(kSuperblock, second);
  CHECK(other != block);
  CHECK(resource.waits == 0);
  CHECK(resource.Allocate(kSuperblock, second) == block);
  CHECK(resource.waits == 1);
  resource.Free(block, kSuperblock, second);
  resource.Free(other, kSuperblock, second);
}

TEST("what a resource without events has freed serves another one that has run out, after a wait for the device") {
  Global global(2 * kSuperblock);
  Resource off(global, DeallocationEvents::kOff), other(global);
  TestStream first, second;
  off.Free(off.Allocate(2 * kSuperblock, first), 2 * kSuperblock, first);
  const DevicePointer block = other.Allocate(2 * kSuperblock, second);
  CHECK(off.waits == 1);
  CHECK(other.waits == 0);
  other.Free(block, 2 * kSuperblock, second);
}

TEST("a stream with the handle of an ended one waits for what that had queued") {
  Global global(kSuperblock);
  Resource resource(global);
  Gate gate;
  Stream ended = nullptr;
  CHECK_OK(driver.StreamCreateWithPriority(&ended, kStreamNonBlocking, 0));
  const DevicePointer block = resource.Allocate(kSuperblock, ended);
  gate.Close(ended);
  resource.Free(block, kSuperblock, ended);
  CHECK_OK(driver.StreamDestroy(ended));
  TestStream next;
  CHECK(resource.Allocate(kSuperblock, next) == block);
  CHECK_OK(driver.MemsetD8Async(block, 2, kSuperblock, next));
  CHECK(StillWaits(next));
  gate.Open();
  next.Synchronize();
  resource.Free(block, kSuperblock, next);
}

namespace {

// The driver under test, with a few of its functions watched.
struct Watched {
  static inline unsigned long long id_offset = 0;
  static inline std::atomic<int> waits{0};
  static inline std::atomic<int> records{0};
  static inline std::atomic<int> created{0};
  static inline std::atomic<bool> refuses_records{false};
  static inline std::atomic<bool> refuses_ends{false};
  static inline thread_local bool refuses_waits = false;
  static inline thread_local void (*after_record)() = nullptr;
  static inline thread_local std::function<void()> before_query;
  static inline thread_local std::function<void()> before_wait;  // only once

  static Status StreamIsCapturing(Stream stream, int* capture) {
    if (before_query) before_query();
    return driver.StreamIsCapturing(stream, capture);
  }
  static Status StreamGetId(Stream stream, unsigned long long* id) {
    const Status status = driver.StreamGetId(stream, id);
    *id += id_offset;
    return status;
  }
  static Status StreamWaitEvent(Stream stream, Event event, unsigned flags) {
    waits += 1;
    if (before_wait) std::exchange(before_wait, nullptr)();
    if (refuses_waits) return kErrorUnknown;
    return driver.StreamWaitEvent(stream, event, flags);
  }
  static Status EventRecord(Event event, Stream stream) {
    if (refuses_records) return kErrorUnknown;
    records += 1;
    const Status status = driver.EventRecord(event, stream);
    if (after_record != nullptr) after_record();
    return status;
  }
  static Status EventCreate(Event* event, unsigned flags) {
    created += 1;
    return driver.EventCreate(event, flags);
  }
  static Status EventDestroy(Event event) { return refuses_ends ? Status{kErrorUnknown} : driver.EventDestroy(event); }
  static Status StreamDestroy(Stream stream) { return refuses_ends ? Status{kErrorUnknown} : driver.StreamDestroy(stream); }
  static const DriverTable& Table() {
    static DriverTable table = [] {
      DriverTable copy = driver;
      copy.StreamGetId = StreamGetId;
      copy.StreamIsCapturing = StreamIsCapturing;
      copy.StreamWaitEvent = StreamWaitEvent;
      copy.EventRecord = EventRecord;
      copy.EventCreate = EventCreate;
      copy.EventDestroy = EventDestroy;
      copy.StreamDestroy = StreamDestroy;
      return copy;
    }();
    return table;
  }
};

// A place where one thread stops until another lets it go on.
struct Stop {
  std::mutex mutex;
  std::condition_variable changed;
  bool is_reached = false;
  bool is_open = false;

  void Pass() {
    std::unique_lock<std::mutex> lock(mutex);
    is_reached = true;
    changed.notify_all();
    changed.wait(lock, [this] { return is_open; });
  }
  void AwaitReached() {
    std::unique_lock<std::mutex> lock(mutex);
    changed.wait(lock, [this] { return is_reached; });
  }
  void Open() {
    const std::lock_guard<std::mutex> lock(mutex);
    is_open = true;
    changed.notify_all();
  }
};
Stop* stop = nullptr;

}  // namespace

TEST("a stream is known by its id, as its handle may be that of an ended one") {
  Global global(kSuperblock);
  Resource resource(global, DeallocationEvents::kEager, Watched::Table());
  TestStream stream;
  resource.Free(resource.Allocate(kSuperblock, stream), kSuperblock, stream);
  Watched::waits = 0;
  resource.Free(resource.Allocate(kSuperblock, stream), kSuperblock, stream);
  CHECK(Watched::waits == 0);
  Watched::id_offset = 1000000;
  resource.Free(resource.Allocate(kSuperblock, stream), kSuperblock, stream);
  Watched::id_offset = 0;
  CHECK(Watched::waits == 1);
}

TEST("of two frees on one stream, the later one's event counts, whichever enters it first") {
  Global global(kSuperblock);
  Resource resource(global, DeallocationEvents::kEager, Watched::Table());
  TestStream stream, other;
  Gate gate;
  const DevicePointer first = resource.Allocate(kSuperblock / 2, stream);
  const DevicePointer second = resource.Allocate(kSuperblock / 2, stream);
  Stop here;
  stop = &here;
  std::thread slow([&] {
    OnDevice device(0);
    Watched::after_record = [] { stop->Pass(); };
    resource.Free(first, kSuperblock / 2, stream);
  });
  here.AwaitReached();
  gate.Close(stream);  // what the second free comes after
  resource.Free(second, kSuperblock / 2, stream);
  here.Open();
  slow.join();
  const DevicePointer both = resource.Allocate(kSuperblock, other);
  CHECK_OK(driver.MemsetD8Async(both, 1, kSuperblock, other));
  CHECK(StillWaits(other));
  gate.Open();
  other.Synchronize();
  resource.Free(both, kSuperblock, other);
}

TEST("what is freed on the legacy default stream while its event is recorded waits for another one") {
  Global global(kSuperblock);
  Resource resource(global, DeallocationEvents::kDeferred, Watched::Table());
  TestStream other;
  Gate gate;
  const DevicePointer first = resource.Allocate(kSuperblock / 2, LegacyStream());
  const DevicePointer second = resource.Allocate(kSuperblock / 2, LegacyStream());
  resource.Free(first, kSuperblock / 2, LegacyStream());
  Stop here;
  stop = &here;
  DevicePointer both = 0;
  std::thread slow([&] {
    OnDevice device(0);
    Watched::after_record = [] { stop->Pass(); };
    both = resource.Allocate(kSuperblock, other);
  });
  here.AwaitReached();
  gate.Close(LegacyStream());
  resource.Free(second, kSuperblock / 2, LegacyStream());
  here.Open();
  slow.join();
  CHECK_OK(driver.MemsetD8Async(both, 1, kSuperblock, other));
  CHECK(StillWaits(other));
  gate.Open();
  other.Synchronize();
  resource.Free(both, kSuperblock, other);
}

TEST("what the driver refuses to take back at the end of an arena is left to whoever tries again") {
  Global global(kSuperblock);
  TestStream stream;
  const std::size_t events = left_events;
  const int streams = left_streams;
  {
    Resource resource(global, DeallocationEvents::kEager, Watched::Table());
    resource.Free(resource.Allocate(1000, stream), 1000, stream);
    Watched::refuses_ends = true;
  }
  Watched::refuses_ends = false;
  CHECK(left_events == events + 1);
  CHECK(left_streams == streams + 1);
}

TEST("what is joined from several lanes waits for all of them, also on a stream that takes the rest of it") {
  Global global(3 * kSuperblock);
  Resource resource(global, DeallocationEvents::kEager, Watched::Table());
  TestStream stream, slow, quick, other;
  Gate gate;
  const DevicePointer own = resource.Allocate(kSuperblock, stream);
  const DevicePointer first = resource.Allocate(kSuperblock, slow);
  const DevicePointer second = resource.Allocate(kSuperblock, quick);
  CHECK(second == first + kSuperblock);
  gate.Close(slow);
  resource.Free(first, kSuperblock, slow);
  resource.Free(second, kSuperblock, quick);
  // When the stream is about to wait, another thread frees on it: the event of that free comes before the wait, and enters
  // the lane after it.
  Stop here;
  stop = &here;
  std::thread freeing;
  Watched::before_wait = [&] {
    freeing = std::thread([&] {
      OnDevice device(0);
      Watched::after_record = [] { stop->Pass(); };
      resource.Free(own, kSuperblock, stream);
    });
    here.AwaitReached();
  };
  const DevicePointer both = resource.Allocate(kSuperblock + kSuperblock / 2, stream);
  here.Open();
  freeing.join();
  CHECK(both == first);
  const DevicePointer rest = resource.Allocate(kSuperblock / 2, other);
  CHECK(rest == second + kSuperblock / 2);
  for (TestStream* const each : {&stream, &other}) CHECK_OK(driver.MemsetD8Async(each == &stream ? both : rest, 1, 256, *each));
  CHECK(StillWaits(stream));
  CHECK(StillWaits(other));
  gate.Open();
  stream.Synchronize();
  other.Synchronize();
  resource.Free(both, kSuperblock + kSuperblock / 2, stream);
  resource.Free(rest, kSuperblock / 2, other);
}

TEST("once another lane has joined a lane's memory, a later free on its stream leaves the order of that memory") {
  Global global(3 * kSuperblock);
  Resource resource(global);
  TestStream stream, slow, quick, other;
  Gate gate;
  const DevicePointer first = resource.Allocate(kSuperblock / 2, stream);
  const DevicePointer second = resource.Allocate(kSuperblock / 2, slow);
  CHECK(second == first + kSuperblock / 2);
  DevicePointer of_slow = resource.Allocate(kSuperblock, slow);
  DevicePointer of_quick = resource.Allocate(kSuperblock, quick);
  gate.Close(slow);
  CHECK_OK(driver.MemsetD8Async(second, 1, kSuperblock / 2, slow));
  resource.Free(first, kSuperblock / 2, stream);
  resource.Free(second, kSuperblock / 2, slow);
  const std::uint64_t most = kSuperblock - 256;
  CHECK(resource.Allocate(most, stream) == first);
  // The event that the rest comes after is not the slow stream's to release, so that the quick one would record it again.
  resource.Free(of_slow, kSuperblock, slow);
  resource.Free(of_quick, kSuperblock, quick);
  of_slow = resource.Allocate(kSuperblock, slow);
  of_quick = resource.Allocate(kSuperblock, quick);
  const DevicePointer rest = resource.Allocate(256, other);
  CHECK(rest == first + most);
  CHECK_OK(driver.MemsetD8Async(rest, 2, 256, other));
  CHECK(StillWaits(other));
  gate.Open();
  for (const TestStream* const each : {&slow, &stream, &other}) each->Synchronize();
  CHECK(*reinterpret_cast<const unsigned char*>(rest) == 2);
  resource.Free(rest, 256, other);
  resource.Free(first, most, stream);
  resource.Free(of_slow, kSuperblock, slow);
  resource.Free(of_quick, kSuperblock, quick);
}

TEST("a take that the driver refuses puts memory back into its lane, which another thread's give-back has let be") {
  Global global(kSuperblock);
  Resource resource(global, DeallocationEvents::kEager, Watched::Table());
  TestStream slow, stream, other;
  Gate gate;
  const DevicePointer block = resource.Allocate(kSuperblock, slow);
  gate.Close(slow);
  CHECK_OK(driver.MemsetD8Async(block, 1, kSuperblock, slow));
  resource.Free(block, kSuperblock, slow);
  Watched::before_wait = [&] { OnThread([&] { resource.arena.lock()->GiveBack(false); }); };
  Watched::refuses_waits = true;
  DevicePointer pointer = 0;
  CHECK(resource.TryAllocate(kSuperblock, stream, &pointer) == CISTERN_DRIVER_ERROR);
  Watched::refuses_waits = false;
  CHECK(resource.Allocate(kSuperblock, other) == block);
  CHECK_OK(driver.MemsetD8Async(block, 2, kSuperblock, other));
  CHECK(StillWaits(other));
  gate.Open();
  other.Synchronize();
  CHECK(*reinterpret_cast<const unsigned char*>(block) == 2);
  resource.Free(block, kSuperblock, other);
}

TEST("memory that a stream has joined, but may not wait for yet, serves it after the next wait, also beside a give-back") {
  Global global(kSuperblock);
  Resource resource(global, DeallocationEvents::kEager, Watched::Table());
  TestStream slow, stream;
  Gate gate;
  const DevicePointer first = resource.Allocate(kSuperblock / 2, slow);
  const DevicePointer second = resource.Allocate(kSuperblock / 2, stream);
  gate.Close(slow);
  CHECK_OK(driver.MemsetD8Async(first, 1, kSuperblock / 2, slow));
  resource.Free(first, kSuperblock / 2, slow);
  resource.Free(second, kSuperblock / 2, stream);
  Watched::refuses_waits = true;
  DevicePointer pointer = 0;
  CHECK(resource.TryAllocate(kSuperblock, stream, &pointer) == CISTERN_DRIVER_ERROR);
  Watched::refuses_waits = false;
  Watched::before_wait = [&] { OnThread([&] { resource.arena.lock()->GiveBack(false); }); };
  CHECK(resource.Allocate(kSuperblock, stream) == first);
  CHECK_OK(driver.MemsetD8Async(first, 2, kSuperblock, stream));
  CHECK(StillWaits(stream));
  gate.Open();
  stream.Synchronize();
  CHECK(*reinterpret_cast<const unsigned char*>(first) == 2);
  resource.Free(first, kSuperblock, stream);
}

TEST("memory that a stream has joined, but may not wait for yet, keeps its order when the stream frees more") {
  Global global(2 * kSuperblock);
  Resource resource(global, DeallocationEvents::kEager, Watched::Table());
  TestStream slow, stream, other;
  Gate gate;
  const DevicePointer first = resource.Allocate(kSuperblock / 2, slow);
  const DevicePointer second = resource.Allocate(kSuperblock / 2, stream);
  const DevicePointer third = resource.Allocate(kSuperblock, stream);
  gate.Close(slow);
  CHECK_OK(driver.MemsetD8Async(first, 1, kSuperblock / 2, slow));
  resource.Free(first, kSuperblock / 2, slow);
  resource.Free(second, kSuperblock / 2, stream);
  Watched::refuses_waits = true;
  DevicePointer pointer = 0;
  CHECK(resource.TryAllocate(kSuperblock, stream, &pointer) == CISTERN_DRIVER_ERROR);
  Watched::refuses_waits = false;
  resource.Free(third, kSuperblock, stream);
  const DevicePointer all = resource.Allocate(2 * kSuperblock, other);
  CHECK_OK(driver.MemsetD8Async(all, 2, 2 * kSuperblock, other));
  CHECK(StillWaits(other));
  gate.Open();
  other.Synchronize();
  CHECK(*reinterpret_cast<const unsigned char*>(first) == 2);
  resource.Free(all, 2 * kSuperblock, other);
}

namespace {

// Calls a function at the end of its thread. A thread reaches it before its first call of an arena, whose part of the thread
// has then ended.
struct AtEndOfThread {
  std::function<void()> call;
  ~AtEndOfThread() {
    if (call) call();
  }
};
thread_local AtEndOfThread at_end_of_thread;

}  // namespace

TEST("a take that the driver refuses puts memory back with its order, although another thread has joined its lane") {
  Global global(kSuperblock);
  Resource resource(global, DeallocationEvents::kEager, Watched::Table());
  TestStream slow, stream, joining, other;
  Gate gate;
  DevicePointer pointer = 0;
  // The next thread goes on with the index of one that has ended, even while that has let go of its lock.
  OnThread([&] {
    Watched::before_query = nullptr;
    Watched::before_wait = nullptr;
    at_end_of_thread.call = [&] {
      OnDevice device(0);
      const DevicePointer block = resource.Allocate(kSuperblock, slow);
      gate.Close(slow);
      CHECK_OK(driver.MemsetD8Async(block, 1, kSuperblock, slow));
      resource.Free(block, kSuperblock, slow);
      Watched::before_wait = [&] {
        // Joins what is left of the lane, though that is not enough.
        OnThread([&] { CHECK(resource.TryAllocate(kSuperblock, joining, &pointer) == CISTERN_OUT_OF_MEMORY); });
      };
      Watched::refuses_waits = true;
      CHECK(resource.TryAllocate(kSuperblock / 4, stream, &pointer) == CISTERN_DRIVER_ERROR);
      Watched::refuses_waits = false;
      const DevicePointer joined = resource.Allocate(kSuperblock / 4 * 3, joining);
      const DevicePointer refused = resource.Allocate(kSuperblock / 4, other);
      CHECK_OK(driver.MemsetD8Async(refused, 2, kSuperblock / 4, other));
      CHECK(StillWaits(other));
      gate.Open();
      other.Synchronize();
      CHECK(*reinterpret_cast<const unsigned char*>(refused) == 2);
      resource.Free(joined, kSuperblock / 4 * 3, joining);
      resource.Free(refused, kSuperblock / 4, other);
      joining.Synchronize();
    };
    resource.Free(resource.Allocate(256, stream), 256, stream);
  });
  CHECK(resource.Statistics().live_bytes == 0);
  CHECK(resource.arena.lock()->Statistics().threads == 1);
}

TEST("a give-back that the driver refuses puts superblocks back with their order, although another lane has joined theirs") {
  Global global(2 * kSuperblock);
  Resource resource(global, DeallocationEvents::kEager, Watched::Table());
  TestStream slow, stream, other;
  Gate gate;
  const DevicePointer whole = resource.Allocate(kSuperblock, slow);
  const DevicePointer half = resource.Allocate(kSuperblock / 2, stream);
  const DevicePointer of_slow = resource.Allocate(kSuperblock / 2, slow);
  gate.Close(slow);
  CHECK_OK(driver.MemsetD8Async(whole, 1, kSuperblock, slow));
  resource.Free(whole, kSuperblock, slow);
  resource.Free(of_slow, kSuperblock / 2, slow);
  Stop here;
  stop = &here;
  std::thread giving_back([&] {
    OnDevice device(0);
    Watched::before_wait = [] { stop->Pass(); };
    Watched::refuses_waits = true;
    resource.arena.lock()->GiveBack(false);
  });
  here.AwaitReached();
  resource.Free(half, kSuperblock / 2, stream);
  const DevicePointer joined = resource.Allocate(kSuperblock / 4 * 3, stream);
  here.Open();
  giving_back.join();
  CHECK(resource.Allocate(kSuperblock, other) == whole);
  CHECK_OK(driver.MemsetD8Async(whole, 2, kSuperblock, other));
  CHECK(StillWaits(other));
  gate.Open();
  other.Synchronize();
  CHECK(*reinterpret_cast<const unsigned char*>(whole) == 2);
  resource.Free(whole, kSuperblock, other);
  resource.Free(joined, kSuperblock / 4 * 3, stream);
  stream.Synchronize();
}

TEST("superblocks go back to the global arena with their order if the driver refuses to let a stream wait for them") {
  Global global(kSuperblock);
  Resource before(global), resource(global, DeallocationEvents::kEager, Watched::Table());
  TestStream slow, stream;
  Gate gate;
  const DevicePointer block = before.Allocate(kSuperblock, slow);
  gate.Close(slow);
  CHECK_OK(driver.MemsetD8Async(block, 1, kSuperblock, slow));
  before.Free(block, kSuperblock, slow);
  before.arena.lock()->GiveBack(false);
  Watched::refuses_waits = true;
  DevicePointer pointer = 0;
  CHECK(resource.TryAllocate(kSuperblock, stream, &pointer) == CISTERN_DRIVER_ERROR);
  Watched::refuses_waits = false;
  global.Validate();
  CHECK(resource.Allocate(kSuperblock, stream) == block);
  CHECK_OK(driver.MemsetD8Async(block, 2, kSuperblock, stream));
  CHECK(StillWaits(stream));
  gate.Open();
  stream.Synchronize();
  CHECK(*reinterpret_cast<const unsigned char*>(block) == 2);
  resource.Free(block, kSuperblock, stream);
}

TEST("what a stream takes from the global arena waits on every stream for those that had it before") {
  Global global(kSuperblock);
  Resource before(global), resource(global);
  TestStream old, stream, other;
  Gate gate;
  const DevicePointer block = before.Allocate(kSuperblock, old);
  gate.Close(old);
  before.Free(block, kSuperblock, old);
  const DevicePointer half = resource.Allocate(kSuperblock / 2, stream);
  const DevicePointer rest = resource.Allocate(kSuperblock / 2, other);  // of the lane of the first stream
  CHECK_OK(driver.MemsetD8Async(rest, 1, kSuperblock / 2, other));
  CHECK(StillWaits(other));
  gate.Open();
  other.Synchronize();
  resource.Free(half, kSuperblock / 2, stream);
  resource.Free(rest, kSuperblock / 2, other);
}

TEST("what the legacy default stream takes from the global arena waits on other streams for those that had it before") {
  Global global(kSuperblock);
  Resource before(global), resource(global, DeallocationEvents::kDeferred);
  TestStream old, other;
  Gate gate;
  const DevicePointer block = before.Allocate(kSuperblock, old);
  gate.Close(old);
  CHECK_OK(driver.MemsetD8Async(block, 1, kSuperblock, old));
  before.Free(block, kSuperblock, old);
  const DevicePointer half = resource.Allocate(kSuperblock / 2, LegacyStream());
  const DevicePointer rest = resource.Allocate(kSuperblock / 2, other);
  CHECK_OK(driver.MemsetD8Async(rest, 2, kSuperblock / 2, other));
  CHECK(StillWaits(other));
  gate.Open();
  other.Synchronize();
  CHECK(*reinterpret_cast<const unsigned char*>(rest) == 2);
  resource.Free(half, kSuperblock / 2, LegacyStream());
  resource.Free(rest, kSuperblock / 2, other);
}

TEST("without events, what a stream takes from the global arena serves others only after a wait for the device") {
  Global global(kSuperblock);
  Resource before(global), resource(global, DeallocationEvents::kOff);
  TestStream old, stream, other;
  before.Free(before.Allocate(kSuperblock, old), kSuperblock, old);
  before.arena.lock()->GiveBack(false);
  const DevicePointer half = resource.Allocate(kSuperblock / 2, stream);
  CHECK(resource.waits == 0);
  const DevicePointer rest = resource.Allocate(kSuperblock / 2, other);
  CHECK(resource.waits == 1);
  resource.Free(half, kSuperblock / 2, stream);
  resource.Free(rest, kSuperblock / 2, other);
}

TEST("superblocks that were freed together keep their event until the last of them is taken") {
  Global global(2 * kSuperblock);
  Resource before(global), resource(global);
  TestStream slow, stream, other;
  Gate gate;
  const DevicePointer block = before.Allocate(2 * kSuperblock, slow);
  gate.Close(slow);
  CHECK_OK(driver.MemsetD8Async(block, 1, 2 * kSuperblock, slow));
  before.Free(block, 2 * kSuperblock, slow);
  before.arena.lock()->GiveBack(false);
  const DevicePointer first = resource.Allocate(kSuperblock, stream);
  global.Validate();
  const DevicePointer second = resource.Allocate(kSuperblock, other);
  global.Validate();
  CHECK_OK(driver.MemsetD8Async(second, 2, kSuperblock, other));
  CHECK(StillWaits(other));
  gate.Open();
  other.Synchronize();
  CHECK(*reinterpret_cast<const unsigned char*>(second) == 2);
  resource.Free(first, kSuperblock, stream);
  resource.Free(second, kSuperblock, other);
}

namespace {

using Numbers = std::vector<std::uint64_t>;

Numbers AllocateMany(const Resource& resource, const Numbers& sizes, Stream stream) {
  Numbers addresses;
  std::size_t done = 0;
  CHECK_OK(resource.arena.lock()->AllocateMany(sizes, stream, &addresses, &done));
  CHECK(done == sizes.size());
  return addresses;
}

Status TryFreeMany(const Resource& resource, const Numbers& addresses, const Numbers& sizes, Stream stream, ThreadSafeArena::Wrong* wrong) {
  return resource.arena.lock()->DeallocateMany(addresses, sizes, stream, wrong);
}

void FreeMany(const Resource& resource, const Numbers& addresses, const Numbers& sizes, Stream stream) {
  ThreadSafeArena::Wrong wrong;
  CHECK_OK(TryFreeMany(resource, addresses, sizes, stream, &wrong));
}

}  // namespace

TEST("many frees in one call have one event, whichever threads have allocated, or none under the policy off") {
  for (const DeallocationEvents events : {DeallocationEvents::kEager, DeallocationEvents::kDeferred, DeallocationEvents::kOff}) {
    Global global(kMiB);
    Resource resource(global, events, Watched::Table());
    TestStream stream, other;
    const Numbers sizes(50, 300);
    Numbers blocks;
    Numbers all(150, 300);
    for (int i = 0; i < 2; ++i) {
      OnThread([&] {
        const Numbers more = AllocateMany(resource, sizes, stream);
        blocks.insert(blocks.end(), more.begin(), more.end());
      });
      if (i == 1) break;
      const Numbers own = AllocateMany(resource, sizes, stream);
      blocks.insert(blocks.end(), own.begin(), own.end());
    }
    Gate gate;
    gate.Close(stream);
    CHECK_OK(driver.MemsetD8Async(blocks[120], 1, 300, stream));
    Watched::records = 0;
    FreeMany(resource, blocks, all, stream);
    CHECK(Watched::records == (events == DeallocationEvents::kOff ? 0 : 1));
    CHECK(resource.Statistics().live_allocations == 0);
    if (events != DeallocationEvents::kOff) {
      const DevicePointer everything = resource.Allocate(kMiB, other);
      CHECK_OK(driver.MemsetD8Async(everything, 2, kMiB, other));
      CHECK(StillWaits(other));
      gate.Open();
      other.Synchronize();
      CHECK(*reinterpret_cast<const unsigned char*>(blocks[120]) == 2);
      resource.Free(everything, kMiB, other);
    }
    gate.Open();
    stream.Synchronize();
  }
}

TEST("many frees in one call free nothing if one is wrong, of whichever thread") {
  Global global(kMiB);
  Resource resource(global);
  TestStream stream;
  const Numbers own = AllocateMany(resource, {300, 400}, stream);
  Numbers far;
  OnThread([&] { far = AllocateMany(resource, {500}, stream); });
  const Numbers blocks = {own[0], far[0], own[1]}, sizes = {300, 500, 400};
  ThreadSafeArena::Wrong wrong;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    Numbers wrong_sizes = sizes;
    wrong_sizes[i] += 1;
    CHECK(TryFreeMany(resource, blocks, wrong_sizes, stream, &wrong) == kWrongSize);
    CHECK(wrong.place == i);
    CHECK(wrong.right_bytes == sizes[i]);
    Numbers twice = blocks;
    twice.push_back(blocks[i]);
    Numbers twice_sizes = sizes;
    twice_sizes.push_back(sizes[i]);
    CHECK(TryFreeMany(resource, twice, twice_sizes, stream, &wrong) == kForeignPointer);
    CHECK(wrong.place == 3);
    Numbers inside = blocks;
    inside[i] += 256;
    CHECK(TryFreeMany(resource, inside, sizes, stream, &wrong) == kForeignPointer);
    CHECK(wrong.place == i);
    CHECK(resource.Statistics().live_bytes == 1200);
    CHECK(resource.Statistics().live_allocations == 3);
  }
  CHECK_OK(resource.arena.lock()->CheckMany(blocks, sizes, &wrong));
  CHECK(resource.Statistics().live_allocations == 3);
  FreeMany(resource, blocks, sizes, stream);
  CHECK(resource.Statistics().live_bytes == 0);
  CHECK(resource.arena.lock()->CheckMany(blocks, sizes, &wrong) == kForeignPointer);
}

TEST("what an allocation of many gives back without an event serves others after a wait for the device") {
  for (const bool is_legacy : {false, true}) {
    for (const DeallocationEvents events : {DeallocationEvents::kEager, DeallocationEvents::kDeferred}) {
      Global global(2 * kSuperblock);
      Resource resource(global, events, Watched::Table());
      TestStream made, other;
      const Stream stream = is_legacy ? LegacyStream() : Stream{made};
      Numbers addresses;
      std::size_t done = 0;
      Watched::refuses_records = true;
      CHECK(resource.arena.lock()->AllocateMany({kSuperblock, 2 * kSuperblock}, stream, &addresses, &done) == kErrorOutOfMemory);
      Watched::refuses_records = false;
      resource.Free(resource.Allocate(2 * kSuperblock, other), 2 * kSuperblock, other);
      // An event of the legacy default stream is recorded late.
      CHECK(resource.waits == (is_legacy && events == DeallocationEvents::kDeferred ? 0 : 1));
      other.Synchronize();
    }
  }
}

TEST("what was freed without an event is held for its stream although an older event enters the lane after it") {
  Global global(2 * kSuperblock);
  Resource resource(global, DeallocationEvents::kEager, Watched::Table());
  TestStream stream, other;
  const DevicePointer first = resource.Allocate(kSuperblock, stream);
  Stop here;
  stop = &here;
  std::thread slow([&] {
    OnDevice device(0);
    Watched::after_record = [] { stop->Pass(); };
    resource.Free(first, kSuperblock, stream);
  });
  here.AwaitReached();
  Numbers addresses;
  std::size_t done = 0;
  Watched::refuses_records = true;
  CHECK(resource.arena.lock()->AllocateMany({kSuperblock, 3 * kSuperblock}, stream, &addresses, &done) == kErrorOutOfMemory);
  Watched::refuses_records = false;
  CHECK(done == 1);
  here.Open();
  slow.join();
  resource.Free(resource.Allocate(2 * kSuperblock, other), 2 * kSuperblock, other);
  CHECK(resource.waits == 1);
  other.Synchronize();
}

TEST("what an allocation of many gives back without an event serves its own stream, and others after the next free") {
  for (const bool is_legacy : {false, true}) {
    for (const DeallocationEvents events : {DeallocationEvents::kEager, DeallocationEvents::kDeferred}) {
      Global global(2 * kSuperblock);
      Resource resource(global, events, Watched::Table());
      TestStream made, other;
      const Stream stream = is_legacy ? LegacyStream() : Stream{made};
      Gate gate;
      // Work that the memory comes after.
      const DevicePointer before = resource.Allocate(kSuperblock, stream);
      gate.Close(stream);
      CHECK_OK(driver.MemsetD8Async(before, 1, kSuperblock, stream));
      resource.Free(before, kSuperblock, stream);
      Numbers addresses;
      std::size_t done = 0;
      Watched::refuses_records = true;
      CHECK(resource.arena.lock()->AllocateMany({kSuperblock, 2 * kSuperblock}, stream, &addresses, &done) == kErrorOutOfMemory);
      Watched::refuses_records = false;
      CHECK(done == 1);
      CHECK(resource.Statistics().live_allocations == 0);
      DevicePointer block = resource.Allocate(kSuperblock, stream);
      CHECK(block == before);
      resource.Free(block, kSuperblock, stream);
      const DevicePointer everything = resource.Allocate(2 * kSuperblock, other);
      CHECK_OK(driver.MemsetD8Async(everything, 2, 2 * kSuperblock, other));
      CHECK(StillWaits(other));
      gate.Open();
      other.Synchronize();
      CHECK(*reinterpret_cast<const unsigned char*>(before) == 2);
      resource.Free(everything, 2 * kSuperblock, other);
    }
  }
}

TEST("thousands of streams that end leave no more lanes than are needed") {
  Global global(4 * kSuperblock);
  Resource resource(global);
  for (int i = 0; i < 3000; ++i) {
    TestStream stream;
    const DevicePointer block = resource.Allocate(kSuperblock / 8, stream);
    resource.Free(block, kSuperblock / 8, stream);
  }
  CHECK(resource.Statistics().live_allocations == 0);
  TestStream stream;
  const DevicePointer all = resource.Allocate(4 * kSuperblock, stream);
  resource.Free(all, 4 * kSuperblock, stream);
}

TEST("thousands of streams that end leave no more events than are needed, and their memory in order") {
  Global global(64 * kSuperblock);
  Resource resource(global, DeallocationEvents::kEager, Watched::Table());
  TestStream last, slow;
  Gate gate;
  const DevicePointer first = resource.Allocate(kSuperblock, slow);
  gate.Close(slow);
  resource.Free(first, kSuperblock, slow);
  Watched::created = 0;
  for (int i = 0; i < 3000; ++i) {
    TestStream stream;
    resource.Free(resource.Allocate(1000, stream), 1000, stream);
  }
  CHECK(Watched::created < 300);
  const DevicePointer block = resource.Allocate(kSuperblock / 2, last);
  CHECK(block > first && block < first + kSuperblock);
  CHECK_OK(driver.MemsetD8Async(block, 1, 256, last));
  CHECK(StillWaits(last));
  gate.Open();
  last.Synchronize();
  resource.Free(block, kSuperblock / 2, last);
}

TEST("a captured stream is refused") {
  Global global(kMiB);
  Resource resource(global);
  TestStream stream;
  const DevicePointer block = resource.Allocate(100, stream);
  CHECK_OK(driver.StreamBeginCapture(stream, kCaptureModeRelaxed));
  DevicePointer pointer;
  CHECK(resource.TryAllocate(100, stream, &pointer) == CISTERN_STREAM_CAPTURED);
  CHECK(resource.TryFree(block, 100, stream) == CISTERN_STREAM_CAPTURED);
  Graph graph = nullptr;
  CHECK_OK(driver.StreamEndCapture(stream, &graph));
  CHECK_OK(driver.GraphDestroy(graph));
  resource.Free(block, 100, stream);
}

TEST("memory of the legacy default stream stays there while a stream is captured that it waits for") {
  Global global(2 * kSuperblock);
  Resource resource(global, DeallocationEvents::kDeferred);
  TestStream captured(kStreamDefault), other;
  const DevicePointer first = resource.Allocate(kSuperblock, LegacyStream());
  resource.Free(first, kSuperblock, LegacyStream());
  CHECK_OK(driver.StreamBeginCapture(captured, kCaptureModeGlobal));
  const DevicePointer second = resource.Allocate(kSuperblock, other);
  CHECK(second != first);
  DevicePointer third;
  CHECK(resource.TryAllocate(kSuperblock, other, &third) == CISTERN_OUT_OF_MEMORY);
  Graph graph = nullptr;
  CHECK_OK(driver.StreamEndCapture(captured, &graph));  // nothing has invalidated it
  CHECK_OK(driver.GraphDestroy(graph));
  third = resource.Allocate(kSuperblock, other);
  CHECK(third == first);
  for (const DevicePointer block : {second, third}) resource.Free(block, kSuperblock, other);
}

TEST("what an idle thread holds serves a thread that has run out, without a call of the idle one") {
  Global global(4 * kSuperblock);
  Resource resource(global);
  TestStream stream;
  const DevicePointer block = resource.Allocate(4 * kSuperblock, stream);
  resource.Free(block, 4 * kSuperblock, stream);
  CHECK(resource.Statistics().reserved_bytes == 4 * kSuperblock);
  OnThread([&] {
    TestStream other;
    const DevicePointer taken = resource.Allocate(3 * kSuperblock, other);
    resource.Free(taken, 3 * kSuperblock, other);
    other.Synchronize();
  });
}

TEST("once memory has run out, a small request leaves a large free block whole, and takes what others give back") {
  Global global(8 * kSuperblock);
  Resource resource(global);
  TestStream first, second;
  Gate gate;
  const auto cut = [&] {
    const DevicePointer large = resource.Allocate(4 * kSuperblock, second);
    resource.Free(large, 4 * kSuperblock, second);
    const DevicePointer small = resource.Allocate(1000, second);
    resource.Free(small, 1000, second);
    return small >= large && small < large + 4 * kSuperblock;
  };
  CHECK(cut());
  const DevicePointer large = resource.Allocate(4 * kSuperblock, second);
  DevicePointer theirs = 0, idle = 0, refused;
  OnThread([&] {
    theirs = resource.Allocate(2 * kSuperblock, first);
    idle = resource.Allocate(2 * kSuperblock, first);
  });
  CHECK(resource.TryAllocate(kSuperblock, second, &refused) == CISTERN_OUT_OF_MEMORY);
  resource.Free(large, 4 * kSuperblock, second);
  gate.Close(first);
  CHECK_OK(driver.MemsetD8Async(idle, 1, 1000, first));
  resource.Free(idle, 2 * kSuperblock, first);
  const DevicePointer small = resource.Allocate(1000, second);
  CHECK(small >= idle && small < idle + 2 * kSuperblock);
  CHECK_OK(driver.MemsetD8Async(small, 2, 1000, second));
  CHECK(StillWaits(second));
  gate.Open();
  second.Synchronize();
  CHECK(*reinterpret_cast<const unsigned char*>(small) == 2);
  CHECK(resource.Allocate(4 * kSuperblock, second) == large);
  // With nobody to give anything back, it cuts any block.
  resource.Free(large, 4 * kSuperblock, second);
  resource.Free(small, 1000, second);
  resource.Free(theirs, 2 * kSuperblock, second);
  CHECK(resource.Allocate(8 * kSuperblock, second) == large);
  resource.Free(large, 8 * kSuperblock, second);
  CHECK(cut());
}

TEST("a request that only a much larger block serves gets it, though memory has run out") {
  Global global(8 * kSuperblock);
  Resource resource(global);
  TestStream stream;
  // Of its three superblocks' length, only two are whole superblocks.
  const DevicePointer before = resource.Allocate(kSuperblock / 2, stream);
  const DevicePointer middle = resource.Allocate(3 * kSuperblock, stream);
  const DevicePointer after = resource.Allocate(kSuperblock / 2, stream);
  CHECK(middle == before + kSuperblock / 2);
  CHECK(after == middle + 3 * kSuperblock);
  DevicePointer theirs = 0, refused;
  OnThread([&] { theirs = resource.Allocate(4 * kSuperblock, stream); });
  CHECK(resource.TryAllocate(kSuperblock, stream, &refused) == CISTERN_OUT_OF_MEMORY);
  resource.Free(middle, 3 * kSuperblock, stream);
  CHECK(resource.Allocate(9 * kSuperblock / 4, stream) == middle);
  resource.Free(middle, 9 * kSuperblock / 4, stream);
  resource.Free(before, kSuperblock / 2, stream);
  resource.Free(after, kSuperblock / 2, stream);
  resource.Free(theirs, 4 * kSuperblock, stream);
}

TEST("another resource of the same arena gives back what is free for one that has run out") {
  Global global(4 * kSuperblock);
  Resource first(global), second(global);
  TestStream stream;
  first.Free(first.Allocate(4 * kSuperblock, stream), 4 * kSuperblock, stream);
  const DevicePointer block = second.Allocate(4 * kSuperblock, stream);
  CHECK(first.Statistics().reserved_bytes == 0);
  second.Free(block, 4 * kSuperblock, stream);
}

namespace {

// How often a request asks whether a stream is captured until it gives up, in the case below.
constexpr int kQueries = 12;

// A thread of a resource that has superblocks in hand, as it is giving them back, until `here` is opened.
std::thread GivingBack(const Resource& resource, std::uint64_t bytes, Stop& here) {
  stop = &here;
  std::thread giver([&resource, bytes] {
    OnDevice device(0);
    TestStream stream;
    resource.Free(resource.Allocate(bytes, stream), bytes, stream);
    stream.Synchronize();
    Watched::after_record = [] { stop->Pass(); };  // of what it gives back at its end
  });
  here.AwaitReached();
  return giver;
}

}  // namespace

TEST("a thread that has run out waits for what another resource's thread is giving back") {
  Global global(2 * kSuperblock);
  Resource resource(global, DeallocationEvents::kEager, Watched::Table()), other(global, DeallocationEvents::kEager, Watched::Table());
  TestStream stream;
  Stop here;
  std::thread giver = GivingBack(other, 2 * kSuperblock, here);
  std::thread opener([&] {
    SleepMilliseconds(50);
    here.Open();
  });
  resource.Free(resource.Allocate(2 * kSuperblock, stream), 2 * kSuperblock, stream);
  giver.join();
  opener.join();
}

TEST("what another thread has given back during the last try is found") {
  Global global(2 * kSuperblock);
  Resource resource(global, DeallocationEvents::kDeferred, Watched::Table());
  TestStream captured(kStreamDefault), stream;
  // Memory that cannot serve while a stream is captured: each step asks whether one is, the last time after the last try.
  resource.Free(resource.Allocate(kSuperblock, LegacyStream()), kSuperblock, LegacyStream());
  Stop here;
  std::thread giver = GivingBack(resource, kSuperblock, here);
  CHECK_OK(driver.StreamBeginCapture(captured, kCaptureModeGlobal));
  int queries = 0;
  Watched::before_query = [&] {
    if (++queries != kQueries) return;
    here.Open();
    giver.join();
  };
  const DevicePointer block = resource.Allocate(kSuperblock, stream);
  Watched::before_query = nullptr;
  CHECK(queries >= kQueries);
  Graph graph = nullptr;
  CHECK_OK(driver.StreamEndCapture(captured, &graph));
  CHECK_OK(driver.GraphDestroy(graph));
  resource.Free(block, kSuperblock, stream);
}

TEST("a thread that ends gives its superblocks back, but for those with live memory, which others free") {
  Global global(kMiB);
  Resource resource(global);
  TestStream stream;
  DevicePointer block = 0;
  OnThread([&] {
    block = resource.Allocate(1000, stream);
    resource.Free(resource.Allocate(4 * kSuperblock, stream), 4 * kSuperblock, stream);
    CHECK(resource.Statistics().reserved_bytes == 5 * kSuperblock);
  });
  CHECK(resource.Statistics().reserved_bytes == kSuperblock);
  resource.Free(block, 1000, stream);
  // The next thread goes on with what was left.
  OnThread([&] {
    const DevicePointer next = resource.Allocate(1000, stream);
    CHECK(next == block);
    resource.Free(next, 1000, stream);
  });
  CHECK(resource.Statistics().reserved_bytes == 0);
  CHECK(global.UsedBytes() == 0);
}

TEST("what a thread leaves behind comes after its work, whatever context is current when it ends") {
  Global global(kSuperblock);
  Resource resource(global, DeallocationEvents::kDeferred), next(global);
  TestStream other;
  Gate gate;
  Context elsewhere = nullptr;
  CHECK_OK(driver.DevicePrimaryCtxRetain(&elsewhere, 1));
  std::thread([&] {
    {
      OnDevice device(0);
      const DevicePointer block = resource.Allocate(kSuperblock, LegacyStream());
      gate.Close(LegacyStream());
      resource.Free(block, kSuperblock, LegacyStream());
    }
    CHECK_OK(driver.CtxSetCurrent(elsewhere));
  }).join();
  const DevicePointer block = next.Allocate(kSuperblock, other);
  CHECK_OK(driver.MemsetD8Async(block, 1, kSuperblock, other));
  CHECK(StillWaits(other));
  gate.Open();
  other.Synchronize();
  next.Free(block, kSuperblock, other);
  CHECK_OK(driver.DevicePrimaryCtxRelease(1));
}

TEST("a call leaves the thread with the context that was current, or none") {
  Global global(kSuperblock);
  Resource resource(global);
  TestStream stream;
  Context elsewhere = nullptr;
  CHECK_OK(driver.DevicePrimaryCtxRetain(&elsewhere, 1));
  for (const Context context : {elsewhere, Context{nullptr}}) {
    std::thread([&] {
      CHECK_OK(driver.CtxSetCurrent(context));
      Context now = nullptr;
      const DevicePointer block = resource.Allocate(1000, stream);
      CHECK_OK(driver.CtxGetCurrent(&now));
      CHECK(now == context);
      resource.Free(block, 1000, stream);
      CHECK_OK(driver.CtxGetCurrent(&now));
      CHECK(now == context);
    }).join();
  }
  CHECK_OK(driver.DevicePrimaryCtxRelease(1));
}

TEST("threads that come and go share a few indexes") {
  Global global(kMiB);
  Resource resource(global);
  TestStream stream;
  for (int i = 0; i < 50; ++i) OnThread([&] { resource.Free(resource.Allocate(100, stream), 100, stream); });
  const std::shared_ptr<ThreadSafeArena> arena = resource.arena.lock();
  CHECK(arena != nullptr && arena->Statistics().threads == 1);
}

TEST("a resource lasts while a thread has its table, and what was not freed stays its arena's") {
  Global global(kMiB);
  Resource resource(global);
  TestStream stream;
  resource.c->retain(resource.c->state);
  const cistern_thread_safe_resource* kept = resource.c;
  resource.Release();
  CHECK(!resource.arena.expired());
  AllArenas().any_ended = false;
  std::uint64_t pointer = 0;
  OnThread([&] { CHECK(kept->allocate(kept->state, 1000, 256, 1, &pointer) == CISTERN_OK); });
  kept->release(kept->state);
  CHECK(resource.arena.expired());
  CHECK(global.UsedBytes() == kSuperblock);
  CHECK(AllArenas().any_ended);
}

TEST("a call of the driver that fails leaves an arena as it was") {
  for (const Call call : {Call::kStreamGetId, Call::kStreamWaitEvent, Call::kEventRecord, Call::kEventCreate}) {
    Global global(2 * kSuperblock);
    {
      Resource resource(global);
      TestStream first, second;
      DevicePointer block = 0;
      for (int calls = 0; calls < 6; ++calls) {
        software::FailCall(call, static_cast<std::uint64_t>(calls + 1), kErrorUnknown);
        std::int32_t result = resource.TryAllocate(2 * kSuperblock, first, &block);
        if (result == CISTERN_OK) {
          do {
            result = resource.TryFree(block, 2 * kSuperblock, first);
          } while (result != CISTERN_OK);
        }
        result = resource.TryAllocate(kSuperblock + 1, second, &block);
        if (result == CISTERN_OK) {
          while (resource.TryFree(block, kSuperblock + 1, second) != CISTERN_OK) {
          }
        }
        OnThread([&] {
          DevicePointer other = 0;
          if (resource.TryAllocate(2 * kSuperblock, second, &other) != CISTERN_OK) return;
          while (resource.TryFree(other, 2 * kSuperblock, second) != CISTERN_OK) {
          }
        });
      }
      software::FailCall(call, 0, kErrorUnknown);
      block = resource.Allocate(2 * kSuperblock, first);
      resource.Free(block, 2 * kSuperblock, first);
      CHECK(resource.Statistics().live_allocations == 0);
    }
    CHECK(global.UsedBytes() == 0);
  }
}

namespace {

constexpr int kThreads = 16;
constexpr int kStreams = 8;

struct Block {
  DevicePointer pointer;
  std::uint64_t bytes;
  unsigned tag;
  int stream;
};

// Blocks that one thread has allocated and another one frees.
struct Exchange {
  std::mutex mutex;
  std::deque<Block> blocks;

  bool Take(Block* block) {
    const std::lock_guard<std::mutex> lock(mutex);
    if (blocks.empty()) return false;
    *block = blocks.front();
    blocks.pop_front();
    return true;
  }
  void Put(const Block& block) {
    const std::lock_guard<std::mutex> lock(mutex);
    blocks.push_back(block);
  }
};

// Fails the test if the block does not hold its tag in the order of the stream.
struct Look {
  Block block;
};

void LookAt(void* data) {
  Look* look = static_cast<Look*>(data);
  const unsigned* words = reinterpret_cast<const unsigned*>(look->block.pointer);
  const std::uint64_t count = look->block.bytes / 4;
  for (const std::uint64_t i : {std::uint64_t{0}, count / 2, count - 1}) {
    if (words[i] != look->block.tag) test::Fail(__FILE__, __LINE__, "a block was written by two owners at once");
  }
  delete look;
}

struct Stress {
  const Resource& resource;
  const DriverTable& table;
  const Stream* streams;
  Exchange exchange;
  std::atomic<std::uint64_t> operations{0};
  std::atomic<std::uint64_t> refusals{0};
};

void Write(Stress& stress, const Block& block) {
  CHECK_OK(stress.table.MemsetD32Async(block.pointer, block.tag, block.bytes / 4, stress.streams[block.stream]));
}

void Verify(Stress& stress, const Block& block, int on) { CHECK_OK(driver.LaunchHostFunc(stress.streams[on], LookAt, new Look{block})); }

void FreeBlock(Stress& stress, Block block, int on, Event event) {
  if (on != block.stream) {
    CHECK_OK(stress.table.EventRecord(event, stress.streams[block.stream]));
    CHECK_OK(stress.table.StreamWaitEvent(stress.streams[on], event, 0));
  }
  Verify(stress, block, on);
  stress.resource.Free(block.pointer, block.bytes, stress.streams[on]);
  stress.operations += 1;
}

void RunThread(Stress& stress, unsigned seed, int steps) {
  OnDevice device(0);
  Event event = nullptr;
  CHECK_OK(stress.table.EventCreate(&event, kEventDisableTiming));
  std::mt19937 random(seed);
  std::vector<Block> own;
  for (int step = 0; step < steps; ++step) {
    const int stream = static_cast<int>(random() % kStreams);
    const std::uint64_t bytes = random() % 16 == 0 ? 4 * (1 + random() % (kSuperblock / 2)) : 4 * (1 + random() % 2048);
    Block block{0, bytes, static_cast<unsigned>(random()), stream};
    const std::int32_t result = stress.resource.TryAllocate(bytes, stress.streams[stream], &block.pointer);
    stress.operations += 1;
    if (result == CISTERN_OK) {
      Write(stress, block);
      if (random() % 4 == 0)
        stress.exchange.Put(block);
      else
        own.push_back(block);
    } else {
      CHECK(result == CISTERN_OUT_OF_MEMORY);
      stress.refusals += 1;
    }
    const int on = static_cast<int>(random() % kStreams);
    if (random() % 3 == 0 && stress.exchange.Take(&block)) FreeBlock(stress, block, on, event);
    while (own.size() > 24 || (!own.empty() && (result != CISTERN_OK || random() % 2 == 0))) {
      const std::size_t index = random() % own.size();
      FreeBlock(stress, own[index], random() % 4 == 0 ? on : own[index].stream, event);
      own[index] = own.back();
      own.pop_back();
    }
    if (random() % 512 == 0) CHECK_OK(stress.table.StreamSynchronize(stress.streams[on]));
  }
  for (const Block& block : own) stress.exchange.Put(block);
  CHECK_OK(stress.table.EventDestroy(event));
}

// A number from the environment, or 0.
int NumberOf(const char* variable) {
  const char* const text = std::getenv(variable);
  return text == nullptr ? 0 : std::atoi(text);
}

// The seeds of a run's threads are those after this one.
unsigned FirstSeed() { return static_cast<unsigned>(NumberOf("CISTERN_TEST_ARENA_SEED")); }

// Rounds of threads that end. Returns the operations.
std::uint64_t RunStress(DeallocationEvents events, const DriverTable& table, std::uint64_t bytes, int rounds, int steps) {
  Global global(bytes, table);
  std::uint64_t operations = 0;
  {
    Resource resource(global, events, table);
    TestStream streams[kStreams - 1] = {
        TestStream(), TestStream(), TestStream(), TestStream(), TestStream(), TestStream(), TestStream(kStreamDefault)};
    Stream handles[kStreams];
    for (int i = 0; i < kStreams - 1; ++i) handles[i] = streams[i];
    handles[kStreams - 1] = LegacyStream();
    Stress stress{resource, table, handles, {}, {}, {}};
    for (int round = 0; round < rounds; ++round) {
      std::vector<std::thread> threads;
      for (int i = 0; i < kThreads; ++i) {
        threads.emplace_back(RunThread, std::ref(stress), FirstSeed() + static_cast<unsigned>(round * kThreads + i + 1), steps);
      }
      for (std::thread& thread : threads) thread.join();
    }
    TestEvent event;
    for (Block block{}; stress.exchange.Take(&block);) FreeBlock(stress, block, 0, event);
    CHECK_OK(table.CtxSynchronize());
    CHECK(resource.Statistics().live_bytes == 0);
    CHECK(resource.Statistics().live_allocations == 0);
    operations = stress.operations;
    CHECK(stress.refusals * 4 < operations);
  }
  CHECK(global.UsedBytes() == 0);
  return operations;
}

}  // namespace

TEST("what a claimant has is freed for it alone, and no longer once somebody has freed it before") {
  Global global(kMiB);
  Resource resource(global);
  const std::shared_ptr<ThreadSafeArena> arena = resource.arena.lock();
  TestStream stream;
  const auto allocate = [&](std::uint64_t claimant) {
    std::uint64_t address = 0;
    CHECK_OK(arena->Allocate(1000, 256, stream, &address, claimant));
    return address;
  };
  const std::uint64_t first = allocate(1), second = allocate(2), third = allocate(arenas::kNobody);
  const auto live = [&] { return resource.Statistics().live_allocations; };
  const auto claims_of = [&](std::uint64_t claimant) {
    std::vector<std::uint64_t> addresses;
    for (const ThreadSafeArena::Claimed& each : arena->ClaimsOf(claimant)) {
      CHECK(each.bytes == 1000);
      addresses.push_back(each.address);
    }
    CHECK(arena->HasClaims(claimant) == !addresses.empty());
    return addresses;
  };
  CHECK(claims_of(1) == std::vector<std::uint64_t>{first});
  CHECK(claims_of(2) == std::vector<std::uint64_t>{second});
  CHECK(claims_of(3).empty());
  CHECK(arena->DeallocateClaimed(first, 1000, 2));
  CHECK(arena->DeallocateClaimed(third, 1000, 1));
  CHECK(live() == 3);
  resource.Free(first, 1000, stream);
  CHECK(claims_of(1).empty());
  CHECK(allocate(arenas::kNobody) == first);
  CHECK(claims_of(1).empty());
  CHECK(arena->DeallocateClaimed(first, 1000, 1));
  CHECK(live() == 3);
  CHECK(arena->DeallocateClaimed(second, 1000, 2));
  CHECK(live() == 2);
  CHECK(claims_of(2).empty());
  std::uint64_t right_bytes = 0;
  CHECK_OK(arena->Claim(third, 1000, 3, &right_bytes));
  CHECK(claims_of(3) == std::vector<std::uint64_t>{third});
  CHECK(arena->DeallocateClaimed(third, 1000, 3));
  resource.Free(first, 1000, stream);
}

TEST("16 threads and 8 streams never share a block, and lose none, under every policy") {
  for (const DeallocationEvents events : {DeallocationEvents::kEager, DeallocationEvents::kDeferred, DeallocationEvents::kOff}) {
    RunStress(events, driver, 32 * kMiB, 3, 200);
  }
}

TEST("16 threads and 8 streams never share a block while memory is short") {
  for (const DeallocationEvents events : {DeallocationEvents::kEager, DeallocationEvents::kDeferred}) {
    RunStress(events, driver, 5 * kMiB, 2, 200);
  }
}

TEST("the order checker sees the arenas' calls, and finds nothing wrong with them") {
  const DriverTable& checked = *order::CheckedTable(&driver);
  order::OrderChecker& checker = *order::CheckerOf(&checked);
  checker.Start();
  RunStress(DeallocationEvents::kEager, checked, 8 * kMiB, 1, 100);
  RunStress(DeallocationEvents::kDeferred, checked, 8 * kMiB, 1, 100);
  std::uint64_t dropped = 0;
  CHECK(checker.TakeReports(0, 16, &dropped).empty());
  {
    Global global(kSuperblock, checked);
    Resource resource(global, DeallocationEvents::kEager, checked);
    TestStream first, second;
    const DevicePointer block = resource.Allocate(4096, first);
    CHECK_OK(checked.MemsetD8Async(block, 1, 4096, second));  // not ordered after the allocation
    CHECK(checker.TakeReports(0, 16, &dropped).size() == 1);
    CHECK_OK(checked.CtxSynchronize());
    resource.Free(block, 4096, first);
  }
  checker.Stop();
}

TEST("the order checker sees what native code frees, and no free that is refused") {
  const DriverTable& checked = *order::CheckedTable(&driver);
  order::OrderChecker& checker = *order::CheckerOf(&checked);
  checker.Start();
  {
    Global global(kSuperblock, checked);
    Resource resource(global, DeallocationEvents::kEager, checked);
    TestStream first, second;
    const DevicePointer block = resource.Allocate(4096, first);
    std::uint64_t dropped = 0;
    CHECK(resource.TryFree(block, 4095, first) == CISTERN_INVALID_POINTER);
    CHECK_OK(checked.MemsetD8Async(block, 1, 4096, first));
    CHECK(checker.TakeReports(0, 16, &dropped).empty());
    resource.Free(block, 4096, second);  // not ordered after the write
    CHECK(checker.TakeReports(0, 16, &dropped).size() == 1);
    CHECK_OK(checked.CtxSynchronize());
  }
  checker.Stop();
}

TEST("the order checker sees what a thread without a context does on a default stream") {
  const DriverTable& checked = *order::CheckedTable(&driver);
  order::OrderChecker& checker = *order::CheckerOf(&checked);
  checker.Start();
  {
    Global global(kSuperblock, checked);
    Resource resource(global, DeallocationEvents::kEager, checked);
    DevicePointer block = 0;
    std::thread([&] { block = resource.Allocate(4096, PerThreadStream()); }).join();
    TestStream other;
    CHECK_OK(checked.MemsetD8Async(block, 1, 4096, other));  // not ordered after the allocation
    std::uint64_t dropped = 0;
    CHECK(checker.TakeReports(0, 16, &dropped).size() == 1);
    CHECK_OK(checked.CtxSynchronize());
    resource.Free(block, 4096, other);
  }
  checker.Stop();
}

TEST("as many operations as CISTERN_TEST_ARENA_STEPS asks for") {
  const int steps = NumberOf("CISTERN_TEST_ARENA_STEPS");
  if (steps == 0) return;
  std::uint64_t operations = 0;
  for (const DeallocationEvents events : {DeallocationEvents::kEager, DeallocationEvents::kDeferred, DeallocationEvents::kOff}) {
    operations += RunStress(events, driver, 32 * kMiB, 8, steps);
  }
  std::printf("    %llu operations\n", static_cast<unsigned long long>(operations));
}

}  // namespace cistern::test
