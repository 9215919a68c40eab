// Memory that processes share: plain allocations and events. Pools cannot be shared.
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
  return OpenMemory(handle.bytes, pointer);
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

Status MemPoolExportToShareableHandle(void*, Pool, int, unsigned long long) {
  STRICT_DRIVER_ENTER_UNSAFE("cuMemPoolExportToShareableHandle", kInit, CheckPerhapsUnsafe);
  return kErrorNotSupported;
}

Status MemPoolImportFromShareableHandle(Pool*, void*, int, unsigned long long) {
  STRICT_DRIVER_ENTER_UNSAFE("cuMemPoolImportFromShareableHandle", kInit, CheckPerhapsUnsafe);
  return kErrorNotSupported;
}

Status MemPoolExportPointer(PoolPointerData*, DevicePointer) {
  STRICT_DRIVER_ENTER_UNSAFE("cuMemPoolExportPointer", kInit, CheckPerhapsUnsafe);
  return kErrorNotSupported;
}

Status MemPoolImportPointer(DevicePointer*, Pool, PoolPointerData*) {
  STRICT_DRIVER_ENTER_UNSAFE("cuMemPoolImportPointer", kInit, CheckPerhapsUnsafe);
  return kErrorNotSupported;
}

}  // namespace cistern::strict::calls
