// Allocations of every kind except pool memory.
#ifndef CISTERN_STRICT_DRIVER_ALLOCATION_H_
#define CISTERN_STRICT_DRIVER_ALLOCATION_H_

#include "strict_driver/state.h"

namespace cistern::strict {

// The allocation that contains an address, or null.
AllocationRef FindAllocation(std::uintptr_t address);

// Whether the streams of a device can use the memory.
bool HasAccess(DeviceOrdinal device, const Allocation& allocation);

// The address through which the driver itself reads and writes the allocation.
char* HostView(const Allocation& allocation, std::uintptr_t address);

AllocationRef Publish(std::uintptr_t start, std::size_t bytes, std::size_t reserved, Kind kind, DeviceOrdinal device);
void FillWithGarbage(char* at, std::size_t bytes);

Status AllocateDeviceMemory(DeviceOrdinal device, std::size_t bytes, DevicePointer* pointer);
Status AllocateHostVisible(Kind kind, DeviceOrdinal device, std::size_t bytes, std::uintptr_t* pointer);
void Release(const AllocationRef& allocation);

// Reports a use of memory that is not allocated at that place in stream order. Needs no lock.
void CheckLife(const AllocationRef& allocation, const char* use);

}  // namespace cistern::strict

#endif  // CISTERN_STRICT_DRIVER_ALLOCATION_H_
