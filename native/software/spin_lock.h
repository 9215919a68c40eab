// A lock for critical sections of a few dozen instructions: one atomic exchange to take it, one
// store to release it.
#ifndef CISTERN_SOFTWARE_SPIN_LOCK_H_
#define CISTERN_SOFTWARE_SPIN_LOCK_H_

#include <atomic>
#include <thread>

namespace cistern::software {

class SpinLock {
 public:
  SpinLock() = default;
  SpinLock(const SpinLock&) = delete;
  SpinLock& operator=(const SpinLock&) = delete;

  void lock() {
    while (held_.exchange(true, std::memory_order_acquire)) WaitForRelease();
  }
  void unlock() { held_.store(false, std::memory_order_release); }

 private:
  void WaitForRelease() const {
    for (int spins = 0; held_.load(std::memory_order_relaxed); ++spins) {
      // The holder may have lost its core; on a small machine, spinning for longer than this would
      // keep it from running.
      if (spins >= 64) std::this_thread::yield();
    }
  }

  std::atomic<bool> held_{false};
};

}  // namespace cistern::software

#endif  // CISTERN_SOFTWARE_SPIN_LOCK_H_
