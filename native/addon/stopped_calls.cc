#include "addon/stopped_calls.h"

#include <utility>

#include "addon/host_functions.h"
#include "addon/queued_copies.h"

namespace cistern {

StoppedCall TakeStoppedCall(Environment& environment, const StreamEntry& stream, std::uint64_t source, std::uint64_t bytes) {
  const bool is_next = IsNextAfterStopping(environment);
  const StoppedCall call = std::exchange(environment.stopped_call, {});
  if (call.event == nullptr) return {};
  const bool is_same =
      call.stream.stream == stream.stream && call.stream.device == stream.device && call.source == source && call.bytes == bytes;
  if (is_next && is_same) return call;
  if (call.block.pointer != nullptr) {
    ReleaseLater(environment, {call.block, call.event}, call.stream.device);
  } else {
    environment.internal_events.Release(call.event, call.stream.device);
  }
  return {};
}

Status WaitOrStop(Environment& environment, const StoppedCall& call) {
  const Status status = BeforeWaitingFor(environment, [&] { return environment.driver->EventQuery(call.event); });
  if (status == kSuccess) return environment.Counted<Call::kEventSynchronize>(call.event);
  if (status == kHostFunctionReady) {
    environment.stopped_call = call;
    ExpectRepetition(environment);
  }
  return status;
}

}  // namespace cistern
