#include "software/injection.h"

#include <mutex>
#include <thread>

#include "software/software_device.h"
#include "software/spin_lock.h"

namespace cistern::software {

std::atomic<int> injection_count{0};

namespace {

struct Injection {
  std::uint64_t latency_nanoseconds;
  std::uint64_t calls_to_failure;  // 0: none
  Status status;
  // The call that fails after this one has failed.
  Call next;
  std::uint64_t next_calls_to_failure;  // 0: nothing
  Status next_status;
};

SpinLock injection_lock;
Injection injections[kCallCount];

// Returns whether a failure was pending. The lock must be held.
bool Arm(Call call, std::uint64_t nth, Status status) {
  Injection& injection = injections[static_cast<int>(call)];
  const bool was_pending = injection.calls_to_failure != 0;
  injection_count.fetch_add((nth != 0) - was_pending, std::memory_order_relaxed);
  injection.calls_to_failure = nth;
  injection.status = status;
  injection.next_calls_to_failure = 0;
  return was_pending;
}

}  // namespace

void Delay(std::chrono::nanoseconds duration) {
  constexpr std::chrono::microseconds kSleepFrom{100};
  auto end = std::chrono::steady_clock::now() + duration;
  if (duration >= kSleepFrom) std::this_thread::sleep_until(end);
  while (std::chrono::steady_clock::now() < end) {
  }
}

Status Inject(Call call) {
  std::uint64_t latency;
  Status status = kSuccess;
  {
    std::lock_guard<SpinLock> guard(injection_lock);
    Injection& injection = injections[static_cast<int>(call)];
    latency = injection.latency_nanoseconds;
    if (injection.calls_to_failure != 0 && --injection.calls_to_failure == 0) {
      status = injection.status;
      injection_count.fetch_sub(1, std::memory_order_relaxed);
      if (injection.next_calls_to_failure != 0) Arm(injection.next, injection.next_calls_to_failure, injection.next_status);
    }
  }
  if (latency != 0) Delay(std::chrono::nanoseconds(latency));
  return status;
}

void SetLatency(Call call, std::uint64_t nanoseconds) {
  std::lock_guard<SpinLock> guard(injection_lock);
  std::uint64_t& latency = injections[static_cast<int>(call)].latency_nanoseconds;
  injection_count.fetch_add((nanoseconds != 0) - (latency != 0), std::memory_order_relaxed);
  latency = nanoseconds;
}

bool FailCall(Call call, std::uint64_t nth, Status status) {
  std::lock_guard<SpinLock> guard(injection_lock);
  return Arm(call, nth, status);
}

void FailCallAfter(Call first, Call call, std::uint64_t nth, Status status) {
  std::lock_guard<SpinLock> guard(injection_lock);
  Injection& injection = injections[static_cast<int>(first)];
  injection.next = call;
  injection.next_calls_to_failure = nth;
  injection.next_status = status;
}

}  // namespace cistern::software
