// Checkpoints of a process: what the driver's functions cuCheckpointProcess… do, for this process and others with software devices.
//
//     running ── lock ──► locked ── checkpoint ──► checkpointed
//        ▲                 │  ▲                        │
//        └──── unlock ─────┘  └─────── restore ────────┘
//
// A lock keeps out whoever makes a call from then on, and waits until nobody is inside any more and all streams have done what was
// queued. A checkpoint moves the contents of device memory to files in memory, and gives the pages to the kernel, so that a use of
// them meanwhile would show; a restore moves the contents back, to the same addresses. Host memory stays as it is, as does
// managed memory, which lies there. Memory that processes share cannot be moved.
//
// Another process asks through a channel (platform/process_channel.h), which a thread of this process serves.
//
// Cost: nothing for a call but two stores to a place of its thread's own, since a lock counts as an injection.
#ifndef CISTERN_SOFTWARE_CHECKPOINT_H_
#define CISTERN_SOFTWARE_CHECKPOINT_H_

#include <atomic>
#include <cstdint>

#include "cuda/driver_table.h"
#include "software/device.h"

namespace cistern::software {

// From now on, other processes can ask. Called once.
void ServeCheckpoints();

// The thread's place, which is made at its first call and used again after its end.
CallPlace* MakePlaceOfCalls();

// Waits until the process is not locked; only while something is injected.
void AwaitUnlock(CallPlace& place);

// A call that a lock keeps out, for a scope.
class CallInProgress {
 public:
  CallInProgress() : place_(thread_state.place != nullptr ? *thread_state.place : *MakePlaceOfCalls()) {
    was_inside_ = place_.is_inside.load(std::memory_order_relaxed);
    place_.is_inside.store(true, std::memory_order_relaxed);
    // Whoever locks interrupts every thread between this and its next load.
    std::atomic_signal_fence(std::memory_order_seq_cst);
  }
  ~CallInProgress() { place_.is_inside.store(was_inside_, std::memory_order_release); }
  CallInProgress(const CallInProgress&) = delete;
  CallInProgress& operator=(const CallInProgress&) = delete;

  // A call within another one belongs to that.
  void Enter() {
    if (!was_inside_) AwaitUnlock(place_);
  }

 private:
  CallPlace& place_;
  bool was_inside_;
};

}  // namespace cistern::software

#endif  // CISTERN_SOFTWARE_CHECKPOINT_H_
