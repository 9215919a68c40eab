// Gates: what a stream stands still at until JavaScript lets it go on.
//
// The stream waits for a word of pinned memory (cuStreamWaitValue32), which the host writes; no thread of the driver waits for anything. So
// any number of streams can stand at gates, and a gate is opened without a call of the driver.
//
//     stream:  ... work | wait until word >= ticket | work ...            open: word = ticket
//
// A word serves one gate after the other, each with the next ticket. Words only grow, so a wait that the stream comes to late, when the
// word serves another gate, is over at once.
//
// A device without memory operations in streams makes do with a host function that waits in the driver's callback. CUDA may run those of
// all streams one after the other, so there it takes one gate at a time.
#ifndef CISTERN_ADDON_GATES_H_
#define CISTERN_ADDON_GATES_H_

#include <atomic>
#include <cstdint>
#include <memory>

#include "addon/environment.h"

namespace cistern {

// A word, and the last ticket that was given out for it.
struct GateWord {
  std::atomic<std::uint32_t>* word = nullptr;
  std::uint32_t ticket = 0;
};

struct Gate {
  explicit Gate(std::shared_ptr<EventLoop> event_loop) : loop(std::move(event_loop)) {}
  ~Gate();
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;

  // The gate is closed from Shut to Open, or to the end of the environment. The loop's mutex is not held.
  void Shut();
  void Open();

  const std::shared_ptr<EventLoop> loop;
  const DriverTable* driver = nullptr;  // whose memory the word is in
  GateWord word;                        // none on a device without memory operations
  bool is_open = true;                  // guarded by the loop's mutex
};

// A gate for the stream, whose context is current. Queues nothing that makes the stream wait.
Status MakeGate(Environment& environment, const StreamEntry& stream, std::shared_ptr<Gate>* gate);

// Queues the wait. Only for a gate with a word.
Status QueueGate(Environment& environment, const StreamEntry& stream, const Gate& gate);

// Lets the stream go on. The loop's mutex is held.
void OpenLocked(Gate& gate);

// What waits in a driver's callback for a gate without a word. The lock is the loop's.
void WaitAtGate(std::unique_lock<std::mutex>& lock, const Gate& gate);

}  // namespace cistern

#endif  // CISTERN_ADDON_GATES_H_
