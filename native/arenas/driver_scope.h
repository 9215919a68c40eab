#ifndef CISTERN_ARENAS_DRIVER_SCOPE_H_
#define CISTERN_ARENAS_DRIVER_SCOPE_H_

#include "cuda/driver_table.h"

namespace cistern::arenas {

// Makes a context current for a scope. Unlike the addon's, it restores no context, too: the thread is not
// JavaScript's, and other libraries may look at it.
class DriverScope {
 public:
  DriverScope(const DriverTable* driver, Context context) : driver_(driver) {
    Context current = nullptr;
    driver_->CtxGetCurrent(&current);
    if (current == context) return;
    status_ = driver_->CtxSetCurrent(context);
    is_changed_ = status_ == kSuccess;
    previous_ = current;
  }
  ~DriverScope() {
    if (is_changed_) driver_->CtxSetCurrent(previous_);
  }
  DriverScope(const DriverScope&) = delete;
  DriverScope& operator=(const DriverScope&) = delete;
  Status status() const { return status_; }

 private:
  const DriverTable* driver_;
  Context previous_ = nullptr;
  bool is_changed_ = false;
  Status status_ = kSuccess;
};

}  // namespace cistern::arenas

#endif  // CISTERN_ARENAS_DRIVER_SCOPE_H_
