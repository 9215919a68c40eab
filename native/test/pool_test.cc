// Stream-ordered memory: which stream may have what when, and what goes back to the device.
#include <vector>

#include "fixture.h"

namespace cistern::test {
namespace {

// One block of a pool whose segment it fills, freed on a stalled stream.
struct FreedOnStalledStream {
  explicit FreedOnStalledStream(std::uint64_t bytes = 2 * kMiB) {
    block = pool.Allocate(bytes, a);
    gate.Close(a);
    FreeAsync(block, a);
  }
  ~FreedOnStalledStream() {
    gate.Open();
    CHECK_OK(driver.CtxSynchronize());
  }

  TestPool pool;
  TestStream a;
  TestStream b;
  DevicePointer block = 0;
  Gate gate;
};

std::uint64_t FreeBytes() {
  std::size_t free = 0;
  std::size_t total = 0;
  CHECK_OK(driver.MemGetInfo(&free, &total));
  return free;
}

}  // namespace

TEST("memory freed on a busy stream serves that stream at once") {
  FreedOnStalledStream freed;
  CHECK(freed.pool.Allocate(2 * kMiB, freed.a) == freed.block);
  FreeAsync(freed.block, freed.a);
}

TEST("memory freed on a busy stream does not serve another one") {
  FreedOnStalledStream freed;
  DevicePointer other = freed.pool.Allocate(2 * kMiB, freed.b);
  CHECK(other != freed.block);
  FreeAsync(other, freed.b);
}

TEST("memory serves another stream once its free has happened") {
  FreedOnStalledStream freed;
  freed.gate.Open();
  while (driver.StreamQuery(freed.a) != kSuccess) SleepMilliseconds(1);
  CHECK(freed.pool.Allocate(2 * kMiB, freed.b) == freed.block);
  FreeAsync(freed.block, freed.b);
}

TEST("without opportunistic reuse it does so only after a synchronization") {
  FreedOnStalledStream freed;
  freed.pool.SetFlag(kPoolReuseAllowOpportunistic, 0);
  freed.gate.Open();
  while (driver.StreamQuery(freed.a) != kSuccess) SleepMilliseconds(1);
  DevicePointer other = freed.pool.Allocate(2 * kMiB, freed.b);
  CHECK(other != freed.block);
  freed.pool.Set(kPoolReleaseThreshold, 4 * kMiB - 1);
  freed.a.Synchronize();
  CHECK(freed.pool.Get(kPoolReservedCurrent) == 2 * kMiB);
  FreeAsync(other, freed.b);
}

TEST("memory serves a stream that has waited for an event recorded after the free") {
  FreedOnStalledStream freed;
  TestEvent event;
  CHECK_OK(driver.EventRecord(event, freed.a));
  CHECK_OK(driver.StreamWaitEvent(freed.b, event, 0));
  CHECK(freed.pool.Allocate(2 * kMiB, freed.b) == freed.block);
  FreeAsync(freed.block, freed.b);
}

TEST("an event recorded before the free is not enough") {
  TestPool pool;
  TestStream a;
  TestStream b;
  TestEvent event;
  DevicePointer block = pool.Allocate(2 * kMiB, a);
  Gate gate;
  gate.Close(a);
  CHECK_OK(driver.EventRecord(event, a));
  CHECK_OK(driver.LaunchHostFunc(
      a, [](void*) {}, nullptr));
  FreeAsync(block, a);
  CHECK_OK(driver.StreamWaitEvent(b, event, 0));
  DevicePointer other = pool.Allocate(2 * kMiB, b);
  CHECK(other != block);
  FreeAsync(other, b);
}

TEST("of several frees a stream gets those that it has waited for") {
  TestPool pool;
  TestStream a;
  TestStream b;
  TestEvent event;
  DevicePointer first = pool.Allocate(2 * kMiB, a);
  DevicePointer second = pool.Allocate(2 * kMiB, a);
  Gate gate;
  gate.Close(a);
  FreeAsync(first, a);
  CHECK_OK(driver.EventRecord(event, a));
  CHECK_OK(driver.LaunchHostFunc(
      a, [](void*) {}, nullptr));
  FreeAsync(second, a);
  CHECK_OK(driver.StreamWaitEvent(b, event, 0));
  CHECK(pool.Allocate(2 * kMiB, b) == first);
  DevicePointer third = pool.Allocate(2 * kMiB, b);
  CHECK(third != second);
  FreeAsync(first, b);
  FreeAsync(third, b);
}

TEST("event dependencies are not followed if the pool's setting forbids it") {
  FreedOnStalledStream freed;
  freed.pool.SetFlag(kPoolReuseFollowEventDependencies, 0);
  TestEvent event;
  CHECK_OK(driver.EventRecord(event, freed.a));
  CHECK_OK(driver.StreamWaitEvent(freed.b, event, 0));
  DevicePointer other = freed.pool.Allocate(2 * kMiB, freed.b);
  CHECK(other != freed.block);
  FreeAsync(other, freed.b);
}

TEST("with the device exhausted, a stream is made to wait for another's free") {
  std::uint64_t all = FreeBytes() / (2 * kMiB) * (2 * kMiB);
  FreedOnStalledStream freed(all);
  freed.pool.SetFlag(kPoolReuseAllowInternalDependencies, 0);
  DevicePointer block = 0;
  CHECK(driver.MemAllocFromPoolAsync(&block, 2 * kMiB, freed.pool, freed.b) == kErrorOutOfMemory);
  freed.pool.SetFlag(kPoolReuseAllowInternalDependencies, 1);
  CHECK_OK(driver.MemAllocFromPoolAsync(&block, 2 * kMiB, freed.pool, freed.b));
  CHECK(block == freed.block);
  CHECK(driver.StreamQuery(freed.b) == kErrorNotReady);
  freed.gate.Open();
  freed.b.Synchronize();
  FreeAsync(block, freed.b);
}

TEST("a free on the legacy stream comes after the work of blocking streams") {
  TestPool pool;
  TestStream blocking(kStreamDefault);
  TestStream other;
  DevicePointer block = pool.Allocate(2 * kMiB, nullptr);
  Gate gate;
  gate.Close(blocking);
  FreeAsync(block, nullptr);
  DevicePointer second = pool.Allocate(2 * kMiB, other);
  CHECK(second != block);
  FreeAsync(second, other);
}

TEST("synchronization gives back empty memory above the release threshold") {
  for (int way = 0; way < 3; ++way) {
    TestStream stream;
    TestPool pool(4 * kMiB);
    std::uint64_t before = FreeBytes();
    std::vector<DevicePointer> blocks;
    for (int i = 0; i < 5; ++i) blocks.push_back(pool.Allocate(2 * kMiB, stream));
    CHECK(before - FreeBytes() == 10 * kMiB);
    for (DevicePointer block : blocks) FreeAsync(block, stream);
    CHECK(pool.Get(kPoolReservedCurrent) == 10 * kMiB);
    TestEvent event;
    CHECK_OK(driver.EventRecord(event, stream));
    if (way == 0) CHECK_OK(driver.StreamSynchronize(stream));
    if (way == 1) CHECK_OK(driver.EventSynchronize(event));
    if (way == 2) CHECK_OK(driver.CtxSynchronize());
    CHECK(pool.Get(kPoolReservedCurrent) == 4 * kMiB);
    CHECK_OK(driver.MemPoolTrimTo(pool, 2 * kMiB));
    CHECK(pool.Get(kPoolReservedCurrent) == 2 * kMiB);
    CHECK_OK(driver.MemPoolTrimTo(pool, 0));
    CHECK(FreeBytes() == before);
  }
}

TEST("a trim keeps segments in use, and frees that have not happened") {
  FreedOnStalledStream freed;
  DevicePointer used = freed.pool.Allocate(4096, freed.b);
  CHECK_OK(driver.MemPoolTrimTo(freed.pool, 0));
  CHECK(freed.pool.Get(kPoolReservedCurrent) == 4 * kMiB);
  FreeAsync(used, freed.b);
  CHECK_OK(driver.MemPoolTrimTo(freed.pool, 0));
  CHECK(freed.pool.Get(kPoolReservedCurrent) == 2 * kMiB);
}

TEST("used and reserved bytes, current and peak, are exact") {
  TestStream stream;
  TestPool pool;
  DevicePointer a = pool.Allocate(1, stream);
  DevicePointer b = pool.Allocate(513, stream);
  CHECK(pool.Get(kPoolUsedCurrent) == 1536);
  FreeAsync(a, stream);
  CHECK(pool.Get(kPoolUsedCurrent) == 1024 && pool.Get(kPoolUsedHigh) == 1536);
  pool.Set(kPoolUsedHigh, 0);
  CHECK(pool.Get(kPoolUsedHigh) == 1024);
  std::uint64_t one = 1;
  CHECK(driver.MemPoolSetAttribute(pool, kPoolUsedHigh, &one) == kErrorInvalidValue);
  CHECK(driver.MemPoolSetAttribute(pool, kPoolUsedCurrent, &one) == kErrorInvalidValue);
  CHECK(pool.Get(kPoolReservedHigh) == 2 * kMiB);
  FreeAsync(b, stream);
  CHECK_OK(driver.MemPoolTrimTo(pool, 0));
  CHECK(pool.Get(kPoolReservedHigh) == 2 * kMiB && pool.Get(kPoolReservedCurrent) == 0);
  pool.Set(kPoolReservedHigh, 0);
  CHECK(pool.Get(kPoolReservedHigh) == 0);
}

TEST("the smallest hole that fits is taken, and holes merge") {
  TestStream stream;
  TestPool pool;
  const std::uint64_t sizes[] = {64 * 1024, 512, 192 * 1024, 512, 128 * 1024, 512, 2048, 512, 4096, 512};
  std::vector<DevicePointer> blocks;
  for (std::uint64_t bytes : sizes) blocks.push_back(pool.Allocate(bytes, stream));
  for (int hole : {0, 2, 4, 6, 8}) FreeAsync(blocks[hole], stream);
  CHECK(pool.Allocate(100 * 1024, stream) == blocks[4]);
  CHECK(pool.Allocate(150 * 1024, stream) == blocks[2]);
  CHECK(pool.Allocate(2049, stream) == blocks[8]);
  CHECK(pool.Allocate(60 * 1024, stream) == blocks[0]);
  CHECK(pool.Allocate(2048, stream) == blocks[6]);
  for (DevicePointer block : blocks) FreeAsync(block, stream);
  CHECK(pool.Get(kPoolUsedCurrent) == 0);
  CHECK(pool.Allocate(2 * kMiB, stream) == blocks[0]);
  CHECK(pool.Get(kPoolReservedCurrent) == 2 * kMiB);
  FreeAsync(blocks[0], stream);
}

TEST("allocations outlive their pool") {
  TestStream stream;
  std::uint64_t before = FreeBytes();
  Pool pool = nullptr;
  PoolProperties properties = PoolOn(0);
  CHECK_OK(driver.MemPoolCreate(&pool, &properties));
  DevicePointer a = 0;
  DevicePointer b = 0;
  CHECK_OK(driver.MemAllocFromPoolAsync(&a, 4096, pool, stream));
  CHECK_OK(driver.MemAllocFromPoolAsync(&b, 4096, pool, stream));
  CHECK_OK(driver.MemPoolDestroy(pool));
  CHECK(driver.MemPoolDestroy(pool) == kErrorInvalidValue);
  CHECK(driver.MemAllocFromPoolAsync(&a, 4096, pool, stream) == kErrorInvalidValue);
  CHECK_OK(driver.MemsetD8Async(b, 3, 4096, stream));
  FreeAsync(a, stream);
  FreeAsync(b, stream);
  stream.Synchronize();
  CHECK(FreeBytes() == before);
}

TEST("exhaustion takes back empty memory of pools, for another pool and for a plain allocation") {
  TestStream stream;
  TestPool keeper;
  TestPool taker(0);
  std::uint64_t all = FreeBytes() / (2 * kMiB) * (2 * kMiB);
  FreeAsync(keeper.Allocate(all, stream), stream);
  DevicePointer block = taker.Allocate(4 * kMiB, stream);
  CHECK(keeper.Get(kPoolReservedCurrent) == 0);
  FreeAsync(block, stream);
  FreeAsync(keeper.Allocate(all - 4 * kMiB, stream), stream);
  CHECK_OK(driver.MemAlloc(&block, 8 * kMiB));
  CHECK_OK(driver.MemFree(block));
}

TEST("a pool's own maximum is enforced") {
  TestStream stream;
  Pool pool = nullptr;
  PoolProperties properties = PoolOn(0);
  properties.max_size = 4 * kMiB;
  CHECK_OK(driver.MemPoolCreate(&pool, &properties));
  DevicePointer a = 0;
  DevicePointer b = 0;
  CHECK_OK(driver.MemAllocFromPoolAsync(&a, 4 * kMiB, pool, stream));
  CHECK(driver.MemAllocFromPoolAsync(&b, 512, pool, stream) == kErrorOutOfMemory);
  FreeAsync(a, stream);
  CHECK_OK(driver.MemAllocFromPoolAsync(&b, 512, pool, stream));
  FreeAsync(b, stream);
  CHECK_OK(driver.MemPoolDestroy(pool));
}

TEST("plain and pool memory may each be freed by the other's call") {
  TestStream stream;
  TestPool pool;
  CHECK_OK(driver.MemFree(pool.Allocate(4096, stream)));
  CHECK(pool.Get(kPoolUsedCurrent) == 0);
  std::uint64_t before = FreeBytes();
  DevicePointer plain = 0;
  CHECK_OK(driver.MemAlloc(&plain, 4096));
  Gate gate;
  gate.Close(stream);
  FreeAsync(plain, stream);
  CHECK(driver.MemFreeAsync(plain, stream) == kErrorInvalidValue);
  CHECK(driver.MemFree(plain) == kErrorInvalidValue);
  gate.Open();
  stream.Synchronize();
  CHECK(FreeBytes() == before);
  CHECK_OK(driver.MemAlloc(&plain, 4096));
  FreeAsync(plain, stream);
  CHECK(FreeBytes() == before);
}

TEST("pools refuse memory that they did not give out") {
  TestStream stream;
  TestPool pool;
  DevicePointer block = pool.Allocate(4096, stream);
  CHECK(driver.MemFreeAsync(0, stream) == kErrorInvalidValue);
  CHECK(driver.MemFreeAsync(block + 512, stream) == kErrorInvalidValue);
  CHECK(driver.MemFreeAsync(block + 1, stream) == kErrorInvalidValue);
  CHECK(driver.MemFreeAsync(reinterpret_cast<DevicePointer>(&block), stream) == kErrorInvalidValue);
  FreeAsync(block, stream);
  CHECK(driver.MemFreeAsync(block, stream) == kErrorInvalidValue);
  CHECK(driver.MemFree(block) == kErrorInvalidValue);
  CHECK(driver.MemAllocFromPoolAsync(&block, 0, pool, stream) == kErrorInvalidValue);
  CHECK(driver.MemAllocFromPoolAsync(&block, ~std::size_t{0}, pool, stream) == kErrorOutOfMemory);
  CHECK(driver.MemAllocFromPoolAsync(&block, kTotal + 1, pool, stream) == kErrorOutOfMemory);
  PoolProperties properties = PoolOn(7);
  Pool none = nullptr;
  CHECK(driver.MemPoolCreate(&none, &properties) == kErrorInvalidValue);
}

}  // namespace cistern::test
