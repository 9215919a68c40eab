// Contexts, handles that are stale or invented, and injected failures and latencies.
#include <chrono>
#include <cstring>
#include <random>
#include <string>

#include "fixture.h"

namespace cistern::test {

TEST("a thread without a current context gets an error that says so") {
  std::thread([] {
    Context context = LegacyStream() == nullptr ? nullptr : reinterpret_cast<Context>(std::uintptr_t{5});
    CHECK_OK(driver.CtxGetCurrent(&context));
    CHECK(context == nullptr);
    Stream stream = nullptr;
    Event event = nullptr;
    DevicePointer pointer = 0;
    void* host = nullptr;
    std::size_t bytes = 0;
    CHECK(driver.StreamCreateWithPriority(&stream, 0, 0) == kErrorInvalidContext);
    CHECK(driver.EventCreate(&event, 0) == kErrorInvalidContext);
    CHECK(driver.MemAlloc(&pointer, 1) == kErrorInvalidContext);
    CHECK(driver.MemFree(512) == kErrorInvalidContext);
    CHECK(driver.MemAllocManaged(&pointer, 1, 1) == kErrorInvalidContext);
    CHECK(driver.MemHostAlloc(&host, 1, 0) == kErrorInvalidContext);
    CHECK(driver.MemGetInfo(&bytes, &bytes) == kErrorInvalidContext);
    CHECK(driver.CtxSynchronize() == kErrorInvalidContext);
    for (Stream each : {Stream{nullptr}, LegacyStream(), PerThreadStream()}) CHECK(driver.StreamQuery(each) == kErrorInvalidContext);
    CHECK(driver.CtxSetCurrent(reinterpret_cast<Context>(&bytes)) == kErrorInvalidContext);
  }).join();
}

TEST("a context that nobody retains cannot be used") {
  CHECK(driver.DevicePrimaryCtxRelease(1) == kErrorInvalidContext);
  Context context = nullptr;
  CHECK_OK(driver.DevicePrimaryCtxRetain(&context, 1));
  CHECK_OK(driver.DevicePrimaryCtxRelease(1));
  CHECK(driver.CtxSetCurrent(context) == kErrorInvalidContext);
}

TEST("stale handles, handles of another kind and invented ones are refused") {
  Stream stream = nullptr;
  Event event = nullptr;
  CHECK_OK(driver.StreamCreateWithPriority(&stream, 0, 0));
  CHECK_OK(driver.EventCreate(&event, 0));
  TestPool pool;
  unsigned long long id = 0;
  int local = 0;
  CHECK(driver.StreamQuery(reinterpret_cast<Stream>(event)) == kErrorInvalidHandle);
  CHECK(driver.EventQuery(reinterpret_cast<Event>(stream)) == kErrorInvalidHandle);
  CHECK(driver.MemPoolTrimTo(reinterpret_cast<Pool>(stream), 0) == kErrorInvalidValue);
  CHECK(driver.EventQuery(reinterpret_cast<Event>(&local)) == kErrorInvalidHandle);
  CHECK(driver.EventQuery(nullptr) == kErrorInvalidHandle);
  CHECK(driver.MemPoolDestroy(nullptr) == kErrorInvalidValue);
  CHECK_OK(driver.StreamDestroy(stream));
  CHECK_OK(driver.EventDestroy(event));
  CHECK(driver.StreamDestroy(stream) == kErrorInvalidHandle);
  CHECK(driver.EventDestroy(event) == kErrorInvalidHandle);
  CHECK(driver.StreamGetId(stream, &id) == kErrorInvalidHandle);
  CHECK(driver.StreamDestroy(nullptr) == kErrorInvalidHandle);
  CHECK(driver.StreamDestroy(LegacyStream()) == kErrorInvalidHandle);
  TestStream live;
  std::mt19937_64 random(2);
  for (int i = 0; i < 100000; ++i) {
    std::uint64_t bits = random() >> random() % 60;
    if (bits <= 2 || bits == reinterpret_cast<std::uintptr_t>(static_cast<Stream>(live))) continue;
    CHECK(driver.StreamQuery(reinterpret_cast<Stream>(bits)) == kErrorInvalidHandle || bits >> 24 < 10000);
    driver.EventQuery(reinterpret_cast<Event>(bits));
    driver.MemPoolTrimTo(reinterpret_cast<Pool>(bits), ~std::size_t{0});
    CHECK(driver.MemFree(bits) == kErrorInvalidValue);
    CHECK(driver.MemFreeAsync(bits, live) == kErrorInvalidValue);
  }
}

TEST("handles are numbers that JavaScript can represent") {
  TestStream stream;
  TestEvent event;
  TestPool pool;
  for (std::uint64_t bits :
       {reinterpret_cast<std::uint64_t>(static_cast<Stream>(stream)), reinterpret_cast<std::uint64_t>(static_cast<Event>(event)),
        reinterpret_cast<std::uint64_t>(static_cast<Pool>(pool))}) {
    CHECK(bits > 2 && bits < std::uint64_t{1} << 53);
  }
}

TEST("a null pointer for a result is an error") {
  TestStream stream;
  TestPool pool;
  CHECK(driver.MemAlloc(nullptr, 1) == kErrorInvalidValue);
  CHECK(driver.MemAllocFromPoolAsync(nullptr, 1, pool, stream) == kErrorInvalidValue);
  CHECK(driver.StreamCreateWithPriority(nullptr, 0, 0) == kErrorInvalidValue);
  CHECK(driver.EventCreate(nullptr, 0) == kErrorInvalidValue);
  CHECK(driver.LaunchHostFunc(stream, nullptr, nullptr) == kErrorInvalidValue);
  CHECK(driver.MemPoolGetAttribute(pool, kPoolUsedHigh, nullptr) == kErrorInvalidValue);
}

TEST("devices describe themselves") {
  int count = 0;
  CHECK_OK(driver.DeviceGetCount(&count));
  CHECK(count == 2);
  char name[64];
  CHECK_OK(driver.DeviceGetName(name, sizeof name, 1));
  CHECK(std::string(name) == "cistern software device");
  CHECK_OK(driver.DeviceGetName(name, 8, 1));
  CHECK(std::string(name) == "cistern");
  unsigned char uuids[2][16];
  CHECK_OK(driver.DeviceGetUuid(uuids[0], 0));
  CHECK_OK(driver.DeviceGetUuid(uuids[1], 1));
  CHECK(std::memcmp(uuids[0], uuids[1], 16) != 0);
  int value = 0;
  CHECK_OK(driver.DeviceGetAttribute(&value, kAttributeMemoryPoolsSupported, 0));
  CHECK(value == 1);
  CHECK(driver.DeviceGetAttribute(&value, 12345, 0) == kErrorInvalidValue);
  DeviceOrdinal device = -1;
  CHECK(driver.DeviceGet(&device, 2) == kErrorInvalidDevice);
  CHECK(driver.DeviceGet(&device, -1) == kErrorInvalidDevice);
  std::size_t bytes = 0;
  CHECK_OK(driver.DeviceTotalMem(&bytes, 1));
  CHECK(bytes == kTotal);
  const char* text = nullptr;
  CHECK_OK(driver.GetErrorName(kErrorOutOfMemory, &text));
  CHECK(std::string(text) == "CUDA_ERROR_OUT_OF_MEMORY");
  CHECK(driver.GetErrorString(-7, &text) == kErrorInvalidValue && text == nullptr);
}

TEST("the nth call of a function fails as injected, and only that one") {
  DevicePointer pointer = 0;
  software::FailCall(Call::kMemAlloc, 2, kErrorOutOfMemory);
  CHECK_OK(driver.MemAlloc(&pointer, 1));
  DevicePointer none = 0;
  CHECK(driver.MemAlloc(&none, 1) == kErrorOutOfMemory && none == 0);
  CHECK_OK(driver.MemFree(pointer));
  CHECK_OK(driver.MemAlloc(&pointer, 1));
  software::FailCall(Call::kMemFree, 1, kErrorUnknown);
  software::FailCall(Call::kMemFree, 0, kErrorUnknown);
  CHECK_OK(driver.MemFree(pointer));
}

TEST("the calling thread pays an injected latency until it is removed") {
  TestStream stream;
  auto milliseconds = [&stream] {
    auto start = std::chrono::steady_clock::now();
    CHECK_OK(driver.StreamQuery(stream));
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  };
  software::SetLatency(Call::kStreamQuery, 20000000);
  CHECK(milliseconds() >= 20);
  software::SetLatency(Call::kStreamQuery, 50000);
  CHECK(milliseconds() >= 0.05);
  software::SetLatency(Call::kStreamQuery, 0);
  CHECK(milliseconds() < 20);
}

}  // namespace cistern::test
