#include <utility>

#include "strict_driver/call.h"
#include "strict_driver/calls.h"
#include "strict_driver/pool.h"
#include "strict_driver/report.h"
#include "strict_driver/wait.h"

namespace cistern::strict::calls {
namespace {

ContextState* ContextOf(Context handle) {
  for (ContextState* context : driver.contexts) {
    if (reinterpret_cast<Context>(context) == handle) return context;
  }
  return nullptr;
}

}  // namespace

Status CtxGetCurrent(Context* context) {
  STRICT_DRIVER_ENTER("cuCtxGetCurrent", kInit);
  if (context == nullptr) return kErrorInvalidValue;
  *context = reinterpret_cast<Context>(thread.current);
  return kSuccess;
}

Status CtxSetCurrent(Context context) {
  STRICT_DRIVER_ENTER("cuCtxSetCurrent", kInit);
  ContextState* state = ContextOf(context);
  if (context != nullptr && (state == nullptr || state->retained == 0)) {
    Report("MISUSE", "%p is not a live context", static_cast<void*>(context));
    return kErrorInvalidContext;
  }
  thread.current = state;
  return kSuccess;
}

Status CtxSynchronize() {
  STRICT_DRIVER_ENTER("cuCtxSynchronize", kContext);
  const Status status = WaitForContext(call.lock, thread.current, call.function, false);
  if (status == kSuccess) ObserveFrees(thread.current->device);
  return status;
}

Status CtxGetStreamPriorityRange(int* least, int* greatest) {
  STRICT_DRIVER_ENTER("cuCtxGetStreamPriorityRange", kContext);
  if (least != nullptr) *least = 0;
  if (greatest != nullptr) *greatest = kGreatestPriority;
  return kSuccess;
}

Status ThreadExchangeStreamCaptureMode(int* mode) {
  STRICT_DRIVER_ENTER("cuThreadExchangeStreamCaptureMode", kInit);
  if (mode == nullptr || *mode < kCaptureModeGlobal || *mode > kCaptureModeRelaxed) return kErrorInvalidValue;
  std::swap(*mode, thread.capture_mode);
  return kSuccess;
}

}  // namespace cistern::strict::calls
