// Virtual memory: reserved addresses, and device memory that is mapped to them.
//
//     reservation   | memory | memory |   addresses only   | memory |       addresses only       |
//
// The kernel provides both: a reservation is a range without access, which gets access where memory
// is mapped, and new, empty pages without access where memory is unmapped. The contents therefore
// belong to the mapping: memory can be mapped once, as a whole. What is created counts against its
// device's total until it is unmapped and its handle is released.
//
// Invariants: reservations, and the mappings in one, do not overlap. Everything is a multiple of
// kVirtualGranularity.
// Cost: O(log r) for r reservations, and O(log m + touched) for m mappings in one.
#ifndef CISTERN_SOFTWARE_VIRTUAL_MEMORY_H_
#define CISTERN_SOFTWARE_VIRTUAL_MEMORY_H_

#include <cstdint>

#include "cuda/driver_table.h"

namespace cistern::software {

class Device;

inline constexpr std::uint64_t kVirtualGranularity = std::uint64_t{2} << 20;

Status ReserveAddresses(std::uint64_t bytes, std::uint64_t alignment, std::uint64_t* address);
// The whole reservation, in which nothing may be mapped.
Status FreeAddresses(std::uint64_t address, std::uint64_t bytes);

Status CreateMemory(Device& device, std::uint64_t bytes, MemoryHandle* memory);
Status ReleaseMemory(MemoryHandle memory);

// Mapped memory is accessible only after GrantAccess.
Status MapMemory(std::uint64_t address, std::uint64_t bytes, MemoryHandle memory);
// A bit for each device that gets access, or loses it.
Status GrantAccess(std::uint64_t address, std::uint64_t bytes, std::uint32_t granted, std::uint32_t taken);
// Whole mappings only. Synchronizes every device first: work in a queue may refer to the memory.
Status UnmapMemory(std::uint64_t address, std::uint64_t bytes);

// Moves the contents of all mapped memory out of its pages, and in again (checkpoint.h). Nobody may use them meanwhile. False if
// there is not enough memory: some contents may be out then.
bool KeepVirtualMemory();
bool RestoreVirtualMemory();

struct VirtualRangeInfo {
  std::uint32_t accessors;  // a bit for each device with access to the whole range
  int device;               // of the first byte, -1 if nothing is mapped there
};
// False if the address is in no reservation.
bool FindVirtualMemory(std::uint64_t address, std::uint64_t bytes, VirtualRangeInfo* info);

}  // namespace cistern::software

#endif  // CISTERN_SOFTWARE_VIRTUAL_MEMORY_H_
