// The table of include/cistern_resource.h over a thread-safe arena.
#ifndef CISTERN_ARENAS_RESOURCE_TABLE_H_
#define CISTERN_ARENAS_RESOURCE_TABLE_H_

#include <cstdint>
#include <memory>

#include "arenas/thread_safe_arena.h"
#include "cistern_resource.h"

namespace cistern::arenas {

// A table with one user: its last release lets go of the arena, and of the table. Null if there is no memory.
const cistern_thread_safe_resource* NewResourceTable(std::shared_ptr<ThreadSafeArena> arena, int device, int memory_kind);

}  // namespace cistern::arenas

#endif  // CISTERN_ARENAS_RESOURCE_TABLE_H_
