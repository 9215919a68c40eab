// Memory and events that other processes open.
//
//     exporting process                                importing process
//     allocation, event ──► slot of a table in a file  ◄── handle: process, descriptors, slot, nonce
//                                     ▲
//                                     └── lock of the slot's byte while the memory is mapped
//
// NVIDIA leaves undefined what happens if memory is freed that another process has open, or if an
// event is destroyed that another process still uses: both are reported. The kernel ends a lock with
// its process, whatever ends that.
#ifndef CISTERN_STRICT_DRIVER_IPC_H_
#define CISTERN_STRICT_DRIVER_IPC_H_

#include "strict_driver/state.h"

namespace cistern::strict {

// A slot of this process for an allocation or an event; 0 if the system refuses. Slots are not reused.
std::uint32_t TakeSlot();
// Nobody can open it any more.
void EndSlot(std::uint32_t slot);
// Whether another process has the memory of the slot mapped.
bool IsOpenElsewhere(std::uint32_t slot);
// Counts a recording of the slot's event, and its completion.
std::uint64_t CountRecording(std::uint32_t slot);
void CountCompletion(std::uint32_t slot, std::uint64_t recording);

// A handle for the slot, with memory at an offset of a device's file, or with an event.
void WriteHandle(std::uint32_t slot, const Allocation* allocation, unsigned char* handle);

// Maps the memory of a handle, or counts another open of it. The memory must be of that pool, or of none.
Status OpenMemory(const unsigned char* handle, const PoolState* pool, DevicePointer* pointer);
Status CloseMemory(DevicePointer pointer);

// A descriptor that names the pool for other processes; -1 if the system refuses.
int OpenPoolDescriptor(PoolState& pool);
// What a descriptor names. False if it is of something else.
bool ReadPoolDescriptor(int descriptor, PoolState* pool);

Status OpenEvent(const unsigned char* handle, std::shared_ptr<ForeignEvent>* event);
// The number of the latest recording, and whether it is complete, or its process has ended.
std::uint64_t LatestRecording(const ForeignEvent& event);
bool IsOver(const ForeignEvent& event, std::uint64_t recording);

}  // namespace cistern::strict

#endif  // CISTERN_STRICT_DRIVER_IPC_H_
