// Access of one device's streams to the memory of another device, as JavaScript has requested it.
//
// CUDA has a setting for plain memory, which belongs to the contexts and so to the process, one for
// each pool, and one for each mapping of virtual memory. Here one call sets them all: for what this
// environment has and, with the functions below, for what it will have.
#ifndef CISTERN_ADDON_PEERS_H_
#define CISTERN_ADDON_PEERS_H_

#include <set>
#include <utility>
#include <vector>

#include "cuda/driver_table.h"

namespace cistern {

class Environment;

// The pairs with access: the device that has the memory, and the one whose streams may use it.
using Peers = std::set<std::pair<int, int>>;

// Descriptions of the access to new memory of a device: its own, and that of its peers, with the flags.
std::vector<AccessDescription> AccessTo(const Environment& environment, int device, int flags);

// Gives the device's peers access to a new pool.
Status GivePoolAccess(Environment& environment, Pool pool, int device);
// Gives every device access to a new pool of the host's memory, which has none by itself.
Status GiveHostPoolAccess(Environment& environment, Pool pool);

}  // namespace cistern

#endif  // CISTERN_ADDON_PEERS_H_
