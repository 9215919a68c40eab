// Environments as tenants of global arenas (arenas/global_arena.h): their calls, what they leave, and how
// they ask each other.
//
// If an arena has no room, native tenants return what they can immediately. Other environments are
// asked, each through its event loop, and whenever it needs more itself; the one that asks waits until
// they have answered, but no longer than it has specified.
#ifndef CISTERN_ADDON_GLOBAL_ARENA_H_
#define CISTERN_ADDON_GLOBAL_ARENA_H_

#include <cstdint>
#include <vector>

#include "addon/orphans.h"
#include "arenas/global_arena.h"

namespace cistern {

// The environment ends. What is left of arenas that it was the last tenant of goes to the orphans. Calls no driver, and
// throws nothing.
void EndGlobalArenasOf(const Environment& environment);

// The memory and events of an ended arena, to be freed.
std::vector<Orphan> OrphansOf(const arenas::EndedArena& ended);

// Leaves what is left of arenas that have no tenant any more, or what there is host memory for. Throws nothing.
void LeaveEndedArenas(const Environment& environment);

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
