// Native objects as integers that JavaScript can hold.
//
//   handle = generation * 2^20 + slot        generation >= 1, handle < 2^53
//
// A slot's generation grows with each use, so a handle kept after its release is recognised as
// stale.
#ifndef CISTERN_ADDON_HANDLE_TABLE_H_
#define CISTERN_ADDON_HANDLE_TABLE_H_

#include <cstdint>
#include <vector>

#include "addon/integers.h"
#include "cuda/native_status.h"

namespace cistern {

template <typename Value>
class HandleTable {
 public:
  // The handle, or zero if the table is full. Throws std::bad_alloc.
  std::uint64_t Add(const Value& value) {
    std::uint32_t slot = first_free_;
    if (slot != kNoSlot) {
      first_free_ = slots_[slot].next_free;
    } else {
      if (slots_.size() > kSlotMask) return 0;
      slot = static_cast<std::uint32_t>(slots_.size());
      slots_.emplace_back();
    }
    Slot& entry = slots_[slot];
    entry.value = value;
    const std::uint64_t handle = entry.generation << kSlotBits | slot;
    entry.handle = static_cast<double>(handle);
    return handle;
  }

  // kInvalidArgument for a number that cannot be a handle, kStaleHandle for one that is not live.
  Status Find(double number, Value** value) {
    // Converting a NaN or a number out of range is undefined behaviour.
    if (number >= 0 && number <= static_cast<double>(kMaxSafeInteger)) {
      const std::uint64_t slot = static_cast<std::uint64_t>(static_cast<std::int64_t>(number)) & kSlotMask;
      if (slot < slots_.size() && slots_[slot].handle == number) {
        *value = &slots_[slot].value;
        return kSuccess;
      }
    }
    *value = nullptr;  // the compiler cannot see that what follows is no success
    return WhyNotFound(number);
  }

  Value* Peek(std::uint64_t handle) {
    Value* value;
    return Find(static_cast<double>(handle), &value) == kSuccess ? value : nullptr;
  }

  // The handle must be live.
  void Remove(std::uint64_t handle) {
    const std::uint32_t slot = static_cast<std::uint32_t>(handle & kSlotMask);
    Slot& entry = slots_[slot];
    entry.handle = kNone;
    entry.value = Value{};
    entry.generation += 1;
    // A slot that has used up its generations is retired: reusing it would make old handles valid
    // again.
    if (entry.generation > kMaxSafeInteger >> kSlotBits) return;
    entry.next_free = first_free_;
    first_free_ = slot;
  }

  template <typename Visitor>
  void ForEach(Visitor&& visitor) {
    for (Slot& slot : slots_) {
      if (slot.handle != kNone) visitor(static_cast<std::uint64_t>(slot.handle), slot.value);
    }
  }

 private:
  [[gnu::noinline]] static Status WhyNotFound(double number) {
    std::uint64_t handle;
    return ToInteger(number, &handle) ? kStaleHandle : kInvalidArgument;
  }

  static constexpr int kSlotBits = 20;
  static constexpr std::uint64_t kSlotMask = (std::uint64_t{1} << kSlotBits) - 1;
  static constexpr std::uint32_t kNoSlot = UINT32_MAX;
  static constexpr double kNone = -1;

  // Aligned, so that finding one is a shift and touches one cache line.
  struct alignas(64) Slot {
    // As JavaScript has it: comparing it also refuses what is no integer.
    double handle = kNone;
    Value value{};
    std::uint64_t generation = 1;
    std::uint32_t next_free = kNoSlot;
  };

  std::vector<Slot> slots_;
  std::uint32_t first_free_ = kNoSlot;
};

}  // namespace cistern

#endif  // CISTERN_ADDON_HANDLE_TABLE_H_
