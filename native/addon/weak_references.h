// Watches objects without keeping them alive.
#ifndef CISTERN_ADDON_WEAK_REFERENCES_H_
#define CISTERN_ADDON_WEAK_REFERENCES_H_

#include <napi.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cuda/native_status.h"

namespace cistern {

class WeakReferences {
 public:
  Status Watch(const Napi::Object& object, std::int32_t* slot);
  Status Unwatch(std::uint64_t slot);
  // Writes the slots whose objects were collected, at most `capacity` of them, and returns their
  // number.
  std::size_t Collected(Napi::Env env, std::int32_t* slots, std::size_t capacity) const;

 private:
  std::vector<Napi::ObjectReference> references_;  // empty: a free slot
  std::vector<std::int32_t> free_slots_;
};

}  // namespace cistern

#endif  // CISTERN_ADDON_WEAK_REFERENCES_H_
