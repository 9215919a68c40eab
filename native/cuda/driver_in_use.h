#ifndef CISTERN_CUDA_DRIVER_IN_USE_H_
#define CISTERN_CUDA_DRIVER_IN_USE_H_

#include <atomic>

#include "cuda/driver_table.h"

namespace cistern {

// The table that calls go through: the backend's own, or one in front of it while stream order is
// checked. Another thread may exchange it at any time; either table is valid to call.
class DriverInUse {
 public:
  DriverInUse& operator=(const DriverTable* table) {
    table_.store(table, std::memory_order_release);
    return *this;
  }
  operator const DriverTable*() const { return table_.load(std::memory_order_acquire); }
  const DriverTable* operator->() const { return *this; }

 private:
  std::atomic<const DriverTable*> table_{nullptr};
};

}  // namespace cistern

#endif  // CISTERN_CUDA_DRIVER_IN_USE_H_
