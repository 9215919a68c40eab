// What every driver function does first.
#ifndef CISTERN_STRICT_DRIVER_CALL_H_
#define CISTERN_STRICT_DRIVER_CALL_H_

#include "strict_driver/state.h"

namespace cistern::strict {

enum class Need { kNothing, kInit, kContext };

// One call: holds the lock; `status` says whether the call may proceed.
struct ApiCall {
  ApiCall(const char* symbol, Need need);
  ~ApiCall();
  ApiCall(const ApiCall&) = delete;
  ApiCall& operator=(const ApiCall&) = delete;

  Lock lock;
  const bool is_kept_out_by_locks;
  const char* function;
  Status status = kSuccess;
};

// Opens a function of the driver. `symbol` is CUDA's name, such as cuMemAlloc.
#define STRICT_DRIVER_ENTER(symbol, need)              \
  ::cistern::strict::ApiCall call(symbol, Need::need); \
  if (call.status != ::cistern::kSuccess) return call.status

// The same for a function that the mode of the thread may forbid while a stream is captured: `check` is a function
// of capture.h.
#define STRICT_DRIVER_ENTER_UNSAFE(symbol, need, check) \
  STRICT_DRIVER_ENTER(symbol, need);                    \
  if (const ::cistern::Status allowed = check(); allowed != ::cistern::kSuccess) return allowed

}  // namespace cistern::strict

#endif  // CISTERN_STRICT_DRIVER_CALL_H_
