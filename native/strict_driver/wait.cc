#include "strict_driver/wait.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>

#include "strict_driver/report.h"
#include "strict_driver/settings.h"
#include "strict_driver/stream.h"

namespace cistern::strict {
namespace {

constexpr int kStalledStatus = 86;

void ReportStall(const char* function, unsigned seconds) {
  Report("STALL", "%s has waited for %u s", function, seconds);
  for (const ContextState* context : driver.contexts) {
    for (const StreamRef& stream : context->streams) {
      if (stream->IsIdle()) continue;
      Report("STALL", "  stream %llu of device %d: %llu of %llu operations run, now at %s", static_cast<unsigned long long>(stream->id),
             context->device, static_cast<unsigned long long>(stream->completed), static_cast<unsigned long long>(stream->submitted),
             stream->at);
    }
  }
}

}  // namespace

Status Wait(Lock& lock, ContextState* context, const char* function, const std::function<bool()>& done) {
  using Clock = std::chrono::steady_clock;
  const auto begun = Clock::now();
  bool is_reported = false;
  for (;;) {
    if (done()) return kSuccess;
    if (context != nullptr && context->sticky_error != kSuccess) return context->sticky_error;
    changed.wait_for(lock, std::chrono::milliseconds{250});
    const unsigned seconds = static_cast<unsigned>(std::chrono::duration_cast<std::chrono::seconds>(Clock::now() - begun).count());
    if (!is_reported && settings().stall_seconds != 0 && seconds >= settings().stall_seconds && !done()) {
      is_reported = true;
      ReportStall(function, seconds);
    }
    if (settings().abort_seconds != 0 && seconds >= settings().abort_seconds && !done()) {
      Report("STALL", "%s has waited for %u s: the process is ended", function, seconds);
      _exit(kStalledStatus);
    }
  }
}

Status WaitForPlace(Lock& lock, ContextState* context, const char* function, const Place& place) {
  return Wait(lock, context, function, [&] { return place.IsReached(); });
}

Status WaitForContext(Lock& lock, ContextState* context, const char* function, bool may_lock) {
  const std::vector<Place> pending = PendingOf(*context, false);
  const bool locks = may_lock && settings().locks_while_waiting;
  if (locks) context->locked_by = syscall(SYS_gettid);
  const Status status = Wait(lock, context, function, [&] { return AreReached(pending); });
  if (locks) {
    context->locked_by = 0;
    changed.notify_all();
  }
  return status;
}

}  // namespace cistern::strict
