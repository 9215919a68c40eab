#include "addon/stopped_calls.h"

#include <utility>

#include "addon/completions.h"
#include "addon/host_functions.h"
#include "addon/queued_copies.h"

namespace cistern {
namespace {

void GiveBackCall(Environment& environment, const StoppedCall& call) {
  if (call.event == nullptr) return;
  if (call.watched != nullptr) {
    ForgetEvent(environment, call.watched);
  } else if (call.block.pointer != nullptr) {
    ReleaseLater(environment, {call.block, call.event}, call.device);
  } else {
    environment.internal_events.Release(call.event, call.device);
  }
}

// Only the call right after the one that stopped resumes it: other calls may have queued work that
// a new call has to wait for.
bool IsNextAfterStopping(const Environment& environment) { return environment.stopped_call.next_call == environment.calls; }

void Stop(Environment& environment, const StoppedCall& call) {
  environment.stopped_call = call;
  environment.stopped_call.next_call = environment.calls + 1;
}

}  // namespace

StoppedCall TakeStoppedCall(Environment& environment, std::uint64_t handle, bool is_event, std::uint64_t source, std::uint64_t bytes) {
  const bool is_next = IsNextAfterStopping(environment);
  const StoppedCall call = std::exchange(environment.stopped_call, {});
  const bool is_same = call.handle == handle && (call.watched != nullptr) == is_event && call.source == source && call.bytes == bytes;
  if (is_next && is_same) return call;
  GiveBackCall(environment, call);
  return {};
}

Status WaitOrStop(Environment& environment, const StoppedCall& call) {
  const Status status = BeforeWaitingFor(environment, [&] { return environment.driver->EventQuery(call.event); });
  if (status == kSuccess) return environment.Counted<Call::kEventSynchronize>(call.event);
  if (status == kHostFunctionReady) Stop(environment, call);
  return status;
}

StoppedCall SetStoppedCallAside(Environment& environment) {
  return IsNextAfterStopping(environment) ? std::exchange(environment.stopped_call, {}) : StoppedCall{};
}

void ResumeStoppedCall(Environment& environment, const StoppedCall& call) {
  if (call.event == nullptr) return;
  GiveBackCall(environment, environment.stopped_call);
  Stop(environment, call);
}

}  // namespace cistern
