// Keeps device work from writing while pages of device memory are exchanged for others.
//
// Work enters for each copy and fill, which costs two atomic additions to a cache line of its stream's
// own; whoever exchanges pages shuts the gate and waits for those that are inside.
#ifndef CISTERN_SOFTWARE_WRITE_GATE_H_
#define CISTERN_SOFTWARE_WRITE_GATE_H_

#include <atomic>
#include <cstdint>
#include <mutex>
#include <thread>

namespace cistern::software {

class WriteGate {
 public:
  // A writer, for a scope. `key` spreads writers over counters.
  class Writer {
   public:
    Writer(WriteGate& gate, std::uint32_t key) : count_(gate.cells_[key % kCells].writers) {
      for (;;) {
        count_.fetch_add(1, std::memory_order_seq_cst);
        if (!gate.is_shut_.load(std::memory_order_seq_cst)) return;
        count_.fetch_sub(1, std::memory_order_release);
        const std::lock_guard<std::mutex> until_open(gate.mutex_);
      }
    }
    ~Writer() { count_.fetch_sub(1, std::memory_order_release); }
    Writer(const Writer&) = delete;

   private:
    std::atomic<int>& count_;
  };

  // Nobody writes, for a scope.
  class Shut {
   public:
    explicit Shut(WriteGate& gate) : gate_(gate), guard_(gate.mutex_) {
      gate_.is_shut_.store(true, std::memory_order_seq_cst);
      for (Cell& cell : gate_.cells_) {
        while (cell.writers.load(std::memory_order_seq_cst) != 0) std::this_thread::yield();
      }
    }
    ~Shut() { gate_.is_shut_.store(false, std::memory_order_release); }
    Shut(const Shut&) = delete;

   private:
    WriteGate& gate_;
    std::lock_guard<std::mutex> guard_;
  };

 private:
  static constexpr std::uint32_t kCells = 16;
  struct alignas(64) Cell {
    std::atomic<int> writers{0};
  };

  Cell cells_[kCells];
  std::atomic<bool> is_shut_{false};
  std::mutex mutex_;
};

inline WriteGate write_gate;

}  // namespace cistern::software

#endif  // CISTERN_SOFTWARE_WRITE_GATE_H_
