// Memory that processes share: not supported, as on a device without it. The calls only check what
// every call does.
#include "strict_driver/call.h"
#include "strict_driver/calls.h"

namespace cistern::strict::calls {

Status IpcGetMemHandle(IpcMemoryHandle*, DevicePointer) {
  STRICT_DRIVER_ENTER("cuIpcGetMemHandle", kContext);
  return kErrorNotSupported;
}

Status IpcOpenMemHandle(DevicePointer*, IpcMemoryHandle, unsigned) {
  STRICT_DRIVER_ENTER("cuIpcOpenMemHandle", kContext);
  return kErrorNotSupported;
}

Status IpcCloseMemHandle(DevicePointer) {
  STRICT_DRIVER_ENTER("cuIpcCloseMemHandle", kContext);
  return kErrorNotSupported;
}

Status IpcGetEventHandle(IpcEventHandle*, Event) {
  STRICT_DRIVER_ENTER("cuIpcGetEventHandle", kContext);
  return kErrorNotSupported;
}

Status IpcOpenEventHandle(Event*, IpcEventHandle) {
  STRICT_DRIVER_ENTER("cuIpcOpenEventHandle", kContext);
  return kErrorNotSupported;
}

Status MemPoolExportToShareableHandle(void*, Pool, int, unsigned long long) {
  STRICT_DRIVER_ENTER("cuMemPoolExportToShareableHandle", kInit);
  return kErrorNotSupported;
}

Status MemPoolImportFromShareableHandle(Pool*, void*, int, unsigned long long) {
  STRICT_DRIVER_ENTER("cuMemPoolImportFromShareableHandle", kInit);
  return kErrorNotSupported;
}

Status MemPoolExportPointer(PoolPointerData*, DevicePointer) {
  STRICT_DRIVER_ENTER("cuMemPoolExportPointer", kInit);
  return kErrorNotSupported;
}

Status MemPoolImportPointer(DevicePointer*, Pool, PoolPointerData*) {
  STRICT_DRIVER_ENTER("cuMemPoolImportPointer", kInit);
  return kErrorNotSupported;
}

}  // namespace cistern::strict::calls
