// Device memory and its limits, pinned and managed memory, copies and their checks.
#include <unistd.h>

#include <cstring>
#include <map>
#include <random>
#include <vector>

#include "fixture.h"

namespace cistern::test {
namespace {

struct Info {
  std::size_t free = 0;
  std::size_t total = 0;
  Info() { CHECK_OK(driver.MemGetInfo(&free, &total)); }
};

DevicePointer Allocate(std::uint64_t bytes) {
  DevicePointer pointer = 0;
  CHECK_OK(driver.MemAlloc(&pointer, bytes));
  return pointer;
}

[[maybe_unused]] std::uint64_t ResidentBytes() {
  long pages = 0;
  long resident = 0;
  std::FILE* file = std::fopen("/proc/self/statm", "re");
  CHECK(std::fscanf(file, "%ld %ld", &pages, &resident) == 2);
  std::fclose(file);
  return static_cast<std::uint64_t>(resident) * static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
}

int RangeAttribute(int attribute, DevicePointer pointer, std::uint64_t bytes) {
  int value = -99;
  CHECK_OK(driver.MemRangeGetAttribute(&value, sizeof value, attribute, pointer, bytes));
  return value;
}

}  // namespace

TEST("the sum of all allocations is limited, to the granule") {
  Info before;
  CHECK(before.total == kTotal);
  DevicePointer most = Allocate(before.free - 512);
  DevicePointer last = Allocate(1);
  CHECK(Info().free == 0);
  DevicePointer none = 0;
  CHECK(driver.MemAlloc(&none, 1) == kErrorOutOfMemory);
  CHECK(most % 512 == 0 && last % 512 == 0 && most < DevicePointer{1} << 47);
  CHECK_OK(driver.MemFree(last));
  CHECK_OK(driver.MemFree(most));
  CHECK(Info().free == before.free);
  CHECK(driver.MemAlloc(&none, before.total + 1) == kErrorOutOfMemory);
  CHECK(driver.MemAlloc(&none, ~std::size_t{0}) == kErrorOutOfMemory);
  CHECK(driver.MemAlloc(&none, 0) == kErrorInvalidValue);
}

TEST("registered memory is pinned from its registration to its end, and stays the program's") {
  alignas(4096) static unsigned char memory[3 * 4096];
  CHECK_OK(driver.MemHostRegister(memory + 4096, 4096, kHostRegisterPortable | kHostRegisterDeviceMap));
  unsigned type = 0;
  CHECK_OK(driver.PointerGetAttribute(&type, kPointerMemoryType, reinterpret_cast<DevicePointer>(memory + 5000)));
  CHECK(type == kMemoryTypeHost);
  CHECK(driver.PointerGetAttribute(&type, kPointerMemoryType, reinterpret_cast<DevicePointer>(memory + 2 * 4096)) != kSuccess);
  for (int page : {0, 1}) CHECK(driver.MemHostRegister(memory + page * 4096, 2 * 4096, 0) == kErrorHostMemoryAlreadyRegistered);
  CHECK(driver.MemFreeHost(memory + 4096) == kErrorInvalidValue);
  CHECK(driver.MemHostUnregister(memory + 4097) == kErrorHostMemoryNotRegistered);
  CHECK_OK(driver.MemHostUnregister(memory + 4096));
  CHECK(driver.MemHostUnregister(memory + 4096) == kErrorHostMemoryNotRegistered);
  memory[4096] = 1;
  CHECK_OK(driver.MemHostRegister(memory, 3 * 4096, 0));
  CHECK_OK(driver.MemHostUnregister(memory));
  CHECK(driver.MemHostRegister(nullptr, 4096, 0) == kErrorInvalidValue);
  CHECK(driver.MemHostRegister(memory, 0, 0) == kErrorInvalidValue);
  CHECK(driver.MemHostRegister(memory, 4096, 16) == kErrorInvalidValue);
  Pinned<char> pinned(64);
  CHECK(driver.MemHostUnregister(reinterpret_cast<void*>(pinned.pointer())) == kErrorHostMemoryNotRegistered);
  CHECK(driver.MemHostRegister(reinterpret_cast<void*>(pinned.pointer()), 64, 0) == kErrorHostMemoryAlreadyRegistered);
}

TEST("holes between allocations do not make an allocation fail that the total allows") {
  Info before;
  std::vector<DevicePointer> blocks;
  for (std::uint64_t i = 0; i < before.free / kMiB; ++i) blocks.push_back(Allocate(kMiB));
  for (std::size_t i = 0; i < blocks.size(); i += 2) CHECK_OK(driver.MemFree(blocks[i]));
  std::uint64_t half = Info().free;
  DevicePointer large = Allocate(half);
  CHECK_OK(driver.MemFree(large));
  for (std::size_t i = 1; i < blocks.size(); i += 2) CHECK_OK(driver.MemFree(blocks[i]));
  CHECK(Info().free == before.free);
}

TEST("allocations never overlap, whatever the order of their frees") {
  std::mt19937_64 random(1);
  std::map<DevicePointer, std::uint64_t> live;
  Info before;
  std::uint64_t bytes_live = 0;
  for (int step = 0; step < 20000; ++step) {
    if (live.size() < 2000 && random() % 5 < 3) {
      std::uint64_t bytes = random() % 10 == 0 ? random() % 400000 + 1 : random() % 8000 + 1;
      DevicePointer pointer = Allocate(bytes);
      auto next = live.lower_bound(pointer);
      CHECK(next == live.end() || pointer + bytes <= next->first);
      CHECK(next == live.begin() || std::prev(next)->first + std::prev(next)->second <= pointer);
      live[pointer] = bytes;
      bytes_live += (bytes + 511) / 512 * 512;
    } else if (!live.empty()) {
      auto victim = live.lower_bound(live.begin()->first + random() % (live.rbegin()->first - live.begin()->first + 1));
      bytes_live -= (victim->second + 511) / 512 * 512;
      CHECK_OK(driver.MemFree(victim->first));
      live.erase(victim);
    }
    if (step % 1000 == 0) CHECK(before.free - Info().free == bytes_live);
  }
  for (auto [pointer, bytes] : live) CHECK_OK(driver.MemFree(pointer));
  CHECK(Info().free == before.free);
}

TEST("a free waits for the device's work") {
  TestStream stream;
  DevicePointer block = Allocate(4096);
  std::atomic<bool> has_run{false};
  CHECK_OK(driver.LaunchHostFunc(
      stream,
      [](void* flag) {
        SleepMilliseconds(20);
        static_cast<std::atomic<bool>*>(flag)->store(true);
      },
      &has_run));
  CHECK_OK(driver.MemFree(block));
  CHECK(has_run);
}

#ifndef __SANITIZE_THREAD__  // whose own records of the memory stay resident
TEST("memory that was written goes back to the machine when it is freed, and can be allocated again") {
  TestStream stream;
  for (bool is_pool : {false, true}) {
    TestPool pool(0);
    std::uint64_t before = ResidentBytes();
    DevicePointer block = is_pool ? pool.Allocate(64 * kMiB, stream) : Allocate(64 * kMiB);
    CHECK_OK(driver.MemsetD8Async(block, 1, 64 * kMiB, stream));
    stream.Synchronize();
    CHECK(ResidentBytes() > before + 60 * kMiB);
    if (is_pool) {
      FreeAsync(block, stream);
      stream.Synchronize();
    } else {
      CHECK_OK(driver.MemFree(block));
    }
    CHECK(ResidentBytes() < before + 8 * kMiB);
    DevicePointer again = Allocate(64 * kMiB);
    unsigned char byte = 0;
    CHECK_OK(driver.MemcpyAsync(reinterpret_cast<DevicePointer>(&byte), again + 12345, 1, stream));
    CHECK_OK(driver.MemFree(again));
  }
}
#endif

TEST("a copy or a fill must stay within one allocation") {
  TestStream stream;
  TestPool pool;
  DevicePointer plain = Allocate(4096);
  DevicePointer pooled = pool.Allocate(4096, stream);
  Pinned<char> pinned(4096);
  DevicePointer managed = 0;
  CHECK_OK(driver.MemAllocManaged(&managed, 4096, kMemAttachGlobal));
  for (DevicePointer block : {plain, pooled, pinned.pointer(), managed}) {
    CHECK_OK(driver.MemsetD8Async(block, 1, 4096, stream));
    CHECK_OK(driver.MemsetD8Async(block + 4095, 1, 1, stream));
    CHECK_OK(driver.MemsetD8Async(block + 5000, 1, 0, stream));
    CHECK(driver.MemsetD8Async(block + 1, 1, 4096, stream) == kErrorInvalidValue);
    CHECK(driver.MemsetD8Async(block, 1, ~std::size_t{0}, stream) == kErrorInvalidValue);
    CHECK(driver.MemsetD32Async(block + 2, 1, 1, stream) == kErrorInvalidValue);
    CHECK(driver.MemsetD32Async(block, 1, ~std::size_t{0} / 2, stream) == kErrorInvalidValue);
    CHECK(driver.MemcpyAsync(block, plain, 4097, stream) == kErrorInvalidValue);
    CHECK(driver.MemcpyAsync(plain, block + 4000, 97, stream) == kErrorInvalidValue);
    CHECK_OK(driver.MemcpyAsync(plain, block + 4000, 96, stream));
  }
  stream.Synchronize();
  char host[16] = {};
  CHECK(driver.MemsetD8Async(reinterpret_cast<DevicePointer>(host), 1, sizeof host, stream) == kErrorInvalidValue);
  CHECK(driver.MemcpyAsync(plain, 0, 1, stream) == kErrorInvalidValue);
  FreeAsync(pooled, stream);
  CHECK(driver.MemsetD8Async(pooled, 1, 1, stream) == kErrorInvalidValue);
  CHECK_OK(driver.MemFree(plain));
  CHECK(driver.MemsetD8Async(plain, 1, 1, stream) == kErrorInvalidValue);
  CHECK_OK(driver.MemFree(managed));
  CHECK(driver.MemFree(managed) == kErrorInvalidValue);
}

TEST("a batch copies all of its list, or is refused") {
  TestStream stream;
  const DevicePointer plain = Allocate(4096);
  const DevicePointer other = Allocate(4096);
  Pinned<unsigned char> pinned(4096);
  CHECK_OK(driver.MemsetD8Async(plain, 1, 2048, stream));
  CHECK_OK(driver.MemsetD8Async(plain + 2048, 2, 2048, stream));
  CHECK_OK(driver.MemsetD8Async(other, 3, 4096, stream));
  DevicePointer destinations[] = {pinned.pointer(), pinned.pointer() + 1000, pinned.pointer() + 3000};
  DevicePointer sources[] = {plain + 1500, other, plain};
  std::size_t sizes[] = {1000, 2000, 1096};
  CopyAttributes attributes[] = {{kSourceOrderStream, {kLocationNone, 0}, {kLocationNone, 0}, 0},
                                 {kSourceOrderAny, {kLocationNone, 0}, {kLocationNone, 0}, 0}};
  std::size_t first_copies[] = {0, 1};
  const auto copy = [&](Stream on, std::size_t count, std::size_t attribute_count) {
    return driver.MemcpyBatchAsync(destinations, sources, sizes, count, attributes, first_copies, attribute_count, on);
  };
  CHECK_OK(copy(stream, 3, 1));
  stream.Synchronize();
  for (std::size_t i = 0; i < 4096; ++i) CHECK(pinned[i] == (i < 548 ? 1 : i < 1000 ? 2 : i < 3000 ? 3 : i < 4096 ? 1 : 0));
  CHECK_OK(copy(stream, 3, 2));
  CHECK_OK(copy(PerThreadStream(), 1, 1));
  CHECK_OK(driver.StreamSynchronize(PerThreadStream()));
  stream.Synchronize();
  for (Stream legacy : {Stream{nullptr}, LegacyStream()}) CHECK(copy(legacy, 3, 1) == kErrorInvalidValue);
  CHECK(copy(stream, 0, 0) == kErrorInvalidValue);
  CHECK(copy(stream, 3, 0) == kErrorInvalidValue);
  CHECK(copy(stream, 1, 2) == kErrorInvalidValue);
  for (std::size_t first : {std::size_t{0}, std::size_t{3}}) {
    first_copies[1] = first;
    CHECK(copy(stream, 3, 2) == kErrorInvalidValue);
  }
  first_copies[0] = 1;
  CHECK(copy(stream, 3, 1) == kErrorInvalidValue);
  first_copies[0] = 0;
  attributes[0].source_order = 0;
  CHECK(copy(stream, 3, 1) == kErrorInvalidValue);
  attributes[0].source_order = kSourceOrderStream;
  // Nothing of it is copied if one copy goes past its memory, or has no bytes.
  std::fill_n(&pinned[0], 4096, static_cast<unsigned char>(9));
  sizes[2] = 4097;
  CHECK(copy(stream, 3, 1) == kErrorInvalidValue);
  sizes[2] = 0;
  CHECK(copy(stream, 3, 1) == kErrorInvalidValue);
  stream.Synchronize();
  for (std::size_t i = 0; i < 4096; ++i) CHECK(pinned[i] == 9);
  CHECK_OK(driver.MemFree(plain));
  CHECK_OK(driver.MemFree(other));
}

TEST("bytes arrive intact, host to device to device and back") {
  TestStream stream;
  constexpr std::size_t kCount = 300000;
  std::vector<std::uint32_t> source(kCount);
  std::vector<std::uint32_t> target(kCount);
  for (std::size_t i = 0; i < kCount; ++i) source[i] = static_cast<std::uint32_t>(i * 2654435761u);
  DevicePointer here = Allocate(kCount * 4);
  DevicePointer there = 0;
  {
    OnDevice other(1);
    there = Allocate(kCount * 4);
  }
  CHECK_OK(driver.MemcpyAsync(here, reinterpret_cast<DevicePointer>(source.data()), kCount * 4, stream));
  CHECK_OK(driver.MemcpyAsync(there, here, kCount * 4, stream));
  CHECK_OK(driver.MemcpyAsync(reinterpret_cast<DevicePointer>(target.data()), there, kCount * 4, stream));
  CHECK(source == target);
  CHECK_OK(driver.MemFree(here));
  CHECK_OK(driver.MemFree(there));
}

TEST("a pointer's attributes say what it points to") {
  TestStream stream;
  Pinned<char> pinned(64);
  DevicePointer managed = 0;
  CHECK_OK(driver.MemAllocManaged(&managed, 64, kMemAttachGlobal));
  OnDevice other(1);
  DevicePointer device = Allocate(64);
  struct Expected {
    DevicePointer pointer;
    unsigned type;
    unsigned is_managed;
    int ordinal;
  };
  for (Expected expected : {Expected{pinned.pointer() + 3, kMemoryTypeHost, 0, 0}, Expected{managed + 3, kMemoryTypeDevice, 1, 0},
                            Expected{device + 3, kMemoryTypeDevice, 0, 1}}) {
    unsigned type = 0;
    unsigned is_managed = 9;
    int ordinal = -1;
    CHECK_OK(driver.PointerGetAttribute(&type, kPointerMemoryType, expected.pointer));
    CHECK_OK(driver.PointerGetAttribute(&is_managed, kPointerIsManaged, expected.pointer));
    CHECK_OK(driver.PointerGetAttribute(&ordinal, kPointerDeviceOrdinal, expected.pointer));
    CHECK(type == expected.type && is_managed == expected.is_managed && ordinal == expected.ordinal);
  }
  int value = 0;
  CHECK(driver.PointerGetAttribute(&value, kPointerMemoryType, reinterpret_cast<DevicePointer>(&value)) == kErrorInvalidValue);
  CHECK(driver.PointerGetAttribute(&value, kPointerMemoryType, device + 512) == kErrorInvalidValue);
  CHECK_OK(driver.MemFree(device));
  CHECK_OK(driver.MemFree(managed));
}

TEST("managed memory is not limited by the device's total") {
  Info before;
  DevicePointer managed = 0;
  CHECK_OK(driver.MemAllocManaged(&managed, 2 * kTotal, kMemAttachGlobal));
  CHECK(Info().free == before.free);
  reinterpret_cast<char*>(managed)[2 * kTotal - 1] = 1;
  CHECK_OK(driver.MemFree(managed));
  CHECK(driver.MemAllocManaged(&managed, std::size_t{1} << 60, kMemAttachGlobal) == kErrorOutOfMemory);
  CHECK(driver.MemAllocManaged(&managed, 4096, 0) == kErrorInvalidValue);
}

TEST("advice and prefetches are kept per page, and mixed ranges are reported as such") {
  TestStream stream;
  const MemLocation host = {kLocationHost, 0};
  const MemLocation device0 = {kLocationDevice, 0};
  const MemLocation device1 = {kLocationDevice, 1};
  constexpr std::uint64_t kPage = 4096;
  DevicePointer range = 0;
  CHECK_OK(driver.MemAllocManaged(&range, 16 * kPage, kMemAttachGlobal));
  CHECK(RangeAttribute(kRangeReadMostly, range, 16 * kPage) == 0);
  CHECK(RangeAttribute(kRangePreferredLocation, range, 16 * kPage) == -2);
  CHECK(RangeAttribute(kRangeLastPrefetchLocation, range, 16 * kPage) == -2);

  CHECK_OK(driver.MemAdvise(range + 4 * kPage + 100, kPage, kAdviseSetReadMostly, {}));
  CHECK(RangeAttribute(kRangeReadMostly, range + 4 * kPage, 2 * kPage) == 1);
  CHECK(RangeAttribute(kRangeReadMostly, range, 16 * kPage) == 0);
  CHECK(RangeAttribute(kRangeReadMostly, range + 6 * kPage, kPage) == 0);
  CHECK_OK(driver.MemAdvise(range, 16 * kPage, kAdviseUnsetReadMostly, {}));
  CHECK(RangeAttribute(kRangeReadMostly, range + 4 * kPage, 1) == 0);

  CHECK_OK(driver.MemAdvise(range, 8 * kPage, kAdviseSetPreferredLocation, device1));
  CHECK_OK(driver.MemAdvise(range + 8 * kPage, 8 * kPage, kAdviseSetPreferredLocation, host));
  CHECK(RangeAttribute(kRangePreferredLocation, range, 8 * kPage) == 1);
  CHECK(RangeAttribute(kRangePreferredLocation, range + 8 * kPage, 8 * kPage) == -1);
  CHECK(RangeAttribute(kRangePreferredLocation, range, 16 * kPage) == -2);

  CHECK_OK(driver.MemAdvise(range, 16 * kPage, kAdviseSetAccessedBy, device0));
  CHECK_OK(driver.MemAdvise(range, 8 * kPage, kAdviseSetAccessedBy, host));
  int ids[3] = {};
  CHECK_OK(driver.MemRangeGetAttribute(ids, sizeof ids, kRangeAccessedBy, range, 8 * kPage));
  CHECK(ids[0] == -1 && ids[1] == 0 && ids[2] == -2);
  CHECK_OK(driver.MemRangeGetAttribute(ids, sizeof ids, kRangeAccessedBy, range, 16 * kPage));
  CHECK(ids[0] == 0 && ids[1] == -2);

  CHECK_OK(driver.MemPrefetchAsync(range, 16 * kPage, device1, 0, stream));
  CHECK(RangeAttribute(kRangeLastPrefetchLocation, range, 16 * kPage) == 1);
  CHECK_OK(driver.MemPrefetchAsync(range, kPage, host, 0, stream));
  CHECK(RangeAttribute(kRangeLastPrefetchLocation, range, 16 * kPage) == -2);
  CHECK(RangeAttribute(kRangeLastPrefetchLocation, range, 1) == -1);

  CHECK(driver.MemAdvise(range, 17 * kPage, kAdviseSetReadMostly, {}) == kErrorInvalidValue);
  CHECK(driver.MemAdvise(range, kPage, 99, host) == kErrorInvalidValue);
  CHECK(driver.MemAdvise(range, kPage, kAdviseSetAccessedBy, {kLocationDevice, 5}) == kErrorInvalidValue);
  CHECK(driver.MemPrefetchAsync(range, kPage, device0, 1, stream) == kErrorInvalidValue);
  CHECK(driver.MemPrefetchAsync(reinterpret_cast<DevicePointer>(ids), 4, device0, 0, stream) == kErrorInvalidValue);
  int value = 0;
  CHECK(driver.MemRangeGetAttribute(&value, 3, kRangeReadMostly, range, kPage) == kErrorInvalidValue);
  CHECK(driver.MemRangeGetAttribute(&value, 4, 99, range, kPage) == kErrorInvalidValue);
  CHECK_OK(driver.MemFree(range));
}

TEST("the total can change, but not to less than is in use") {
  DevicePointer block = Allocate(8 * kMiB);
  CHECK(software::Configure(4 * kMiB, 0) == kErrorInvalidValue);
  CHECK(Info().total == kTotal);
  CHECK_OK(software::Configure(16 * kMiB, 2));
  CHECK(Info().total == 16 * kMiB);
  DevicePointer none = 0;
  CHECK(driver.MemAlloc(&none, 12 * kMiB) == kErrorOutOfMemory);
  CHECK_OK(software::Configure(kTotal, 0));
  CHECK(software::Configure(0, 3) == kErrorNotPermitted);
  CHECK(software::Configure(0, 9) == kErrorInvalidValue);
  CHECK(software::Configure(0, -1) == kErrorInvalidValue);
  CHECK(software::Configure(~std::uint64_t{0}, 0) == kErrorInvalidValue);
  CHECK_OK(driver.MemFree(block));
}

}  // namespace cistern::test
