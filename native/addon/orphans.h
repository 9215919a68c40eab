// What finished environments left behind, and what could not be freed at once because JavaScript stalls a stream.
//
// A dying worker calls no driver: its memory, streams, events and pools go onto one list of the process, and environments that live on free
// them at calls that are slow anyway, or when memory runs out. At the process's end nobody does; the driver takes it all back by itself.
#ifndef CISTERN_ADDON_ORPHANS_H_
#define CISTERN_ADDON_ORPHANS_H_

#include <cstdint>
#include <vector>

#include "cuda/driver_table.h"

namespace cistern {

class Environment;

// In the order in which they are freed.
enum class OrphanKind { kEvent, kPoolMemory, kPool, kMemory, kPinnedMemory, kHostMemory, kStream };

struct Orphan {
  OrphanKind kind;
  int device;
  std::uint64_t address;  // or the driver's handle
};

void LeaveOrphans(const DriverTable* driver, std::vector<Orphan> orphans);

// Frees the orphans of the environment's driver. Waits for the work that is queued on the devices of the process; where JavaScript stalls a
// stream that could last for ever, so it does nothing then. True if anything was freed.
bool FreeOrphans(Environment& environment);

}  // namespace cistern

#endif  // CISTERN_ADDON_ORPHANS_H_
