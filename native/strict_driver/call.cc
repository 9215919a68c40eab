#include "strict_driver/call.h"

#include <sys/syscall.h>
#include <unistd.h>

#include "strict_driver/checkpoint.h"
#include "strict_driver/injection.h"
#include "strict_driver/report.h"
#include "strict_driver/settings.h"
#include "strict_driver/wait.h"

namespace cistern::strict {
namespace {

Status Due(const std::vector<Failure>& failures, const char* function, std::uint64_t nth) {
  for (const Failure& failure : failures) {
    if (failure.function == function && (failure.nth == 0 || failure.nth == nth)) return failure.status;
  }
  return kSuccess;
}

Status Misuse(const char* function, const char* what, Status status) {
  Report("MISUSE", "%s %s", function, what);
  return status;
}

Status CheckContext(Lock& lock, const char* function) {
  ContextState* context = thread.current;
  if (context == nullptr || context->retained == 0) return Misuse(function, "without a current context", kErrorInvalidContext);
  const long self = syscall(SYS_gettid);
  if (context->locked_by != 0 && context->locked_by != self) {
    Wait(lock, nullptr, function, [&] { return context->locked_by == 0; });
  }
  return context->sticky_error;
}

}  // namespace

ApiCall::~ApiCall() {
  if (is_kept_out_by_locks) Leave();
}

ApiCall::ApiCall(const char* symbol, Need need)
    : lock(big_lock), is_kept_out_by_locks(need != Need::kNothing && !thread.is_in_callback), function(symbol) {
  if (is_kept_out_by_locks) EnterUnlocked(lock);
  thread.function = symbol;
  thread.pending_fault = kSuccess;
  const std::uint64_t nth = ++driver.calls[symbol];
  if (settings().traces_calls) Report("CALL", "%s", symbol);
  if (driver.has_ended) {
    status = Misuse(symbol, "after the driver's end", kErrorDeinitialized);
  } else if (thread.is_in_callback) {
    status = Misuse(symbol, "within a host function", kErrorNotPermitted);
  } else if (need != Need::kNothing && !driver.is_initialized) {
    status = Misuse(symbol, "before cuInit", kErrorNotInitialized);
  } else if (need == Need::kContext) {
    status = CheckContext(lock, symbol);
  }
  if (status != kSuccess) return;
  status = Due(settings().failures, symbol, nth);
  const Status injected = Inject(lock, symbol);
  if (status == kSuccess) status = injected;
  thread.pending_fault = Due(settings().faults, symbol, nth);
}

}  // namespace cistern::strict
