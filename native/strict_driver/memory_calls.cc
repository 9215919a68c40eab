#include <sys/mman.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "strict_driver/allocation.h"
#include "strict_driver/call.h"
#include "strict_driver/calls.h"
#include "strict_driver/capture.h"
#include "strict_driver/graph_memory.h"
#include "strict_driver/ipc.h"
#include "strict_driver/pool.h"
#include "strict_driver/report.h"
#include "strict_driver/settings.h"
#include "strict_driver/stream.h"
#include "strict_driver/wait.h"

namespace cistern::strict::calls {
namespace {

// "Any CUDA API call may block or synchronize for various reasons", and those that allocate do.
Status WaitToAllocate(ApiCall& call) {
  return settings().allocation_waits ? WaitForContext(call.lock, thread.current, call.function, true) : kSuccess;
}

// Memory that is mapped into every context waits for all of them.
Status WaitToFree(ApiCall& call, const AllocationRef& allocation) {
  if (!settings().free_waits) return kSuccess;
  for (ContextState* context : driver.contexts) {
    if (context->retained == 0 || context->sticky_error != kSuccess) continue;
    if (allocation->kind == Kind::kDevice && context->device != allocation->device) continue;
    const Status status = WaitForContext(call.lock, context, call.function, true);
    if (status != kSuccess) return status;
  }
  const AllocationRef found = FindAllocation(allocation->start);
  return found == allocation ? kSuccess : kErrorInvalidValue;  // somebody else freed it meanwhile
}

bool IsMapped(std::uintptr_t start, std::size_t bytes) {
  constexpr std::uintptr_t kPage = 4096;
  const std::uintptr_t begin = start / kPage * kPage;
  std::vector<unsigned char> resident((start + bytes - begin + kPage - 1) / kPage);
  return mincore(reinterpret_cast<void*>(begin), start + bytes - begin, resident.data()) == 0;
}

Status AllocateHostVisibleMemory(ApiCall& call, Kind kind, std::size_t bytes, std::uintptr_t* start) {
  const Status status = WaitToAllocate(call);
  return status == kSuccess ? AllocateHostVisible(kind, thread.current->device, bytes, start) : status;
}

}  // namespace

Status MemGetInfo(std::size_t* free, std::size_t* total) {
  STRICT_DRIVER_ENTER("cuMemGetInfo", kContext);
  if (free == nullptr || total == nullptr) return kErrorInvalidValue;
  const DeviceMemory& memory = driver.MemoryOf(thread.current->device);
  *total = memory.total();
  *free = memory.total() - std::min(memory.total(), memory.used());
  return kSuccess;
}

Status MemAlloc(DevicePointer* pointer, std::size_t bytes) {
  STRICT_DRIVER_ENTER_UNSAFE("cuMemAlloc", kContext, CheckPotentiallyUnsafe);
  if (pointer == nullptr || bytes == 0) return kErrorInvalidValue;
  const Status status = WaitToAllocate(call);
  return status == kSuccess ? AllocateDeviceMemory(thread.current->device, bytes, pointer) : status;
}

Status MemFree(DevicePointer pointer) {
  STRICT_DRIVER_ENTER_UNSAFE("cuMemFree", kContext, CheckPotentiallyUnsafe);
  if (pointer == 0) return kSuccess;
  const AllocationRef allocation = FindAllocation(pointer);
  // What cuMemPoolImportPointer gave; memory of cuIpcOpenMemHandle is closed instead.
  if (allocation != nullptr && allocation->kind == Kind::kImported && allocation->is_of_foreign_pool) return CloseMemory(pointer);
  const bool has_kind = allocation != nullptr && (allocation->kind != Kind::kPinned || allocation->pool != nullptr) &&
                        allocation->kind != Kind::kVirtual && allocation->kind != Kind::kImported;
  if (!has_kind || allocation->start != pointer) {
    Report("MISUSE", "cuMemFree of %#llx, which is not the start of an allocation", pointer);
    return kErrorInvalidValue;
  }
  if (allocation->IsOfGraph()) return FreeGraphMemory(allocation, nullptr);
  // Freeing memory that came from a pool waits for nothing.
  if (allocation->pool != nullptr) return FreeToPool(allocation, nullptr);
  const Status status = WaitToFree(call, allocation);
  if (status == kSuccess) Release(allocation);
  return status;
}

Status MemAllocManaged(DevicePointer* pointer, std::size_t bytes, unsigned flags) {
  STRICT_DRIVER_ENTER_UNSAFE("cuMemAllocManaged", kContext, CheckPotentiallyUnsafe);
  if (pointer == nullptr || bytes == 0 || (flags != kMemAttachGlobal && flags != kMemAttachHost)) return kErrorInvalidValue;
  std::uintptr_t start;
  const Status status = AllocateHostVisibleMemory(call, Kind::kManaged, bytes, &start);
  if (status == kSuccess) *pointer = start;
  return status;
}

Status MemHostAlloc(void** pointer, std::size_t bytes, unsigned flags) {
  STRICT_DRIVER_ENTER_UNSAFE("cuMemHostAlloc", kContext, CheckPotentiallyUnsafe);
  constexpr unsigned kAllFlags = kHostAllocPortable | kHostAllocDeviceMap | kHostAllocWriteCombined;
  if (pointer == nullptr || bytes == 0 || (flags & ~kAllFlags) != 0) return kErrorInvalidValue;
  std::uintptr_t start;
  const Status status = AllocateHostVisibleMemory(call, Kind::kPinned, bytes, &start);
  if (status == kSuccess) *pointer = reinterpret_cast<void*>(start);
  return status;
}

Status MemFreeHost(void* pointer) {
  STRICT_DRIVER_ENTER_UNSAFE("cuMemFreeHost", kContext, CheckPerhapsUnsafe);
  if (pointer == nullptr) return kSuccess;
  const std::uintptr_t start = reinterpret_cast<std::uintptr_t>(pointer);
  const AllocationRef allocation = FindAllocation(start);
  if (allocation == nullptr || allocation->start != start || allocation->kind != Kind::kPinned || allocation->pool != nullptr ||
      allocation->is_registered) {
    Report("MISUSE", "cuMemFreeHost of %p, which is not the start of pinned memory", pointer);
    return kErrorInvalidValue;
  }
  const Status status = WaitToFree(call, allocation);
  if (status == kSuccess) Release(allocation);
  return status;
}

Status MemHostRegister(void* pointer, std::size_t bytes, unsigned flags) {
  STRICT_DRIVER_ENTER_UNSAFE("cuMemHostRegister", kContext, CheckPotentiallyUnsafe);
  constexpr unsigned kAllFlags = kHostRegisterPortable | kHostRegisterDeviceMap | kHostRegisterIoMemory | kHostRegisterReadOnly;
  if (pointer == nullptr || bytes == 0 || (flags & ~kAllFlags) != 0) return kErrorInvalidValue;
  if (settings().pinned_memory_is_managed) return kErrorNotPermitted;
  const std::uintptr_t start = reinterpret_cast<std::uintptr_t>(pointer);
  if (!IsMapped(start, bytes)) {
    Report("MISUSE", "cuMemHostRegister of %zu bytes at %p, which are not all mapped", bytes, pointer);
    return kErrorInvalidValue;
  }
  const Status status = WaitToAllocate(call);
  if (status != kSuccess) return status;
  const auto next = driver.allocations.lower_bound(start);
  if (FindAllocation(start) != nullptr || (next != driver.allocations.end() && next->first - start < bytes)) {
    Report("MISUSE", "cuMemHostRegister of %p, a part of which is registered or the driver's already", pointer);
    return kErrorHostMemoryAlreadyRegistered;
  }
  Publish(start, bytes, bytes, Kind::kPinned, thread.current->device)->is_registered = true;
  return kSuccess;
}

Status MemHostUnregister(void* pointer) {
  STRICT_DRIVER_ENTER_UNSAFE("cuMemHostUnregister", kContext, CheckPerhapsUnsafe);
  const std::uintptr_t start = reinterpret_cast<std::uintptr_t>(pointer);
  const AllocationRef allocation = FindAllocation(start);
  if (allocation == nullptr || allocation->start != start || !allocation->is_registered) {
    Report("MISUSE", "cuMemHostUnregister of %p, which is not the start of registered memory", pointer);
    return kErrorHostMemoryNotRegistered;
  }
  if (!IsMapped(start, allocation->bytes)) Report("MISUSE", "the memory %p was unmapped while it was registered", pointer);
  const Status status = WaitToFree(call, allocation);
  if (status == kSuccess) Release(allocation);
  return status;
}

Status MemFreeAsync(DevicePointer pointer, Stream stream) {
  STRICT_DRIVER_ENTER("cuMemFreeAsync", kContext);
  StreamRef state;
  Status status = FindStream(stream, &state, false);
  if (status != kSuccess) return status;
  if (state->capture != nullptr) return CaptureFree(state, pointer);
  const AllocationRef allocation = FindAllocation(pointer);
  const bool has_kind =
      allocation != nullptr && (allocation->kind == Kind::kDevice || allocation->pool != nullptr || allocation->IsOfGraph());
  if (!has_kind || allocation->start != pointer) {
    Report("MISUSE", "cuMemFreeAsync of %#llx, which is not the start of device memory or of a pool's", pointer);
    return kErrorInvalidValue;
  }
  status = CheckWork(*state);
  if (status == kSuccess) status = CheckPotentiallyUnsafe();
  if (status != kSuccess) return status;
  if (allocation->IsOfGraph()) return FreeGraphMemory(allocation, state);
  if (allocation->pool != nullptr) return FreeToPool(allocation, state);
  driver.allocations.erase(allocation->start);
  Operation operation;
  operation.name = call.function;
  operation.run = [allocation] {
    const Lock lock(big_lock);
    Release(allocation);
  };
  return Submit(state, std::move(operation));
}

}  // namespace cistern::strict::calls
