// The functions of the addon: NativeBinding in src/driver/native.ts says what each one does.
//
// A hot function takes its inputs from the mailbox, from index 0 on; the others take arguments. What either returns becomes mailbox[0].
#ifndef CISTERN_ADDON_BINDINGS_H_
#define CISTERN_ADDON_BINDINGS_H_

#include "addon/arguments.h"
#include "addon/environment.h"

namespace cistern {

// The live stream that an argument names.
inline Status FindStream(Environment& environment, Arguments& arguments, int index, StreamEntry** stream) {
  double handle;
  if (!arguments.Number(index, &handle)) return kInvalidArgument;
  return environment.streams.Find(handle, stream);
}

// module.cc
Status Initialize(Environment& environment, Arguments& arguments);

// backend.cc
Status OpenBackend(Environment& environment, Arguments& arguments);
Status CudaUnavailableReason(Environment& environment, Arguments& arguments);
Status ConfigureSoftware(Environment& environment, Arguments& arguments);
Status SetLatency(Environment& environment, Arguments& arguments);
Status FailCall(Environment& environment, Arguments& arguments);
Status FailCallAfter(Environment& environment, Arguments& arguments);
Status DriverVersion(Environment& environment, Arguments& arguments);
Status ThreadId(Environment& environment, Arguments& arguments);

// status.cc
Status StatusName(Environment& environment, Arguments& arguments);
Status StatusDescription(Environment& environment, Arguments& arguments);

// devices.cc
Status DeviceCount(Environment& environment, Arguments& arguments);
Status DeviceName(Environment& environment, Arguments& arguments);
Status DeviceUuid(Environment& environment, Arguments& arguments);
Status DeviceTotalBytes(Environment& environment, Arguments& arguments);
Status DeviceAttribute(Environment& environment, Arguments& arguments);
Status DeviceStreamPriorityRange(Environment& environment, Arguments& arguments);
Status DeviceMemoryInfo(Environment& environment, Arguments& arguments);
Status SynchronizeDevice(Environment& environment, Arguments& arguments);

// streams.cc
Status CreateStream(Environment& environment, Arguments& arguments);
Status WrapStream(Environment& environment, Arguments& arguments);
Status ReleaseStream(Environment& environment, Arguments& arguments);
Status StreamId(Environment& environment, Arguments& arguments);
Status StreamAddress(Environment& environment, Arguments& arguments);
Status StreamInfo(Environment& environment, Arguments& arguments);
Status SynchronizeStream(Environment& environment, Arguments& arguments);
Status QueryStream(Environment& environment);

// host_functions.cc
Status LaunchHostFunction(Environment& environment, Arguments& arguments);
Status RunHostFunctions(Environment& environment, Arguments& arguments);
Status WaitForHostFunction(Environment& environment, Arguments& arguments);
Status OutstandingHostFunctions(Environment& environment);
Status ReleaseAllStalls(Environment& environment, Arguments& arguments);
Status HoldStream(Environment& environment, Arguments& arguments);
Status ReleaseHold(Environment& environment, Arguments& arguments);

// events.cc
Status CreateEvent(Environment& environment, Arguments& arguments);
Status DestroyEvent(Environment& environment, Arguments& arguments);
Status RecordEvent(Environment& environment);
Status WaitEvent(Environment& environment);
Status QueryEvent(Environment& environment);
Status SynchronizeEvent(Environment& environment, Arguments& arguments);
Status ElapsedMilliseconds(Environment& environment, Arguments& arguments);

// completions.cc
Status StreamCompletion(Environment& environment, Arguments& arguments);
Status EventCompletion(Environment& environment, Arguments& arguments);

// memory.cc
Status Allocate(Environment& environment);
Status Deallocate(Environment& environment);

// pools.cc
Status AllocateAsync(Environment& environment);
Status DeallocateAsync(Environment& environment);
Status CreatePool(Environment& environment, Arguments& arguments);
Status DestroyPool(Environment& environment, Arguments& arguments);
Status TrimPool(Environment& environment, Arguments& arguments);
Status PoolAttribute(Environment& environment, Arguments& arguments);
Status SetPoolAttribute(Environment& environment, Arguments& arguments);

// copies.cc
Status Copy(Environment& environment, Arguments& arguments);
Status CopyFromHost(Environment& environment, Arguments& arguments);
Status CopyToHostSync(Environment& environment, Arguments& arguments);
Status CopyToHost(Environment& environment, Arguments& arguments);
Status Set(Environment& environment, Arguments& arguments);

// managed_memory.cc
Status Advise(Environment& environment, Arguments& arguments);
Status Prefetch(Environment& environment, Arguments& arguments);
Status RangeAttribute(Environment& environment, Arguments& arguments);

// ranges.cc
Status PointerInfo(Environment& environment, Arguments& arguments);

// order.cc
Status BeginOrderCheck(Environment& environment, Arguments& arguments);
Status EndOrderCheck(Environment& environment, Arguments& arguments);
Status TakeOrderReports(Environment& environment, Arguments& arguments);
Status Touch(Environment& environment, Arguments& arguments);
Status DeclareAllocation(Environment& environment, Arguments& arguments);
Status DeclareFree(Environment& environment, Arguments& arguments);

// weak_references.cc
Status Watch(Environment& environment, Arguments& arguments);
Status Unwatch(Environment& environment, Arguments& arguments);
Status CollectedSlots(Environment& environment, Arguments& arguments);

}  // namespace cistern

#endif  // CISTERN_ADDON_BINDINGS_H_
