// Handles for streams, events and pools that can be checked safely, whatever bits they hold.
//
// A handle is a number in the form of a pointer: [generation 28 bits | kind 4 bits | slot 20 bits].
// It never exceeds 2^52, so JavaScript can represent it, and it is never 0, 1 or 2, to which CUDA
// gives special meanings.
//
// Slots live in chunks that are never freed, so a stale handle always points at readable memory. A
// slot holds its currently valid handle, or 0. A slot whose generations are used up is not used
// again, so no handle value is ever issued twice.
// Cost: Find is two loads and two comparisons, without a lock. The table itself needs neither
// construction nor destruction at run time.
#ifndef CISTERN_SOFTWARE_HANDLE_TABLE_H_
#define CISTERN_SOFTWARE_HANDLE_TABLE_H_

#include <atomic>
#include <cstdint>
#include <mutex>
#include <new>

#include "software/spin_lock.h"

namespace cistern::software {

// The base of a slot type.
struct HandleSlot {
  std::atomic<std::uint64_t> handle{0};
  std::uint32_t index = 0;
  std::uint32_t generation = 0;
  std::uint32_t next_free = 0;
};

enum class HandleKind : std::uint64_t { kStream = 1, kEvent = 2, kPool = 3, kGraph = 4, kGraphExec = 5 };

template <typename Slot, HandleKind kind>
class HandleTable {
 public:
  // The slot of a valid handle, else null.
  Slot* Find(std::uint64_t handle) {
    std::uint64_t index = handle & (kMaxSlots - 1);
    Slot* chunk = chunks_[index / kChunkSlots].load(std::memory_order_acquire);
    if (chunk == nullptr) return nullptr;
    Slot* slot = chunk + index % kChunkSlots;
    return handle != 0 && slot->handle.load(std::memory_order_acquire) == handle ? slot : nullptr;
  }

  // The slot of this index if it has a valid handle, else null.
  Slot* FindAt(std::uint32_t index) {
    if (index >= kMaxSlots) return nullptr;
    Slot* chunk = chunks_[index / kChunkSlots].load(std::memory_order_acquire);
    Slot* slot = chunk == nullptr ? nullptr : chunk + index % kChunkSlots;
    return slot != nullptr && slot->handle.load(std::memory_order_acquire) != 0 ? slot : nullptr;
  }

  Slot& At(std::uint32_t index) { return chunks_[index / kChunkSlots].load(std::memory_order_acquire)[index % kChunkSlots]; }

  // A slot without a valid handle, or null if there are no more. Publish makes it findable.
  Slot* Take() {
    std::lock_guard<SpinLock> guard(lock_);
    if (free_ == 0) {
      if (unused_ == kMaxSlots) return nullptr;
      std::atomic<Slot*>& chunk = chunks_[unused_ / kChunkSlots];
      if (chunk.load(std::memory_order_relaxed) == nullptr) {
        Slot* slots = new (std::nothrow) Slot[kChunkSlots];
        if (slots == nullptr) return nullptr;
        chunk.store(slots, std::memory_order_release);
      }
      Slot& fresh = At(unused_);
      fresh.index = unused_++;
      fresh.generation = 1;
      return &fresh;
    }
    Slot& slot = At(free_);
    free_ = slot.next_free;
    ++slot.generation;
    return &slot;
  }

  std::uint64_t Publish(Slot& slot) {
    std::uint64_t handle = HandleOf(slot);
    slot.handle.store(handle, std::memory_order_release);
    return handle;
  }

  // The handle of a slot that was taken, even if it was closed meanwhile.
  static std::uint64_t HandleOf(const Slot& slot) {
    return std::uint64_t{slot.generation} << 24 | static_cast<std::uint64_t>(kind) << 20 | slot.index;
  }

  // Makes the handle invalid; false if it was not valid, so if two threads close it only one
  // succeeds.
  static bool Close(Slot& slot, std::uint64_t handle) { return slot.handle.compare_exchange_strong(handle, 0, std::memory_order_acq_rel); }

  // Gives back a slot that was taken and cannot be found, or no longer can be.
  void Recycle(Slot& slot) {
    if (slot.generation >= kMaxGeneration) return;
    std::lock_guard<SpinLock> guard(lock_);
    slot.next_free = free_;
    free_ = slot.index;
  }

 private:
  static constexpr std::uint32_t kMaxSlots = std::uint32_t{1} << 20;
  static constexpr std::uint32_t kChunkSlots = 256;
  static constexpr std::uint32_t kMaxGeneration = (std::uint32_t{1} << 28) - 1;

  std::atomic<Slot*> chunks_[kMaxSlots / kChunkSlots] = {};
  SpinLock lock_;
  std::uint32_t unused_ = 1;  // slot 0 is never used, so that an index of 0 can mean "none" everywhere
  std::uint32_t free_ = 0;
};

}  // namespace cistern::software

#endif  // CISTERN_SOFTWARE_HANDLE_TABLE_H_
