#include "addon/weak_references.h"

#include <limits>

#include "addon/bindings.h"

namespace cistern {

Status WeakReferences::Watch(napi_env env, napi_value object, std::int32_t* slot) {
  // Node-API would also watch a symbol.
  napi_valuetype type;
  if (napi_typeof(env, object, &type) != napi_ok || (type != napi_object && type != napi_function)) return kInvalidArgument;
  if (free_slots_.empty()) {
    if (references_.size() >= static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max())) return kHostOutOfMemory;
    references_.push_back(nullptr);
    // Room for every slot now, so that Unwatch cannot fail.
    free_slots_.reserve(references_.capacity());
    free_slots_.push_back(static_cast<std::int32_t>(references_.size() - 1));
  }
  const std::int32_t free_slot = free_slots_.back();
  if (napi_create_reference(env, object, 0, &references_[static_cast<std::size_t>(free_slot)]) != napi_ok) return kInvalidArgument;
  free_slots_.pop_back();
  *slot = free_slot;
  return kSuccess;
}

Status WeakReferences::Unwatch(napi_env env, std::uint64_t slot) {
  if (slot >= references_.size() || references_[slot] == nullptr) return kStaleHandle;
  napi_delete_reference(env, references_[slot]);
  references_[slot] = nullptr;
  free_slots_.push_back(static_cast<std::int32_t>(slot));
  return kSuccess;
}

std::size_t WeakReferences::Collected(napi_env env, std::int32_t* slots, std::size_t capacity) {
  // Reading a live object opens a handle on it; a scope for each batch bounds how many there are at once.
  constexpr std::size_t kBatch = 1024;
  std::size_t count = 0;
  for (std::size_t start = 0; start < references_.size() && count < capacity; start += kBatch) {
    napi_handle_scope scope;
    if (napi_open_handle_scope(env, &scope) != napi_ok) break;
    for (std::size_t slot = start; slot < start + kBatch && slot < references_.size() && count < capacity; ++slot) {
      if (references_[slot] == nullptr) continue;
      napi_value object = nullptr;
      if (napi_get_reference_value(env, references_[slot], &object) == napi_ok && object == nullptr) {
        slots[count++] = static_cast<std::int32_t>(slot);
      }
    }
    napi_close_handle_scope(env, scope);
  }
  return count;
}

Status Watch(Environment& environment, Arguments& arguments) {
  std::int32_t slot;
  const Status status = environment.weak_references.Watch(arguments.env(), arguments[0], &slot);
  if (status == kSuccess) environment.Out(1, slot);
  return status;
}

Status Unwatch(Environment& environment, Arguments& arguments) {
  std::uint64_t slot;
  if (!arguments.Integer(0, &slot)) return kInvalidArgument;
  return environment.weak_references.Unwatch(arguments.env(), slot);
}

Status CollectedSlots(Environment& environment, Arguments& arguments) {
  std::int32_t* slots;
  std::size_t length;
  if (!arguments.Int32Array(0, &slots, &length)) return kInvalidArgument;
  environment.Out(1, static_cast<double>(environment.weak_references.Collected(arguments.env(), slots, length)));
  return kSuccess;
}

}  // namespace cistern
