// Virtual memory: reserved addresses, and memory of a device that is mapped to them.
//
// Each reservation has a second range of the same size, through which the driver itself reads and
// writes: what is mapped is adjacent there too.
//
// Memory that can be exported has a file of its own, and a descriptor of that file is the handle for other processes: the
// memory lives until the last handle, mapping and descriptor are gone, in whatever process they are.
#ifndef CISTERN_STRICT_DRIVER_VIRTUAL_MEMORY_H_
#define CISTERN_STRICT_DRIVER_VIRTUAL_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "strict_driver/state.h"

namespace cistern::strict {

// Whether the address is in a reservation.
bool IsReserved(std::uintptr_t address);
char* VirtualHostView(std::uintptr_t address);

// Whether anything is mapped that other processes can have, too.
bool HasSharedMappings();

// The mappings that a range spans; empty unless all of it is mapped and accessible, also to write if that is asked for.
std::vector<AllocationRef> FindMappings(std::uintptr_t address, std::size_t bytes, bool will_write);

}  // namespace cistern::strict

#endif  // CISTERN_STRICT_DRIVER_VIRTUAL_MEMORY_H_
