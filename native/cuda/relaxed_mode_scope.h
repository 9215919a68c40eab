// cistern's own calls must not invalidate the captures of others.
#ifndef CISTERN_CUDA_RELAXED_MODE_SCOPE_H_
#define CISTERN_CUDA_RELAXED_MODE_SCOPE_H_

#include "cuda/driver_table.h"

namespace cistern {

// The calls in the scope do not invalidate captures, unless they name a captured stream or event.
// Does nothing without a driver.
class RelaxedModeScope {
 public:
  explicit RelaxedModeScope(const DriverTable* driver) : driver_(driver) {
    if (driver_ != nullptr && driver_->ThreadExchangeStreamCaptureMode(&mode_) != kSuccess) driver_ = nullptr;
  }
  ~RelaxedModeScope() {
    if (driver_ != nullptr) driver_->ThreadExchangeStreamCaptureMode(&mode_);
  }
  RelaxedModeScope(const RelaxedModeScope&) = delete;
  RelaxedModeScope& operator=(const RelaxedModeScope&) = delete;

 private:
  const DriverTable* driver_;
  int mode_ = kCaptureModeRelaxed;  // the thread's own, once it is exchanged
};

}  // namespace cistern

#endif  // CISTERN_CUDA_RELAXED_MODE_SCOPE_H_
