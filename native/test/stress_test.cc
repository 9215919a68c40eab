// Many threads, streams and blocks at once: no stream ever sees its block change, however it got
// the memory.
#include <cstring>
#include <random>
#include <vector>

#include "fixture.h"

namespace cistern::test {
namespace {

constexpr int kStreams = 4;
constexpr std::uint64_t kWords = 1024;

// Fails the test if the block does not hold the tag that its owner filled it with.
struct Verification {
  DevicePointer block;
  std::uint32_t tag;
};

void Verify(void* argument) {
  Verification* verification = static_cast<Verification*>(argument);
  const std::uint32_t* words = reinterpret_cast<const std::uint32_t*>(verification->block);
  for (std::uint64_t i : {std::uint64_t{0}, kWords / 2, kWords - 1}) {
    if (words[i] != verification->tag) Fail(__FILE__, __LINE__, "a block was written by two streams at once");
  }
  delete verification;
}

void Work(Pool pool, const Stream* streams, unsigned seed, int steps) {
  OnDevice device(0);
  TestEvent event;
  std::mt19937 random(seed);
  for (int step = 0; step < steps; ++step) {
    Stream stream = streams[random() % kStreams];
    DevicePointer block = 0;
    Status status = driver.MemAllocFromPoolAsync(&block, kWords * 4, pool, stream);
    if (status == kErrorOutOfMemory) {
      CHECK_OK(driver.StreamSynchronize(stream));
      continue;
    }
    CHECK_OK(status);
    std::uint32_t tag = static_cast<std::uint32_t>(random());
    CHECK_OK(driver.MemsetD32Async(block, tag, kWords, stream));
    CHECK_OK(driver.LaunchHostFunc(stream, Verify, new Verification{block, tag}));
    Stream last = stream;
    if (random() % 4 == 0) {
      last = streams[random() % kStreams];
      CHECK_OK(driver.EventRecord(event, stream));
      CHECK_OK(driver.StreamWaitEvent(last, event, 0));
      CHECK_OK(driver.LaunchHostFunc(last, Verify, new Verification{block, tag}));
    }
    FreeAsync(block, last);
    if (random() % 64 == 0) CHECK_OK(driver.StreamSynchronize(last));
    if (random() % 256 == 0) CHECK_OK(driver.MemPoolTrimTo(pool, 0));
  }
}

void RunStress(TestPool& pool, unsigned flags) {
  TestStream streams[kStreams] = {TestStream(flags), TestStream(flags), TestStream(kStreamNonBlocking), TestStream(kStreamNonBlocking)};
  Stream handles[kStreams] = {streams[0], streams[1], streams[2], flags == kStreamDefault ? nullptr : static_cast<Stream>(streams[3])};
  std::thread threads[3];
  unsigned seed = flags + 1;
  for (std::thread& thread : threads) thread = std::thread([&, seed = seed++] { Work(pool, handles, seed, 3000); });
  for (std::thread& thread : threads) thread.join();
  CHECK_OK(driver.CtxSynchronize());
  CHECK(pool.Get(kPoolUsedCurrent) == 0);
  CHECK_OK(driver.MemPoolTrimTo(pool, 0));
  CHECK(pool.Get(kPoolReservedCurrent) == 0);
}

}  // namespace

TEST("threads that share streams and a pool never share a block") {
  TestPool pool;
  RunStress(pool, kStreamNonBlocking);
}

TEST("threads that share blocking streams and the legacy stream never share a block") {
  TestPool pool(0);
  RunStress(pool, kStreamDefault);
}

TEST("threads never share a block if the device has room for little more than one segment") {
  CHECK_OK(software::Configure(2 * kMiB, 0));
  TestPool pool;
  RunStress(pool, kStreamNonBlocking);
  CHECK_OK(software::Configure(kTotal, 0));
}

TEST("streams and events come and go on many threads") {
  std::thread threads[3];
  for (std::thread& thread : threads) {
    thread = std::thread([] {
      OnDevice device(0);
      std::atomic<int> runs{0};
      TestEvent events[2];
      for (int i = 0; i < 300; ++i) {
        TestStream stream(i % 2 == 0 ? kStreamDefault : kStreamNonBlocking);
        CHECK_OK(driver.StreamWaitEvent(stream, events[0], 0));
        CHECK_OK(driver.LaunchHostFunc(
            stream, [](void* count) { static_cast<std::atomic<int>*>(count)->fetch_add(1); }, &runs));
        CHECK_OK(driver.EventRecord(events[0], stream));
        TestEvent brief(kEventDefault);
        CHECK_OK(driver.EventRecord(brief, PerThreadStream()));
      }
      CHECK_OK(driver.EventSynchronize(events[0]));
      CHECK_OK(driver.CtxSynchronize());
      CHECK(runs == 300);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace cistern::test
