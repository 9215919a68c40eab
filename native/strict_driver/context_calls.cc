#include "strict_driver/call.h"
#include "strict_driver/calls.h"
#include "strict_driver/capture.h"
#include "strict_driver/pool.h"
#include "strict_driver/report.h"
#include "strict_driver/settings.h"
#include "strict_driver/wait.h"

namespace cistern::strict::calls {
namespace {

ContextState* ContextOf(Context handle) {
  for (ContextState* context : driver.contexts) {
    if (reinterpret_cast<Context>(context) == handle) return context;
  }
  return nullptr;
}

// A live context other than the current one, or null.
const ContextState* PeerOf(Context handle) {
  const ContextState* state = ContextOf(handle);
  if (state != nullptr && state->retained > 0 && state != thread.current) return state;
  Report("MISUSE", "%s: %p is not another live context", thread.function, static_cast<void*>(handle));
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

Status CtxEnablePeerAccess(Context peer, unsigned flags) {
  STRICT_DRIVER_ENTER_UNSAFE("cuCtxEnablePeerAccess", kContext, CheckPerhapsUnsafe);
  const ContextState* state = PeerOf(peer);
  if (state == nullptr) return kErrorInvalidContext;
  if (flags != 0) return kErrorInvalidValue;
  if (!CanReach(thread.current->device, state->device)) return kErrorPeerAccessUnsupported;
  return thread.current->peers.insert(state->device).second ? kSuccess : Status{kErrorPeerAccessAlreadyEnabled};
}

Status CtxDisablePeerAccess(Context peer) {
  STRICT_DRIVER_ENTER_UNSAFE("cuCtxDisablePeerAccess", kContext, CheckPerhapsUnsafe);
  const ContextState* state = PeerOf(peer);
  if (state == nullptr) return kErrorInvalidContext;
  return thread.current->peers.erase(state->device) != 0 ? kSuccess : Status{kErrorPeerAccessNotEnabled};
}

Status CtxSynchronize() {
  STRICT_DRIVER_ENTER("cuCtxSynchronize", kContext);
  Status status = CheckHostWait(*thread.current);
  if (status == kSuccess) status = WaitForContext(call.lock, thread.current, call.function, false);
  if (status == kSuccess) ObserveFrees(thread.current->device);
  return status;
}

Status CtxGetStreamPriorityRange(int* least, int* greatest) {
  STRICT_DRIVER_ENTER("cuCtxGetStreamPriorityRange", kContext);
  if (least != nullptr) *least = 0;
  if (greatest != nullptr) *greatest = kGreatestPriority;
  return kSuccess;
}

}  // namespace cistern::strict::calls
