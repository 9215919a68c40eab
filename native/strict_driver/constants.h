// Constants of cuda.h that the strict driver handles but cistern's own table does not need.
#ifndef CISTERN_STRICT_DRIVER_CONSTANTS_H_
#define CISTERN_STRICT_DRIVER_CONSTANTS_H_

#include "cuda/driver_table.h"

namespace cistern::strict {

// CUresult
enum : Status { kErrorDeinitialized = 4 };

// CUdevice_attribute
enum : int {
  kAttributeCanUseStreamMemoryOperationsV1 = 92,
  kAttributeCanUse64BitStreamMemoryOperationsV1 = 93,
  kAttributeCanUseStreamWaitValueNorV1 = 94,
  kAttributeCanUse64BitStreamMemoryOperations = 122,
  kAttributeCanUseStreamWaitValueNor = 123,
};

// CUmemAttach_flags, CU_MEMHOSTALLOC_, CU_MEMHOSTREGISTER_
enum : unsigned { kMemAttachHost = 2 };
enum : unsigned { kHostAllocWriteCombined = 4 };
enum : unsigned { kHostRegisterIoMemory = 4, kHostRegisterReadOnly = 8 };

// CUgraphNodeType: those that cistern does not name.
enum : int { kNodeKernel = 0, kNodeEventWait = 6, kNodeEventRecord = 7 };
// CUevent_record_flags, CUevent_wait_flags
enum : unsigned { kEventRecordExternal = 1, kEventWaitExternal = 1 };
// CUDA_ERROR_LOSSY_QUERY
enum : Status { kErrorLossyQuery = 402 };

// CUstreamWaitValue_flags, CUstreamWriteValue_flags
enum : unsigned { kWaitValueGreaterOrEqual = 0, kWaitValueEqual = 1, kWaitValueAnd = 2, kWaitValueNor = 3 };
enum : unsigned { kWriteValueDefault = 0, kWriteValueNoMemoryBarrier = 1 };

// Ordinals that name no device (CU_DEVICE_CPU, CU_DEVICE_INVALID).
enum : DeviceOrdinal { kHostLocation = -1, kNoLocation = -2 };

// Values that a device may choose for itself.
inline constexpr int kGreatestPriority = -5;

// CUdriverProcAddress_flags, CUdriverProcAddressQueryResult
enum : unsigned long long { kLegacyStreamFlag = 1, kPerThreadStreamFlag = 2 };
enum : int { kSymbolFound = 0, kSymbolNotFound = 1, kSymbolVersionNotSufficient = 2 };

}  // namespace cistern::strict

#endif  // CISTERN_STRICT_DRIVER_CONSTANTS_H_
