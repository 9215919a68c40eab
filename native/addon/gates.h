// Gates hold a stream until JavaScript releases it.
//
// The stream waits for a word of pinned memory (cuStreamWaitValue32), which the host writes; no
// driver thread waits. So any number of streams can wait at gates, and opening a gate takes no
// driver call.
//
//     stream:  ... work | wait until word >= ticket | work ...            open: word = ticket
//
// A word serves one gate after the other, each with the next ticket. Words only grow. If a stream
// reaches a wait late, when the word already serves another gate, the wait is satisfied at once.
//
// A device without memory operations in streams uses a host function that waits in the driver's
// callback. CUDA may run the callbacks of all streams one after the other, so such a device
// supports only one gate at a time.
#ifndef CISTERN_ADDON_GATES_H_
#define CISTERN_ADDON_GATES_H_

#include <atomic>
#include <cstdint>
#include <memory>

#include "addon/environment.h"

namespace cistern {

// A word, and the last ticket issued for it.
struct GateWord {
  std::atomic<std::uint32_t>* word = nullptr;
  std::uint32_t ticket = 0;
};

struct Gate {
  explicit Gate(std::shared_ptr<EventLoop> event_loop) : loop(std::move(event_loop)) {}
  ~Gate();
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;

  // The gate is closed from Shut to Open, or to the end of the environment. The loop's mutex must
  // not be held.
  void Shut();
  void Open();

  const std::shared_ptr<EventLoop> loop;
  const DriverTable* driver = nullptr;  // whose memory the word is in
  GateWord word;                        // none on a device without memory operations
  bool is_open = true;                  // guarded by the loop's mutex
};

// A gate for the stream, whose context must be current. Queues nothing that makes the stream wait.
Status MakeGate(Environment& environment, const StreamEntry& stream, std::shared_ptr<Gate>* gate);

// Allocates the memory for a gate, so that making one later allocates nothing.
Status ReserveGate(Environment& environment);

// Queues the wait. The gate must have a word.
Status QueueGate(Environment& environment, const StreamEntry& stream, const Gate& gate);

// Releases the stream. The loop's mutex must be held.
void OpenLocked(Gate& gate);

// Waits in a driver's callback for a gate without a word. The lock is the loop's.
void WaitAtGate(std::unique_lock<std::mutex>& lock, const Gate& gate);

}  // namespace cistern

#endif  // CISTERN_ADDON_GATES_H_
