// Memory that processes share: plain allocations, those of exportable pools, and events.
#include <unistd.h>

#include <utility>

#include "strict_driver/allocation.h"
#include "strict_driver/call.h"
#include "strict_driver/calls.h"
#include "strict_driver/capture.h"
#include "strict_driver/event.h"
#include "strict_driver/ipc.h"
#include "strict_driver/report.h"
#include "strict_driver/settings.h"
#include "strict_driver/wait.h"

namespace cistern::strict::calls {

Status IpcGetMemHandle(IpcMemoryHandle* handle, DevicePointer pointer) {
  STRICT_DRIVER_ENTER_UNSAFE("cuIpcGetMemHandle", kContext, CheckPerhapsUnsafe);
  const AllocationRef allocation = FindAllocation(pointer);
  if (handle == nullptr) return kErrorInvalidValue;
  if (allocation == nullptr || allocation->start != pointer || allocation->kind != Kind::kDevice) {
    Report("MISUSE", "cuIpcGetMemHandle of %#llx, which is not the start of plain device memory", pointer);
    return kErrorInvalidValue;
  }
  if (allocation->slot == 0) allocation->slot = TakeSlot();
  if (allocation->slot == 0) return kErrorOutOfMemory;
  WriteHandle(allocation->slot, allocation.get(), handle->bytes);
  return kSuccess;
}

Status IpcOpenMemHandle(DevicePointer* pointer, IpcMemoryHandle handle, unsigned flags) {
  STRICT_DRIVER_ENTER_UNSAFE("cuIpcOpenMemHandle", kContext, CheckPerhapsUnsafe);
  if (pointer == nullptr || flags != kIpcLazyPeerAccess) return kErrorInvalidValue;
  return OpenMemory(handle.bytes, nullptr, pointer);
}

// Whether it waits is not documented.
Status IpcCloseMemHandle(DevicePointer pointer) {
  STRICT_DRIVER_ENTER_UNSAFE("cuIpcCloseMemHandle", kContext, CheckPerhapsUnsafe);
  const Status status = settings().free_waits ? WaitForContext(call.lock, thread.current, call.function, true) : kSuccess;
  return status == kSuccess ? CloseMemory(pointer) : status;
}

Status IpcGetEventHandle(IpcEventHandle* handle, Event event) {
  STRICT_DRIVER_ENTER_UNSAFE("cuIpcGetEventHandle", kContext, CheckPerhapsUnsafe);
  std::shared_ptr<EventState> state;
  const Status status = FindEvent(event, &state);
  if (status != kSuccess) return status;
  if (handle == nullptr) return kErrorInvalidValue;
  if (state->slot == 0) {
    Report("MISUSE", "cuIpcGetEventHandle of an event that was not created for it");
    return kErrorInvalidHandle;
  }
  WriteHandle(state->slot, nullptr, handle->bytes);
  return kSuccess;
}

Status IpcOpenEventHandle(Event* event, IpcEventHandle handle) {
  STRICT_DRIVER_ENTER_UNSAFE("cuIpcOpenEventHandle", kContext, CheckPerhapsUnsafe);
  if (event == nullptr) return kErrorInvalidValue;
  auto state = std::make_shared<EventState>();
  state->context = thread.current;
  state->flags = kEventDisableTiming;
  const Status status = OpenEvent(handle.bytes, &state->foreign);
  if (status == kSuccess) *event = static_cast<Event>(driver.events.Add(std::move(state)));
  return status;
}

Status MemPoolExportToShareableHandle(void* handle, Pool pool, int type, unsigned long long flags) {
  STRICT_DRIVER_ENTER_UNSAFE("cuMemPoolExportToShareableHandle", kInit, CheckPerhapsUnsafe);
  const PoolRef state = driver.pools.Find(pool);
  if (handle == nullptr || state == nullptr || type != kHandleTypePosixDescriptor || flags != 0) return kErrorInvalidValue;
  if (!state->is_exportable) return kErrorInvalidValue;
  if (!settings().shares_pools) return kErrorNotSupported;
  const int descriptor = OpenPoolDescriptor(*state);
  if (descriptor < 0) return kErrorOperatingSystem;
  *static_cast<int*>(handle) = descriptor;
  return kSuccess;
}

Status MemPoolImportFromShareableHandle(Pool* pool, void* handle, int type, unsigned long long flags) {
  STRICT_DRIVER_ENTER_UNSAFE("cuMemPoolImportFromShareableHandle", kInit, CheckPerhapsUnsafe);
  if (pool == nullptr || type != kHandleTypePosixDescriptor || flags != 0) return kErrorInvalidValue;
  if (!settings().shares_pools) return kErrorNotSupported;
  auto state = std::make_shared<PoolState>();
  if (!ReadPoolDescriptor(static_cast<int>(reinterpret_cast<std::intptr_t>(handle)), state.get())) {
    Report("MISUSE", "cuMemPoolImportFromShareableHandle of a descriptor that is not a pool's");
    return kErrorInvalidValue;
  }
  driver.all_pools.insert(state);
  *pool = static_cast<Pool>(driver.pools.Add(std::move(state)));
  return kSuccess;
}

Status MemPoolExportPointer(PoolPointerData* data, DevicePointer pointer) {
  STRICT_DRIVER_ENTER_UNSAFE("cuMemPoolExportPointer", kInit, CheckPerhapsUnsafe);
  const AllocationRef allocation = FindAllocation(pointer);
  const bool is_start = allocation != nullptr && allocation->start == pointer && allocation->kind == Kind::kPool;
  if (data == nullptr || !is_start || allocation->pool == nullptr || !allocation->pool->is_exportable) return kErrorInvalidValue;
  if (!settings().shares_pools) return kErrorNotSupported;
  if (allocation->slot == 0) allocation->slot = TakeSlot();
  if (allocation->slot == 0) return kErrorOutOfMemory;
  // Whoever asks for the descriptor later gets the same number.
  if (allocation->pool->number == 0) close(OpenPoolDescriptor(*allocation->pool));
  WriteHandle(allocation->slot, allocation.get(), data->bytes);
  return kSuccess;
}

// The pool may be destroyed before the pointer is freed, which cuMemFree does in the importing process, and before the exporting one.
Status MemPoolImportPointer(DevicePointer* pointer, Pool pool, PoolPointerData* data) {
  STRICT_DRIVER_ENTER_UNSAFE("cuMemPoolImportPointer", kContext, CheckPerhapsUnsafe);
  const PoolRef state = driver.pools.Find(pool);
  if (pointer == nullptr || data == nullptr || state == nullptr || state->foreign_table == 0) return kErrorInvalidValue;
  return OpenMemory(data->bytes, state.get(), pointer);
}

}  // namespace cistern::strict::calls
