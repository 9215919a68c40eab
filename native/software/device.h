// A software device, its primary context, and the current device of a thread.
#ifndef CISTERN_SOFTWARE_DEVICE_H_
#define CISTERN_SOFTWARE_DEVICE_H_

#include <atomic>
#include <cstdint>
#include <mutex>
#include <vector>

#include "cuda/driver_table.h"
#include "platform/thread.h"
#include "software/device_memory.h"
#include "software/stream.h"

namespace cistern::software {

struct MemoryPool;

inline constexpr int kMaxDevices = 8;

class Device {
 public:
  Device(int device_ordinal, std::uint64_t total_bytes) : ordinal(device_ordinal), memory(total_bytes) {}

  // Reserves the address range and creates the legacy stream, at the first call.
  Status Prepare();

  // The primary context. After the last Release it cannot be made current any more; allocations
  // stay until they are freed.
  Status Retain();
  Status Release();
  bool IsRetained() const { return retain_count_.load(std::memory_order_relaxed) > 0; }
  Context context() { return reinterpret_cast<Context>(this); }

  // Waits for everything already submitted to the device's streams. Costs one load if they are all
  // idle.
  void Synchronize();
  bool IsIdle() const { return busy_streams.load(std::memory_order_acquire) == 0; }

  // Whether the context was given access to the plain memory of another device's.
  bool HasPeer(int peer) const { return (peers_.load(std::memory_order_relaxed) >> peer & 1) != 0; }
  Status EnablePeer(const Device& peer);
  Status DisablePeer(const Device& peer);

  void AddStream(StreamState* stream);
  void RemoveStream(StreamState* stream);
  // Marks of work that was submitted to the device's streams and has not completed.
  std::vector<Mark> PendingMarks(bool blocking_streams_only);

  const int ordinal;
  DeviceMemory memory;
  StreamState* legacy_stream = nullptr;

  // The number of streams with queued work; the second counts only blocking ones, without the
  // legacy stream.
  alignas(64) std::atomic<int> busy_streams{0};
  std::atomic<int> busy_blocking_streams{0};

  // Every pool with memory of this device, including destroyed ones that still hold some. Lock
  // order: pools_mutex, a pool's lock, memory.
  std::mutex pools_mutex;
  std::vector<MemoryPool*> pools;
  std::atomic<int> pool_count{0};
  // Made when it is first asked for.
  std::mutex default_pool_mutex;
  MemoryPool* default_pool = nullptr;
  MemoryPool* current_pool = nullptr;  // null for the default pool

 private:
  std::mutex context_mutex_;
  std::atomic<int> retain_count_{0};
  std::atomic<std::uint32_t> peers_{0};
  bool is_prepared_ = false;

  std::mutex streams_mutex_;
  std::vector<StreamState*> streams_;
};

// The devices exist from a successful Initialize to the end of the process.
Status Initialize();
bool IsInitialized();
int DeviceCount();
Device* FindDevice(int ordinal);                     // null if there is none
Device* FindDeviceOf(Context context);               // null if it is not a context
Device* FindDeviceByAddress(std::uint64_t address);  // the device whose reserved range contains it

// Before memory is freed that the work of any device may use: waits for all of them, if frees wait.
void WaitToFree();

// Whether a thread is inside a call, for whoever locks the process (checkpoint.h).
struct alignas(64) CallPlace {
  std::atomic<bool> is_inside{false};
  std::atomic<bool> is_taken{false};
};

struct ThreadState {
  Device* current;
  bool is_in_host_function;
  int capture_mode;  // CUstreamCaptureMode
  CallPlace* place;
};
// Every call reads this.
CISTERN_INITIAL_EXEC inline thread_local ThreadState thread_state = {nullptr, false, kCaptureModeGlobal, nullptr};

// The calling thread's current device.
inline Status RequireDevice(Device** device) {
  *device = thread_state.current;
  return *device != nullptr && (*device)->IsRetained() ? kSuccess : kErrorInvalidContext;
}

}  // namespace cistern::software

#endif  // CISTERN_SOFTWARE_DEVICE_H_
