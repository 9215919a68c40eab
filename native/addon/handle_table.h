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
#include "addon/native_status.h"

namespace cistern {

template <typename Value>
class HandleTable {
 public:
  // The handle, or zero if the table is full. Throws std::bad_alloc.
  std::uint64_t Add(const Value& value) {
    std::uint32_t slot = first_free_;
    if (slot != kNone) {
      first_free_ = slots_[slot].next_free;
    } else {
      if (slots_.size() > kSlotMask) return 0;
      slot = static_cast<std::uint32_t>(slots_.size());
      slots_.emplace_back();
    }
    Slot& entry = slots_[slot];
    entry.live = true;
    entry.value = value;
    return entry.handle = entry.generation << kSlotBits | slot;
  }

  // kInvalidArgument for a number that cannot be a handle, kStaleHandle for one that is not live.
  Status Find(double number, Value** value) {
    std::uint64_t handle;
    if (!ToInteger(number, &handle)) return kInvalidArgument;
    *value = Peek(handle);
    return *value != nullptr ? kSuccess : kStaleHandle;
  }

  Value* Peek(std::uint64_t handle) {
    const std::uint64_t slot = handle & kSlotMask;
    if (slot >= slots_.size() || slots_[slot].handle != handle || !slots_[slot].live) return nullptr;
    return &slots_[slot].value;
  }

  // The handle must be live.
  void Remove(std::uint64_t handle) {
    const std::uint32_t slot = static_cast<std::uint32_t>(handle & kSlotMask);
    Slot& entry = slots_[slot];
    entry.live = false;
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
      if (slot.live) visitor(slot.handle, slot.value);
    }
  }

 private:
  static constexpr int kSlotBits = 20;
  static constexpr std::uint64_t kSlotMask = (std::uint64_t{1} << kSlotBits) - 1;
  static constexpr std::uint32_t kNone = UINT32_MAX;

  struct Slot {
    std::uint64_t handle = 0;
    std::uint64_t generation = 1;
    Value value{};
    std::uint32_t next_free = kNone;
    bool live = false;
  };

  std::vector<Slot> slots_;
  std::uint32_t first_free_ = kNone;
};

}  // namespace cistern

#endif  // CISTERN_ADDON_HANDLE_TABLE_H_
