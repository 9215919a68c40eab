// Blocking calls that stop for a host function (kHostFunctionReady) and are repeated once it has
// run.
//
// As such a call begins, it records in an event what it waits for, and keeps the event while it is
// stopped. If it looked at its stream again each time, host functions that queue the next one would
// keep it from ever returning, and one that ends the stream would make it fail.
#ifndef CISTERN_ADDON_STOPPED_CALLS_H_
#define CISTERN_ADDON_STOPPED_CALLS_H_

#include <cstdint>

#include "addon/environment.h"

namespace cistern {

// What the same call waited for as it stopped, if this is its repetition; else an empty one. Gives
// back what a call left that was never repeated. `handle` is that of the stream or the event;
// `source` and `bytes` are those of a copy to the host.
StoppedCall TakeStoppedCall(Environment& environment, std::uint64_t handle, bool is_event = false, std::uint64_t source = 0,
                            std::uint64_t bytes = 0);

// Waits for the call's event, and keeps the call if it stops. After any other status the call
// belongs to the caller again.
Status WaitOrStop(Environment& environment, const StoppedCall& call);

// Takes the call that has stopped and is to be repeated next, while host functions run: their own
// calls come in between.
StoppedCall SetStoppedCallAside(Environment& environment);
void ResumeStoppedCall(Environment& environment, const StoppedCall& call);

}  // namespace cistern

#endif  // CISTERN_ADDON_STOPPED_CALLS_H_
