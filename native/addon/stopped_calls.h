// Blocking calls that stop for a host function (kHostFunctionReady) and are made again once it has run.
//
// What such a call waits for is fixed by an event as it begins, and kept while it is stopped. Were it to look at its stream anew each time,
// host functions that queue the next one would keep it from ever returning, and one that ends the stream would make it fail.
#ifndef CISTERN_ADDON_STOPPED_CALLS_H_
#define CISTERN_ADDON_STOPPED_CALLS_H_

#include <cstdint>

#include "addon/environment.h"

namespace cistern {

// What the same call waited for as it stopped, if this is its repetition; else an empty one, and what a call left that was never repeated
// is given back. `handle` is that of the stream or the event; `source` and `bytes` are those of a copy to the host.
StoppedCall TakeStoppedCall(Environment& environment, std::uint64_t handle, bool is_event = false, std::uint64_t source = 0,
                            std::uint64_t bytes = 0);

// Waits for the call's event, and keeps the call where it stops. After any other status it is the caller's again.
Status WaitOrStop(Environment& environment, const StoppedCall& call);

// Takes the call that has stopped and is to be repeated next, for as long as host functions run: their own calls come in between.
StoppedCall SetStoppedCallAside(Environment& environment);
void ResumeStoppedCall(Environment& environment, const StoppedCall& call);

}  // namespace cistern

#endif  // CISTERN_ADDON_STOPPED_CALLS_H_
