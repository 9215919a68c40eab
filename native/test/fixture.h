// Shared by the cases: two devices, streams and pools that end with their scope, and a gate that
// stalls a stream.
#ifndef CISTERN_TEST_FIXTURE_H_
#define CISTERN_TEST_FIXTURE_H_

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>

#include "check.h"
#include "software/software_device.h"

namespace cistern::test {

inline constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
inline constexpr std::uint64_t kTotal = 256 * kMiB;

// The device that the program tests.
const DriverTable& TableUnderTest();
inline const DriverTable& driver = TableUnderTest();

// Whether the device launches the nodes of a graph in an order that only their edges decide.
void RunInAnyOrder(bool is_any);

// Makes a device current on this thread for a scope.
class OnDevice {
 public:
  explicit OnDevice(int ordinal) : ordinal_(ordinal) {
    Context context = nullptr;
    CHECK_OK(driver.CtxGetCurrent(&before_));
    CHECK_OK(driver.DevicePrimaryCtxRetain(&context, ordinal));
    CHECK_OK(driver.CtxSetCurrent(context));
  }
  ~OnDevice() {
    CHECK_OK(driver.CtxSetCurrent(before_));
    CHECK_OK(driver.DevicePrimaryCtxRelease(ordinal_));
  }
  OnDevice(const OnDevice&) = delete;

 private:
  int ordinal_;
  Context before_ = nullptr;
};

class TestStream {
 public:
  explicit TestStream(unsigned flags = kStreamNonBlocking) { CHECK_OK(driver.StreamCreateWithPriority(&stream_, flags, 0)); }
  ~TestStream() { CHECK_OK(driver.StreamDestroy(stream_)); }
  TestStream(const TestStream&) = delete;
  operator Stream() const { return stream_; }
  void Synchronize() const { CHECK_OK(driver.StreamSynchronize(stream_)); }

 private:
  Stream stream_ = nullptr;
};

class TestEvent {
 public:
  explicit TestEvent(unsigned flags = kEventDisableTiming) { CHECK_OK(driver.EventCreate(&event_, flags)); }
  ~TestEvent() { CHECK_OK(driver.EventDestroy(event_)); }
  TestEvent(const TestEvent&) = delete;
  operator Event() const { return event_; }

 private:
  Event event_ = nullptr;
};

inline PoolProperties PoolOn(int device) {
  PoolProperties properties = {};
  properties.alloc_type = kAllocationTypePinned;
  properties.location = {kLocationDevice, device};
  return properties;
}

class TestPool {
 public:
  explicit TestPool(std::uint64_t release_threshold = ~std::uint64_t{0}, int device = 0) {
    PoolProperties properties = PoolOn(device);
    CHECK_OK(driver.MemPoolCreate(&pool_, &properties));
    Set(kPoolReleaseThreshold, release_threshold);
  }
  ~TestPool() { CHECK_OK(driver.MemPoolDestroy(pool_)); }
  TestPool(const TestPool&) = delete;
  operator Pool() const { return pool_; }

  void Set(int attribute, std::uint64_t value) { CHECK_OK(driver.MemPoolSetAttribute(pool_, attribute, &value)); }
  void SetFlag(int attribute, int value) { CHECK_OK(driver.MemPoolSetAttribute(pool_, attribute, &value)); }
  std::uint64_t Get(int attribute) const {
    std::uint64_t value = 0;
    CHECK_OK(driver.MemPoolGetAttribute(pool_, attribute, &value));
    return value;
  }
  DevicePointer Allocate(std::uint64_t bytes, Stream stream) const {
    DevicePointer pointer = 0;
    CHECK_OK(driver.MemAllocFromPoolAsync(&pointer, bytes, pool_, stream));
    return pointer;
  }

 private:
  Pool pool_ = nullptr;
};

inline void FreeAsync(DevicePointer pointer, Stream stream) { CHECK_OK(driver.MemFreeAsync(pointer, stream)); }

// Stalls a stream until it is opened.
class Gate {
 public:
  ~Gate() { Open(); }
  void Close(Stream stream) {
    CHECK_OK(driver.LaunchHostFunc(stream, &Gate::Pass, this));
    streams_.fetch_add(1);
  }
  void Open() {
    std::unique_lock<std::mutex> lock(mutex_);
    is_open_ = true;
    changed_.notify_all();
    changed_.wait(lock, [this] { return passed_ == streams_.load(); });
  }

 private:
  static void Pass(void* self) {
    Gate& gate = *static_cast<Gate*>(self);
    std::unique_lock<std::mutex> lock(gate.mutex_);
    gate.changed_.wait(lock, [&gate] { return gate.is_open_; });
    ++gate.passed_;
    gate.changed_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_open_ = false;
  int passed_ = 0;
  std::atomic<int> streams_{0};
};

// Pinned host memory.
template <typename T>
class Pinned {
 public:
  explicit Pinned(std::size_t count) {
    void* pointer = nullptr;
    CHECK_OK(driver.MemHostAlloc(&pointer, count * sizeof(T), kHostAllocPortable));
    data_ = static_cast<T*>(pointer);
  }
  ~Pinned() { CHECK_OK(driver.MemFreeHost(data_)); }
  Pinned(const Pinned&) = delete;
  T& operator[](std::size_t index) const { return data_[index]; }
  DevicePointer pointer() const { return reinterpret_cast<DevicePointer>(data_); }

 private:
  T* data_ = nullptr;
};

inline void SleepMilliseconds(int milliseconds) { std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds)); }

}  // namespace cistern::test

#endif  // CISTERN_TEST_FIXTURE_H_
