// Blocking calls that stop for a host function (kHostFunctionReady) and are made again once it has run.
//
// What such a call waits for is fixed by an event as it begins, and kept while it is stopped. Were it to look at its stream anew each time,
// host functions that queue the next one would keep it from ever returning.
#ifndef CISTERN_ADDON_STOPPED_CALLS_H_
#define CISTERN_ADDON_STOPPED_CALLS_H_

#include <cstdint>

#include "addon/environment.h"

namespace cistern {

// What the same call waited for as it stopped, if this is its repetition; else an empty one, and what a call left that was never repeated
// is given back. `source` and `bytes` are those of a copy to the host.
StoppedCall TakeStoppedCall(Environment& environment, const StreamEntry& stream, std::uint64_t source = 0, std::uint64_t bytes = 0);

// Waits for the call's event, and keeps the call where it stops. After any other status it is the caller's again.
Status WaitOrStop(Environment& environment, const StoppedCall& call);

// Only the call after the one that stopped goes on with it, where running host functions between the two does not count: others may have
// queued work that a new call has to wait for.
inline bool IsNextAfterStopping(const Environment& environment) { return environment.stopped_call.next_call == environment.calls; }
inline void ExpectRepetition(Environment& environment) { environment.stopped_call.next_call = environment.calls + 1; }

}  // namespace cistern

#endif  // CISTERN_ADDON_STOPPED_CALLS_H_
