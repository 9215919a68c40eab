#include "addon/gates.h"

#include <map>
#include <mutex>
#include <vector>

#include "addon/host_functions.h"
#include "platform/lasting.h"

namespace cistern {
namespace {

// The words of the process. They are never given back to the driver: a stream may reach a gate
// after everything else has dropped it.
struct Words {
  std::mutex mutex;
  std::map<const DriverTable*, std::vector<GateWord>> idle;
};

Words& AllWords() {
  static Lasting<Words> words;
  return *words;
}

constexpr std::size_t kWordsAtOnce = 4096;

Status TakeWord(Environment& environment, GateWord* word) {
  Words& words = AllWords();
  const DriverTable* driver = environment.backend;
  {
    const std::lock_guard<std::mutex> lock(words.mutex);
    std::vector<GateWord>& idle = words.idle[driver];
    if (!idle.empty()) {
      *word = idle.back();
      idle.pop_back();
      return kSuccess;
    }
  }
  // Not under the lock, since the allocation may wait for a device.
  const Status ready = BeforeAllocating(environment);
  if (ready != kSuccess) return ready;
  void* block = nullptr;
  const Status status =
      environment.own_calls().MemHostAlloc(&block, kWordsAtOnce * sizeof(std::uint32_t), kHostAllocPortable | kHostAllocDeviceMap);
  if (status != kSuccess) return status;
  auto* all = static_cast<std::atomic<std::uint32_t>*>(block);
  const std::lock_guard<std::mutex> lock(words.mutex);
  std::vector<GateWord>& idle = words.idle[driver];
  // Make room for all of them now, so that giving one back cannot fail.
  idle.reserve(idle.capacity() + kWordsAtOnce);
  for (std::size_t index = 0; index < kWordsAtOnce; ++index) {
    all[index].store(0, std::memory_order_relaxed);
    idle.push_back({all + index, 0});
  }
  *word = idle.back();
  idle.pop_back();
  return kSuccess;
}

void GiveBackWord(const DriverTable* driver, const GateWord& word) {
  Words& words = AllWords();
  const std::lock_guard<std::mutex> lock(words.mutex);
  words.idle[driver].push_back(word);
}

DevicePointer AddressOf(const GateWord& word) { return reinterpret_cast<std::uintptr_t>(word.word); }

}  // namespace

void OpenLocked(Gate& gate) {
  gate.is_open = true;
  if (gate.word.word != nullptr) gate.word.word->store(gate.word.ticket, std::memory_order_release);
}

Gate::~Gate() {
  if (word.word == nullptr) return;
  word.word->store(word.ticket, std::memory_order_release);
  GiveBackWord(driver, word);
}

void Gate::Shut() {
  const std::lock_guard<std::mutex> lock(loop->mutex);
  if (loop->closed) {
    OpenLocked(*this);
    return;
  }
  loop->shut_gates.insert(this);
  is_open = false;
}

void Gate::Open() {
  const std::lock_guard<std::mutex> lock(loop->mutex);
  if (is_open) return;
  loop->shut_gates.erase(this);
  OpenLocked(*this);
  loop->for_streams.notify_all();
}

Status MakeGate(Environment& environment, const StreamEntry& stream, std::shared_ptr<Gate>* made) {
  auto gate = std::make_shared<Gate>(environment.loop);
  signed char& has_memory_operations = environment.HasMemoryOperations(stream.device);
  if (has_memory_operations != 0) {
    gate->driver = environment.backend;
    const Status status = TakeWord(environment, &gate->word);
    if (status != kSuccess) return status;
    if (has_memory_operations < 0) {
      // A wait that is already satisfied: it shows whether the device supports such waits, and not on managed memory
      // (kErrorInvalidValue), which pinned memory is with confidential computing.
      const Status tried =
          environment.driver->StreamWaitValue32(stream.stream, AddressOf(gate->word), gate->word.ticket, kWaitValueGreaterOrEqual);
      if (tried != kSuccess && tried != kErrorNotSupported && tried != kErrorInvalidValue) return tried;
      has_memory_operations = tried == kSuccess;
    }
    if (has_memory_operations == 0) {
      GiveBackWord(environment.backend, gate->word);
      gate->word = {};
    } else {
      gate->word.ticket += 1;
    }
  }
  *made = std::move(gate);
  return kSuccess;
}

Status ReserveGate(Environment& environment) {
  GateWord word;
  const Status status = TakeWord(environment, &word);
  if (status == kSuccess) GiveBackWord(environment.backend, word);
  return status;
}

Status QueueGate(Environment& environment, const StreamEntry& stream, const Gate& gate) {
  return environment.Counted<Call::kStreamWaitValue32>(stream.stream, AddressOf(gate.word), gate.word.ticket,
                                                       unsigned{kWaitValueGreaterOrEqual});
}

void WaitAtGate(std::unique_lock<std::mutex>& lock, const Gate& gate) {
  gate.loop->for_streams.wait(lock, [&] { return gate.is_open; });
}

}  // namespace cistern
