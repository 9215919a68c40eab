// Objects watched without keeping them alive.
#ifndef CISTERN_ADDON_WEAK_REFERENCES_H_
#define CISTERN_ADDON_WEAK_REFERENCES_H_

#include <node_api.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "addon/native_status.h"

namespace cistern {

class WeakReferences {
 public:
  Status Watch(napi_env env, napi_value object, std::int32_t* slot);
  Status Unwatch(napi_env env, std::uint64_t slot);
  // Writes the slots whose objects were collected, at most `capacity` of them, and returns how many it wrote.
  std::size_t Collected(napi_env env, std::int32_t* slots, std::size_t capacity);

 private:
  std::vector<napi_ref> references_;  // null: a free slot
  std::vector<std::int32_t> free_slots_;
};

}  // namespace cistern

#endif  // CISTERN_ADDON_WEAK_REFERENCES_H_
