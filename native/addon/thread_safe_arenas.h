// Arenas for native threads (arenas/thread_safe_arena.h) as resources of environments.
//
// An environment has a claim to what it has allocated from such an arena, or adopted of it. What it still
// claims when it ends goes to the orphans, as does its part of the arena: an arena calls the driver at its end.
#ifndef CISTERN_ADDON_THREAD_SAFE_ARENAS_H_
#define CISTERN_ADDON_THREAD_SAFE_ARENAS_H_

#include <vector>

#include "addon/orphans.h"

namespace cistern {

// The environment ends. Calls no driver.
void EndThreadSafeArenasOf(Environment& environment, std::vector<Orphan>* orphans);

}  // namespace cistern

#endif  // CISTERN_ADDON_THREAD_SAFE_ARENAS_H_
