#include <new>
#include <type_traits>

#include "software/calls.h"
#include "software/capture.h"
#include "software/checkpoint.h"
#include "software/device.h"
#include "software/injection.h"
#include "software/software_device.h"

namespace cistern::software {
namespace {

// The calls that CUDA's documentation calls potentially unsafe in a capture, as far as is known
// (docs/design/031-graphs.md). Queries and waits check this themselves, after the rules of all modes.
constexpr bool IsUnsafeInCapture(Call call) {
  switch (call) {
    case Call::kCtxEnablePeerAccess:
    case Call::kCtxDisablePeerAccess:
    case Call::kStreamCreateWithPriority:
    case Call::kStreamDestroy:
    case Call::kEventElapsedTime:
    case Call::kMemAlloc:
    case Call::kMemFree:
    case Call::kMemAllocManaged:
    case Call::kMemHostAlloc:
    case Call::kMemFreeHost:
    case Call::kMemHostRegister:
    case Call::kMemHostUnregister:
    case Call::kMemPoolCreate:
    case Call::kMemPoolDestroy:
    case Call::kMemPoolTrimTo:
    case Call::kMemPoolSetAttribute:
    case Call::kMemPoolGetAttribute:
    case Call::kMemPoolSetAccess:
    case Call::kMemAddressReserve:
    case Call::kMemAddressFree:
    case Call::kMemCreate:
    case Call::kMemRelease:
    case Call::kMemMap:
    case Call::kMemUnmap:
    case Call::kMemSetAccess:
    case Call::kMemExportToShareableHandle:
    case Call::kMemImportFromShareableHandle:
    case Call::kMemAdvise:
    case Call::kIpcGetMemHandle:
    case Call::kIpcOpenMemHandle:
    case Call::kIpcCloseMemHandle:
    case Call::kIpcGetEventHandle:
    case Call::kIpcOpenEventHandle:
    case Call::kMemPoolExportToShareableHandle:
    case Call::kMemPoolImportFromShareableHandle:
    case Call::kMemPoolExportPointer:
    case Call::kMemPoolImportPointer:
    case Call::kGraphDestroy:
    case Call::kGraphInstantiateWithFlags:
    case Call::kGraphExecDestroy:
    case Call::kGraphExecUpdate:
    case Call::kGraphUpload:
    case Call::kEventCreate:
    case Call::kEventDestroy:
      return true;
    default:
      return false;
  }
}

// The calls that a process can make while it is locked. The driver's documentation does not list them; these can do without a device.
constexpr bool IsAllowedWhileLocked(Call call) {
  switch (call) {
    case Call::kDriverGetVersion:
    case Call::kGetErrorName:
    case Call::kGetErrorString:
    case Call::kCheckpointProcessGetState:
    case Call::kCheckpointProcessLock:
    case Call::kCheckpointProcessCheckpoint:
    case Call::kCheckpointProcessRestore:
    case Call::kCheckpointProcessUnlock:
      return true;
    default:
      return false;
  }
}

struct NothingInProgress {
  void Enter() const {}
};

// Wraps a function in what every call has in common.
template <Call call, auto function>
struct Entry;

template <Call call, typename... Arguments, Status (*function)(Arguments...)>
struct Entry<call, function> {
  static Status Invoke(Arguments... arguments) noexcept {
    // On a stream's thread: the driver allows no calls from host functions.
    if (__builtin_expect(thread_state.is_in_host_function, 0)) return kErrorNotPermitted;
    std::conditional_t<IsAllowedWhileLocked(call), NothingInProgress, CallInProgress> in_progress;
    if (__builtin_expect(injection_count.load(std::memory_order_relaxed) != 0, 0)) {
      in_progress.Enter();
      Status status = Inject(call);
      if (status != kSuccess) return status;
    }
    if constexpr (IsUnsafeInCapture(call)) {
      const Status status = CheckUnsafeCall();
      if (status != kSuccess) return status;
    }
#if defined(__cpp_exceptions)
    try {
      return function(arguments...);
    } catch (const std::bad_alloc&) {
      return kErrorOutOfMemory;
    } catch (...) {
      return kErrorUnknown;
    }
#else
    return function(arguments...);
#endif
  }
};

}  // namespace

const DriverTable& Table() {
#define CISTERN_ENTRY(member, symbol, version, parameters) Entry<Call::k##member, &calls::member>::Invoke,
  static constexpr DriverTable kTable = {CISTERN_DRIVER_FUNCTIONS(CISTERN_ENTRY)};
#undef CISTERN_ENTRY
  return kTable;
}

}  // namespace cistern::software
