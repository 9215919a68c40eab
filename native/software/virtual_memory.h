// Virtual memory: reserved addresses, and device memory that is mapped to them.
//
//     reservation   | memory | memory |   addresses only   | memory |       addresses only       |
//
// The kernel provides both: a reservation is a range without access, which gets access where memory
// is mapped, and new, empty pages without access where memory is unmapped. The contents therefore
// belong to the mapping: memory can be mapped once, as a whole. What is created counts against its
// device's total until it is unmapped and its handle is released.
//
// Memory that other processes may import has its contents in a file instead, whose descriptor is what is sent to them. It
// can be mapped several times, and what is imported counts in each process.
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

// At the wanted address if that is free; 0 stands for any.
Status ReserveAddresses(std::uint64_t bytes, std::uint64_t alignment, std::uint64_t wanted, std::uint64_t* address);
// The whole reservation, in which nothing may be mapped.
Status FreeAddresses(std::uint64_t address, std::uint64_t bytes);

Status CreateMemory(Device& device, std::uint64_t bytes, bool is_exportable, MemoryHandle* memory);
// A new descriptor for exportable memory.
Status ExportMemoryHandle(MemoryHandle memory, int* descriptor);
// Memory of another process, or of this one, by a descriptor that stays the caller's.
Status ImportMemoryHandle(Device& device, int descriptor, MemoryHandle* memory);
Status ReleaseMemory(MemoryHandle memory);

// Mapped memory is accessible only after GrantAccess.
Status MapMemory(std::uint64_t address, std::uint64_t bytes, MemoryHandle memory);
// A bit for each device that gets access, or loses it. Memory that may only be read is so for all devices.
Status GrantAccess(std::uint64_t address, std::uint64_t bytes, std::uint32_t granted, std::uint32_t taken, bool is_read_only);
// Whole mappings only. Synchronizes every device first: work in a queue may refer to the memory.
Status UnmapMemory(std::uint64_t address, std::uint64_t bytes);

// Moves the contents of all mapped memory out of its pages, and in again (checkpoint.h). Nobody may use them meanwhile. False if
// there is not enough memory: some contents may be out then.
bool KeepVirtualMemory();
// Whether any of it can be another process's, too.
bool IsVirtualMemoryShared();
bool RestoreVirtualMemory();

struct VirtualRangeInfo {
  std::uint32_t accessors;  // a bit for each device with access to the whole range
  int device;               // of the first byte, -1 if nothing is mapped there
  bool is_read_only;        // of any part of the range
};
// False if the address is in no reservation.
bool FindVirtualMemory(std::uint64_t address, std::uint64_t bytes, VirtualRangeInfo* info);

}  // namespace cistern::software

#endif  // CISTERN_SOFTWARE_VIRTUAL_MEMORY_H_
