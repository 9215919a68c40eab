#include "addon/weak_references.h"

#include <limits>

#include "addon/bindings.h"

namespace cistern {

Status WeakReferences::Watch(const Napi::Object& object, std::int32_t* slot) {
  if (free_slots_.empty()) {
    if (references_.size() >= static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max())) return kHostOutOfMemory;
    references_.emplace_back();
    // Make room for every slot now, so that Unwatch cannot fail.
    free_slots_.reserve(references_.capacity());
    free_slots_.push_back(static_cast<std::int32_t>(references_.size() - 1));
  }
  const std::int32_t free_slot = free_slots_.back();
  references_[static_cast<std::size_t>(free_slot)] = Napi::Weak(object);
  free_slots_.pop_back();
  *slot = free_slot;
  return kSuccess;
}

Status WeakReferences::Unwatch(std::uint64_t slot) {
  if (slot >= references_.size() || references_[slot].IsEmpty()) return kStaleHandle;
  references_[slot].Reset();
  free_slots_.push_back(static_cast<std::int32_t>(slot));
  return kSuccess;
}

std::size_t WeakReferences::Collected(Napi::Env env, std::int32_t* slots, std::size_t capacity) const {
  // Reading a live object opens a handle on it; a scope for each batch bounds their number.
  constexpr std::size_t kBatch = 1024;
  std::size_t count = 0;
  for (std::size_t start = 0; start < references_.size() && count < capacity; start += kBatch) {
    const Napi::HandleScope scope(env);
    for (std::size_t slot = start; slot < start + kBatch && slot < references_.size() && count < capacity; ++slot) {
      if (!references_[slot].IsEmpty() && references_[slot].Value().IsEmpty()) slots[count++] = static_cast<std::int32_t>(slot);
    }
  }
  return count;
}

Status Watch(Environment& environment, const Napi::CallbackInfo& info) {
  // Node-API would also accept a symbol.
  if (!info[0].IsObject()) return kInvalidArgument;
  std::int32_t slot;
  const Status status = environment.weak_references.Watch(info[0].As<Napi::Object>(), &slot);
  if (status == kSuccess) environment.Out(1, slot);
  return status;
}

Status Unwatch(Environment& environment, const Napi::CallbackInfo& info) {
  std::uint64_t slot;
  return ReadInteger(info[0], &slot) ? environment.weak_references.Unwatch(slot) : kInvalidArgument;
}

Status CollectedSlots(Environment& environment, const Napi::CallbackInfo& info) {
  Napi::Int32Array slots;
  if (!ReadArray(info[0], &slots)) return kInvalidArgument;
  const std::size_t count = environment.weak_references.Collected(info.Env(), slots.Data(), slots.ElementLength());
  environment.Out(1, static_cast<double>(count));
  return kSuccess;
}

}  // namespace cistern
