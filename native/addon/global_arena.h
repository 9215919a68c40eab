// One block of memory for all environments of the process, handed out in superblocks.
//
//     block   [ environment 1 | 2 | free, event a | 1 | free, event b | free ........ ]
//
// An environment takes whole superblocks for a stream, which waits for the events with which they
// were freed, and frees them with an event of its own. So it needs neither the environment nor the
// stream that had them before.
//
// What an environment had when it ended stays its own until a living environment has waited for the
// devices, because no event covers it. Memory of it that is handed over stays longer.
//
// If the arena has no room, an environment asks the others, and waits until they have answered, but
// not longer than it said. Each is asked through its event loop, and whenever it needs more itself.
//
// Invariants: the ranges of an arena tile its block; an event is idle if no free range and no call
// needs it.
// One mutex guards all arenas. It is held for some steps through the ranges of an arena, and no
// driver is called meanwhile, since a driver call may wait for JavaScript of another thread.
#ifndef CISTERN_ADDON_GLOBAL_ARENA_H_
#define CISTERN_ADDON_GLOBAL_ARENA_H_

#include <cstdint>
#include <vector>

#include "addon/orphans.h"

namespace cistern {

// The environment ends. What has to be freed with it, if it was the last, goes to `orphans`. Calls
// no driver.
void EndGlobalArenasOf(const Environment& environment, std::vector<Orphan>* orphans);

// Frees superblocks of ended environments that no hand-over covers, after a wait for the devices. True
// if there were any.
bool FreeEndedSuperblocks(Environment& environment);

// The bytes of superblocks that an ended environment still has.
std::uint64_t EndedSuperblockBytes(std::uint64_t environment);

// Calls JavaScript if other environments have asked this one for superblocks. Called by the event
// loop.
void DeliverArenaRequests(Environment& environment);

}  // namespace cistern

#endif  // CISTERN_ADDON_GLOBAL_ARENA_H_
