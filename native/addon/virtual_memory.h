// Virtual memory that could not be freed by its own environment.
#ifndef CISTERN_ADDON_VIRTUAL_MEMORY_H_
#define CISTERN_ADDON_VIRTUAL_MEMORY_H_

#include <cstdint>

#include "addon/address_space.h"
#include "cuda/driver_table.h"

namespace cistern {

// Completes a free that AddressSpace::BeginFree began. No queued work may use the memory.
void CompleteFree(const DriverTable& driver, AddressSpace& space, std::uint64_t address, AddressSpace::Range* range);

// Unmaps everything, and gives the addresses back.
void FreeAddressSpace(const DriverTable& driver, const AddressSpace& space);

}  // namespace cistern

#endif  // CISTERN_ADDON_VIRTUAL_MEMORY_H_
