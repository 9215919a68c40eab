// Order within a stream, across streams, and with the default streams.
#include <dirent.h>

#include <vector>

#include "fixture.h"

namespace cistern::test {
namespace {

int ThreadCount() {
  int count = 0;
  DIR* tasks = opendir("/proc/self/task");
  while (readdir(tasks) != nullptr) ++count;
  closedir(tasks);
  return count;
}

void Increment(void* counter) { static_cast<std::atomic<int>*>(counter)->fetch_add(1); }

}  // namespace

TEST("records, waits and pool calls on idle streams start no thread") {
  int before = ThreadCount();
  TestStream a;
  TestStream b;
  TestEvent event;
  TestEvent timed(kEventDefault);
  TestPool pool;
  CHECK_OK(driver.EventRecord(event, a));
  CHECK_OK(driver.EventRecord(timed, a));
  CHECK_OK(driver.StreamWaitEvent(b, event, 0));
  FreeAsync(pool.Allocate(4096, a), a);
  CHECK_OK(driver.StreamQuery(a));
  CHECK_OK(driver.EventQuery(timed));
  CHECK(ThreadCount() <= before);
}

TEST("work of one stream runs in order, concurrently with the caller") {
  TestStream stream;
  Pinned<int> memory(1);
  memory[0] = 0;
  Gate gate;
  gate.Close(stream);
  for (unsigned value = 1; value <= 100; ++value) CHECK_OK(driver.MemsetD32Async(memory.pointer(), value, 1, stream));
  CHECK(memory[0] == 0);
  CHECK(driver.StreamQuery(stream) == kErrorNotReady);
  gate.Open();
  stream.Synchronize();
  CHECK(memory[0] == 100);
  CHECK_OK(driver.StreamQuery(stream));
}

TEST("a wait puts later work of one stream after earlier work of another") {
  TestStream a;
  TestStream b;
  TestEvent event;
  Pinned<int> memory(2);
  memory[0] = memory[1] = 0;
  Gate gate;
  gate.Close(a);
  CHECK_OK(driver.MemsetD32Async(memory.pointer(), 7, 1, a));
  CHECK_OK(driver.EventRecord(event, a));
  CHECK_OK(driver.StreamWaitEvent(b, event, 0));
  CHECK_OK(driver.MemcpyAsync(memory.pointer() + 4, memory.pointer(), 4, b));
  CHECK(driver.EventQuery(event) == kErrorNotReady);
  SleepMilliseconds(10);
  CHECK(driver.StreamQuery(b) == kErrorNotReady);
  gate.Open();
  b.Synchronize();
  CHECK(memory[1] == 7);
  CHECK_OK(driver.EventQuery(event));
}

TEST("a wait is for the latest recording when it was called") {
  TestStream a;
  TestStream b;
  TestStream c;
  TestEvent event;
  Gate gate;
  gate.Close(a);
  CHECK_OK(driver.EventRecord(event, a));
  CHECK_OK(driver.StreamWaitEvent(b, event, 0));
  CHECK_OK(driver.EventRecord(event, c));
  CHECK_OK(driver.EventQuery(event));
  std::atomic<int> runs{0};
  CHECK_OK(driver.LaunchHostFunc(b, Increment, &runs));
  SleepMilliseconds(10);
  CHECK(runs == 0);
  gate.Open();
  b.Synchronize();
  CHECK(runs == 1);
}

TEST("an event that was never recorded is complete, and waiting for it does nothing") {
  TestStream stream;
  TestEvent event;
  CHECK_OK(driver.EventQuery(event));
  CHECK_OK(driver.EventSynchronize(event));
  CHECK_OK(driver.StreamWaitEvent(stream, event, 0));
  CHECK_OK(driver.StreamQuery(stream));
}

TEST("a stream may wait for an event of another device, but not record it") {
  TestStream here;
  TestEvent event;
  std::atomic<int> runs{0};
  Gate gate;
  gate.Close(here);
  CHECK_OK(driver.EventRecord(event, here));
  {
    OnDevice other(1);
    TestStream there;
    CHECK(driver.EventRecord(event, there) == kErrorInvalidHandle);
    CHECK_OK(driver.StreamWaitEvent(there, event, 0));
    CHECK_OK(driver.LaunchHostFunc(there, Increment, &runs));
    SleepMilliseconds(10);
    CHECK(runs == 0);
    gate.Open();
    there.Synchronize();
    CHECK(runs == 1);
  }
}

TEST("an event can be destroyed while a wait for it is pending") {
  TestStream a;
  TestStream b;
  std::atomic<int> runs{0};
  Gate gate;
  gate.Close(a);
  {
    TestEvent event(kEventDefault);
    CHECK_OK(driver.EventRecord(event, a));
    CHECK_OK(driver.StreamWaitEvent(b, event, 0));
  }
  CHECK_OK(driver.LaunchHostFunc(b, Increment, &runs));
  SleepMilliseconds(5);
  CHECK(runs == 0);
  gate.Open();
  b.Synchronize();
  CHECK(runs == 1);
}

TEST("a destroyed stream finishes its work") {
  std::atomic<int> runs{0};
  Gate gate;
  TestEvent event;
  {
    TestStream stream;
    gate.Close(stream);
    for (int i = 0; i < 10; ++i) CHECK_OK(driver.LaunchHostFunc(stream, Increment, &runs));
    CHECK_OK(driver.EventRecord(event, stream));
  }
  CHECK(runs == 0);
  CHECK(driver.EventQuery(event) == kErrorNotReady);
  gate.Open();
  CHECK_OK(driver.EventSynchronize(event));
  CHECK(runs == 10);
}

TEST("the legacy stream and blocking streams wait for each other; a non-blocking one is independent") {
  TestStream blocking(kStreamDefault);
  TestStream apart(kStreamNonBlocking);
  for (Stream legacy : {Stream{nullptr}, LegacyStream()}) {
    std::atomic<int> runs{0};
    {
      Gate gate;
      gate.Close(blocking);
      CHECK(driver.StreamQuery(legacy) == kErrorNotReady);
      CHECK_OK(driver.LaunchHostFunc(legacy, Increment, &runs));
      CHECK_OK(driver.StreamQuery(apart));
      SleepMilliseconds(10);
      CHECK(runs == 0);
      gate.Open();
      CHECK_OK(driver.StreamSynchronize(legacy));
      CHECK(runs == 1);
    }
    {
      Gate gate;
      gate.Close(legacy);
      CHECK_OK(driver.LaunchHostFunc(blocking, Increment, &runs));
      CHECK_OK(driver.LaunchHostFunc(apart, Increment, &runs));
      apart.Synchronize();
      SleepMilliseconds(10);
      CHECK(runs == 2);
      gate.Open();
      blocking.Synchronize();
      CHECK(runs == 3);
    }
  }
}

TEST("an event recorded on the legacy stream covers what blocking streams were given before") {
  TestStream blocking(kStreamDefault);
  TestEvent event;
  Gate gate;
  gate.Close(blocking);
  CHECK_OK(driver.EventRecord(event, nullptr));
  CHECK(driver.EventQuery(event) == kErrorNotReady);
  gate.Open();
  CHECK_OK(driver.EventSynchronize(event));
  CHECK_OK(driver.StreamQuery(blocking));
}

TEST("an event recorded on a blocking stream comes after what the legacy stream was given before") {
  TestStream blocking(kStreamDefault);
  TestEvent event;
  Gate gate;
  gate.Close(nullptr);
  CHECK_OK(driver.EventRecord(event, blocking));
  CHECK(driver.EventQuery(event) == kErrorNotReady);
  gate.Open();
  CHECK_OK(driver.EventSynchronize(event));
}

TEST("each thread has a default stream of its own on each device") {
  unsigned long long ids[3] = {};
  CHECK_OK(driver.StreamGetId(PerThreadStream(), &ids[0]));
  std::thread([&ids] {
    OnDevice device(0);
    CHECK_OK(driver.StreamGetId(PerThreadStream(), &ids[1]));
    std::atomic<int> runs{0};
    CHECK_OK(driver.LaunchHostFunc(PerThreadStream(), Increment, &runs));
    CHECK_OK(driver.StreamSynchronize(PerThreadStream()));
    CHECK(runs == 1);
  }).join();
  {
    OnDevice device(1);
    CHECK_OK(driver.StreamGetId(PerThreadStream(), &ids[2]));
  }
  CHECK(ids[0] != ids[1] && ids[0] != ids[2] && ids[1] != ids[2]);
  unsigned long long again = 0;
  CHECK_OK(driver.StreamGetId(PerThreadStream(), &again));
  CHECK(again == ids[0]);
  CHECK(driver.StreamDestroy(PerThreadStream()) == kErrorInvalidHandle);
}

TEST("a pageable source may change after the copy's call, while its stream is stalled") {
  TestStream stream;
  Pinned<int> memory(4);
  int source[4] = {1, 2, 3, 4};
  Gate gate;
  gate.Close(stream);
  CHECK_OK(driver.MemcpyAsync(memory.pointer(), reinterpret_cast<DevicePointer>(source), sizeof source, stream));
  source[3] = 9;
  gate.Open();
  stream.Synchronize();
  CHECK(memory[3] == 4);
}

TEST("a copy to pageable memory is complete when the call returns") {
  TestStream stream;
  DevicePointer memory = 0;
  CHECK_OK(driver.MemAlloc(&memory, 64));
  Gate gate;
  gate.Close(stream);
  CHECK_OK(driver.MemsetD8Async(memory, 5, 64, stream));
  std::thread opener([&gate] {
    SleepMilliseconds(10);
    gate.Open();
  });
  unsigned char target[64] = {};
  CHECK_OK(driver.MemcpyAsync(reinterpret_cast<DevicePointer>(target), memory, 64, stream));
  CHECK(target[0] == 5 && target[63] == 5);
  opener.join();
  CHECK_OK(driver.MemFree(memory));
}

TEST("a host function stalls its stream, and may not call the driver") {
  TestStream stream;
  std::atomic<int> status{-1};
  CHECK_OK(driver.LaunchHostFunc(
      stream,
      [](void* result) {
        std::size_t free;
        std::size_t total;
        static_cast<std::atomic<int>*>(result)->store(driver.MemGetInfo(&free, &total));
      },
      &status));
  stream.Synchronize();
  CHECK(status == kErrorNotPermitted);
}

TEST("the context's synchronization waits for every stream of its device") {
  std::atomic<int> runs{0};
  TestStream streams[3] = {TestStream(), TestStream(kStreamDefault), TestStream()};
  for (Stream stream : streams) {
    CHECK_OK(driver.LaunchHostFunc(
        stream, [](void*) { SleepMilliseconds(5); }, nullptr));
    CHECK_OK(driver.LaunchHostFunc(stream, Increment, &runs));
  }
  CHECK_OK(driver.CtxSynchronize());
  CHECK(runs == 3);
}

TEST("elapsed time is the time between two recordings") {
  TestStream stream;
  TestEvent start(kEventDefault);
  TestEvent end(kEventDefault);
  TestEvent untimed;
  float milliseconds = -1;
  CHECK(driver.EventElapsedTime(&milliseconds, start, end) == kErrorInvalidHandle);
  CHECK_OK(driver.EventRecord(start, stream));
  CHECK_OK(driver.LaunchHostFunc(
      stream, [](void*) { SleepMilliseconds(20); }, nullptr));
  Gate gate;
  gate.Close(stream);
  CHECK_OK(driver.EventRecord(end, stream));
  CHECK(driver.EventElapsedTime(&milliseconds, start, end) == kErrorNotReady);
  gate.Open();
  CHECK_OK(driver.EventSynchronize(end));
  CHECK_OK(driver.EventElapsedTime(&milliseconds, start, end));
  CHECK(milliseconds >= 19.0f && milliseconds < 10000.0f);
  CHECK_OK(driver.EventRecord(untimed, stream));
  CHECK(driver.EventElapsedTime(&milliseconds, start, untimed) == kErrorInvalidHandle);
}

TEST("a timed event recorded again while the first recording is pending keeps the second's time") {
  TestStream a;
  TestStream b;
  TestEvent event(kEventDefault);
  TestEvent before(kEventDefault);
  Gate gate;
  gate.Close(a);
  CHECK_OK(driver.EventRecord(event, a));
  CHECK_OK(driver.EventRecord(before, b));
  CHECK_OK(driver.EventRecord(event, b));
  float first = -1;
  CHECK_OK(driver.EventElapsedTime(&first, before, event));
  SleepMilliseconds(5);
  gate.Open();
  a.Synchronize();
  float second = -1;
  CHECK_OK(driver.EventElapsedTime(&second, before, event));
  CHECK(first >= 0 && first == second);
}

TEST("streams report their creation options, with clamped priorities and unique ids") {
  int least = -100;
  int greatest = -100;
  CHECK_OK(driver.CtxGetStreamPriorityRange(&least, &greatest));
  CHECK(least == 0 && greatest == -5);
  unsigned long long last_id = 0;
  Stream last = nullptr;
  for (int i = 0; i < 1000; ++i) {
    Stream stream = nullptr;
    CHECK_OK(driver.StreamCreateWithPriority(&stream, kStreamNonBlocking, -100));
    unsigned long long id = 0;
    unsigned flags = 0;
    int priority = 0;
    CHECK_OK(driver.StreamGetId(stream, &id));
    CHECK_OK(driver.StreamGetFlags(stream, &flags));
    CHECK_OK(driver.StreamGetPriority(stream, &priority));
    CHECK(id > last_id && stream != last && flags == kStreamNonBlocking && priority == -5);
    CHECK_OK(driver.StreamDestroy(stream));
    CHECK(driver.StreamQuery(stream) == kErrorInvalidHandle);
    last_id = id;
    last = stream;
  }
}

}  // namespace cistern::test
