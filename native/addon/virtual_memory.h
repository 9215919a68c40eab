// Virtual memory that could not be freed by its own environment.
#ifndef CISTERN_ADDON_VIRTUAL_MEMORY_H_
#define CISTERN_ADDON_VIRTUAL_MEMORY_H_

#include <cstdint>

#include "addon/address_space.h"
#include "cuda/driver_table.h"

namespace cistern {

class Environment;

AllocationProperties PropertiesOf(const Environment& environment, int device);

// Completes a free that AddressSpace::BeginFree began. No queued work may use the memory. False if
// the driver refuses; the rest can be tried again. `is_counted`: whether it was the environment's own.
bool CompleteFree(Environment& environment, bool is_counted, AddressSpace& space, std::uint64_t address);

// The same for everything that is mapped, and then for the addresses.
bool FreeAddressSpace(Environment& environment, bool is_counted, AddressSpace& space);

}  // namespace cistern

#endif  // CISTERN_ADDON_VIRTUAL_MEMORY_H_
