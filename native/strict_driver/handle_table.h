// Handles of live objects are real addresses. The last one destroyed is reused first, as by an
// allocator.
#ifndef CISTERN_STRICT_DRIVER_HANDLE_TABLE_H_
#define CISTERN_STRICT_DRIVER_HANDLE_TABLE_H_

#include <cstdlib>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "strict_driver/settings.h"

namespace cistern::strict {

template <typename State>
class HandleTable {
 public:
  void* Add(std::shared_ptr<State> state) {
    void* handle;
    if (!vacant_.empty() && settings().reuses_handles) {
      handle = vacant_.back();
      vacant_.pop_back();
    } else {
      handle = std::aligned_alloc(64, 64);
    }
    known_.insert(handle);
    live_[handle] = std::move(state);
    return handle;
  }
  std::shared_ptr<State> Find(const void* handle) const {
    const auto found = live_.find(const_cast<void*>(handle));
    return found == live_.end() ? nullptr : found->second;
  }
  void Remove(const void* handle) {
    live_.erase(const_cast<void*>(handle));
    vacant_.push_back(const_cast<void*>(handle));
  }
  bool WasEverLive(const void* handle) const { return known_.count(const_cast<void*>(handle)) != 0; }
  std::size_t size() const { return live_.size(); }

 private:
  std::map<void*, std::shared_ptr<State>> live_;
  std::set<void*> known_;
  std::vector<void*> vacant_;
};

}  // namespace cistern::strict

#endif  // CISTERN_STRICT_DRIVER_HANDLE_TABLE_H_
