// Compares cistern's declarations of CUDA with NVIDIA's own header, at compile time.
// scripts/check-cuda-header.mjs includes this file, with a line CISTERN_SAME_CALL(member, typedef)
// for each function of the driver's table. No part of cistern is built with cuda.h.
#ifndef CISTERN_TEST_CUDA_HEADER_H_
#define CISTERN_TEST_CUDA_HEADER_H_

#include <cuda.h>
#include <cudaTypedefs.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>

#if __has_include(<nvtx3/nvToolsExtMem.h>)
#include <nvtx3/nvToolsExtMem.h>

#include "addon/tool_memory.h"
#define CISTERN_HAS_NVTX
#endif

#include "cuda/driver_table.h"
#include "strict_driver/calls.h"
#include "strict_driver/constants.h"

namespace cistern::cuda_header {

// Whether two parameters are the same to the machine: pointers to scalars of one size or to
// anything opaque; integers and enumerations of one size; the same floating type; structures of one
// size.
template <typename Ours, typename Theirs>
constexpr bool IsSame() {
  using A = std::remove_cv_t<Ours>;
  using B = std::remove_cv_t<Theirs>;
  if constexpr (std::is_pointer_v<A> && std::is_pointer_v<B>) {
    using To = std::remove_cv_t<std::remove_pointer_t<A>>;
    using Other = std::remove_cv_t<std::remove_pointer_t<B>>;
    if constexpr (std::is_function_v<To> || std::is_function_v<Other>) {
      return std::is_same_v<To, Other>;
    } else if constexpr (std::is_scalar_v<To> && std::is_scalar_v<Other>) {
      return sizeof(To) == sizeof(Other) && std::is_pointer_v<To> == std::is_pointer_v<Other> &&
             std::is_floating_point_v<To> == std::is_floating_point_v<Other>;
    } else {
      return true;  // sizes of structures are compared below
    }
  } else if constexpr (std::is_floating_point_v<A> || std::is_floating_point_v<B>) {
    return std::is_same_v<A, B>;
  } else if constexpr (std::is_scalar_v<A> && std::is_scalar_v<B>) {
    return sizeof(A) == sizeof(B) && std::is_pointer_v<A> == std::is_pointer_v<B>;
  } else {
    return sizeof(A) == sizeof(B) && std::is_trivially_copyable_v<A> && std::is_trivially_copyable_v<B>;
  }
}

template <typename Ours, typename Theirs>
struct SameCall : std::false_type {};

template <typename Result, typename... Parameters, typename OtherResult, typename... OtherParameters>
struct SameCall<Result (*)(Parameters...), OtherResult (*)(OtherParameters...)> {
  static constexpr bool Compare() {
    if constexpr (sizeof...(Parameters) == sizeof...(OtherParameters)) {
      return IsSame<Result, OtherResult>() && (IsSame<Parameters, OtherParameters>() && ...);
    } else {
      return false;
    }
  }
  static constexpr bool value = Compare();
};

#define CISTERN_SAME_CALL(member, typedef_name) \
  static_assert(SameCall<decltype(DriverTable::member), typedef_name>::value, #member " is not " #typedef_name)
#define CISTERN_SAME_FORM(function, typedef_name) \
  static_assert(SameCall<decltype(&strict::calls::function), typedef_name>::value, #function " is not " #typedef_name)
#define CISTERN_SAME_VALUE(ours, theirs) \
  static_assert(static_cast<long long>(ours) == static_cast<long long>(theirs), #ours " is not " #theirs)

CISTERN_SAME_FORM(MemAdvise8000, PFN_cuMemAdvise_v8000);
CISTERN_SAME_FORM(MemPrefetchAsync8000, PFN_cuMemPrefetchAsync_v8000);
CISTERN_SAME_FORM(MemcpyBatchAsync12080, PFN_cuMemcpyBatchAsync_v12080);
CISTERN_SAME_FORM(StreamWaitValue32, PFN_cuStreamWaitValue32_v11070);
CISTERN_SAME_FORM(StreamWriteValue32, PFN_cuStreamWriteValue32_v11070);
CISTERN_SAME_FORM(ModuleLoadData, PFN_cuModuleLoadData_v2000);
CISTERN_SAME_FORM(ModuleGetFunction, PFN_cuModuleGetFunction_v2000);
CISTERN_SAME_FORM(LaunchKernel, PFN_cuLaunchKernel_v4000);
CISTERN_SAME_FORM(StreamUpdateCaptureDependencies12030, PFN_cuStreamUpdateCaptureDependencies_v12030);
CISTERN_SAME_FORM(DeviceGraphMemTrim, PFN_cuDeviceGraphMemTrim_v11040);
CISTERN_SAME_FORM(StreamGetCaptureInfo10010, PFN_cuStreamGetCaptureInfo_v10010);
CISTERN_SAME_FORM(StreamGetCaptureInfo11030, PFN_cuStreamGetCaptureInfo_v11030);

#ifdef CISTERN_HAS_NVTX
#define CISTERN_SAME_FIELD(ours, field, theirs, other) CISTERN_SAME_VALUE(offsetof(nvtx::ours, field), offsetof(theirs, other))
CISTERN_SAME_VALUE(nvtx::kVersion, NVTX_VERSION);
CISTERN_SAME_VALUE(nvtx::kMemoryModule, NVTX_EXT_MODULEID_MEM);
CISTERN_SAME_VALUE(nvtx::kMemoryCompatibility, NVTX_EXT_COMPATID_MEM);
CISTERN_SAME_VALUE(nvtx::kMemorySlots, NVTX_EXT_MEM_SLOT_COUNT);
CISTERN_SAME_VALUE(nvtx::kHeapRegister, NVTX3EXT_CBID_nvtxMemHeapRegister);
CISTERN_SAME_VALUE(nvtx::kHeapUnregister, NVTX3EXT_CBID_nvtxMemHeapUnregister);
CISTERN_SAME_VALUE(nvtx::kRegionsRegister, NVTX3EXT_CBID_nvtxMemRegionsRegister);
CISTERN_SAME_VALUE(nvtx::kRegionsUnregister, NVTX3EXT_CBID_nvtxMemRegionsUnregister);
CISTERN_SAME_VALUE(nvtx::kUsageSubAllocator, NVTX_MEM_HEAP_USAGE_TYPE_SUB_ALLOCATOR);
CISTERN_SAME_VALUE(nvtx::kTypeVirtualAddress, NVTX_MEM_TYPE_VIRTUAL_ADDRESS);
CISTERN_SAME_VALUE(nvtx::kReferenceIsPointer, NVTX_MEM_REGION_REF_TYPE_POINTER);
CISTERN_SAME_VALUE(sizeof(nvtx::ModuleSegment), sizeof(nvtxExtModuleSegment_t));
CISTERN_SAME_VALUE(sizeof(nvtx::ModuleInfo), sizeof(nvtxExtModuleInfo_t));
CISTERN_SAME_FIELD(ModuleInfo, segments, nvtxExtModuleInfo_t, segments);
CISTERN_SAME_VALUE(sizeof(nvtx::VirtualRange), sizeof(nvtxMemVirtualRangeDesc_t));
CISTERN_SAME_FIELD(VirtualRange, pointer, nvtxMemVirtualRangeDesc_t, ptr);
CISTERN_SAME_VALUE(sizeof(nvtx::HeapDescription), sizeof(nvtxMemHeapDesc_t));
CISTERN_SAME_FIELD(HeapDescription, usage, nvtxMemHeapDesc_t, usage);
CISTERN_SAME_FIELD(HeapDescription, range, nvtxMemHeapDesc_t, typeSpecificDesc);
CISTERN_SAME_VALUE(sizeof(nvtx::RegionsRegisterBatch), sizeof(nvtxMemRegionsRegisterBatch_t));
CISTERN_SAME_FIELD(RegionsRegisterBatch, heap, nvtxMemRegionsRegisterBatch_t, heap);
CISTERN_SAME_FIELD(RegionsRegisterBatch, elements, nvtxMemRegionsRegisterBatch_t, regionDescElements);
CISTERN_SAME_VALUE(sizeof(nvtx::RegionsUnregisterBatch), sizeof(nvtxMemRegionsUnregisterBatch_t));
CISTERN_SAME_FIELD(RegionsUnregisterBatch, elements, nvtxMemRegionsUnregisterBatch_t, refElements);
#endif

CISTERN_SAME_VALUE(kSuccess, CUDA_SUCCESS);
CISTERN_SAME_VALUE(strict::kNodeKernel, CU_GRAPH_NODE_TYPE_KERNEL);
CISTERN_SAME_VALUE(strict::kNodeEventWait, CU_GRAPH_NODE_TYPE_WAIT_EVENT);
CISTERN_SAME_VALUE(strict::kNodeEventRecord, CU_GRAPH_NODE_TYPE_EVENT_RECORD);
CISTERN_SAME_VALUE(strict::kEventRecordExternal, CU_EVENT_RECORD_EXTERNAL);
CISTERN_SAME_VALUE(strict::kEventWaitExternal, CU_EVENT_WAIT_EXTERNAL);
CISTERN_SAME_VALUE(kSourceOrderStream, CU_MEMCPY_SRC_ACCESS_ORDER_STREAM);
CISTERN_SAME_VALUE(kSourceOrderDuringCall, CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL);
CISTERN_SAME_VALUE(kSourceOrderAny, CU_MEMCPY_SRC_ACCESS_ORDER_ANY);
CISTERN_SAME_VALUE(sizeof(CopyAttributes), sizeof(CUmemcpyAttributes));
CISTERN_SAME_VALUE(offsetof(CopyAttributes, flags), offsetof(CUmemcpyAttributes, flags));
CISTERN_SAME_VALUE(kSetDependencies, CU_STREAM_SET_CAPTURE_DEPENDENCIES);
CISTERN_SAME_VALUE(kNodeGraph, CU_GRAPH_NODE_TYPE_GRAPH);
CISTERN_SAME_VALUE(sizeof(EdgeData), sizeof(CUgraphEdgeData));
CISTERN_SAME_VALUE(strict::kErrorLossyQuery, CUDA_ERROR_LOSSY_QUERY);
CISTERN_SAME_VALUE(kErrorInvalidValue, CUDA_ERROR_INVALID_VALUE);
CISTERN_SAME_VALUE(kErrorOutOfMemory, CUDA_ERROR_OUT_OF_MEMORY);
CISTERN_SAME_VALUE(kErrorPeerAccessUnsupported, CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
CISTERN_SAME_VALUE(kErrorPeerAccessAlreadyEnabled, CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
CISTERN_SAME_VALUE(kErrorPeerAccessNotEnabled, CUDA_ERROR_PEER_ACCESS_NOT_ENABLED);
CISTERN_SAME_VALUE(kErrorHostMemoryAlreadyRegistered, CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
CISTERN_SAME_VALUE(kErrorHostMemoryNotRegistered, CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
CISTERN_SAME_VALUE(kPointerAccessFlags, CU_POINTER_ATTRIBUTE_ACCESS_FLAGS);
CISTERN_SAME_VALUE(kErrorNotInitialized, CUDA_ERROR_NOT_INITIALIZED);
CISTERN_SAME_VALUE(strict::kErrorDeinitialized, CUDA_ERROR_DEINITIALIZED);
CISTERN_SAME_VALUE(kErrorNoDevice, CUDA_ERROR_NO_DEVICE);
CISTERN_SAME_VALUE(kErrorInvalidDevice, CUDA_ERROR_INVALID_DEVICE);
CISTERN_SAME_VALUE(kErrorInvalidContext, CUDA_ERROR_INVALID_CONTEXT);
CISTERN_SAME_VALUE(kErrorMapFailed, CUDA_ERROR_MAP_FAILED);
CISTERN_SAME_VALUE(kErrorInvalidHandle, CUDA_ERROR_INVALID_HANDLE);
CISTERN_SAME_VALUE(kErrorNotFound, CUDA_ERROR_NOT_FOUND);
CISTERN_SAME_VALUE(kErrorNotReady, CUDA_ERROR_NOT_READY);
CISTERN_SAME_VALUE(kErrorIllegalAddress, CUDA_ERROR_ILLEGAL_ADDRESS);
CISTERN_SAME_VALUE(kErrorNotPermitted, CUDA_ERROR_NOT_PERMITTED);
CISTERN_SAME_VALUE(kErrorNotSupported, CUDA_ERROR_NOT_SUPPORTED);
CISTERN_SAME_VALUE(kErrorUnknown, CUDA_ERROR_UNKNOWN);
CISTERN_SAME_VALUE(kErrorOperatingSystem, CUDA_ERROR_OPERATING_SYSTEM);
CISTERN_SAME_VALUE(kErrorIllegalState, CUDA_ERROR_ILLEGAL_STATE);
CISTERN_SAME_VALUE(kErrorCaptureUnsupported, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
CISTERN_SAME_VALUE(kErrorCaptureInvalidated, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
CISTERN_SAME_VALUE(kErrorCaptureMerge, CUDA_ERROR_STREAM_CAPTURE_MERGE);
CISTERN_SAME_VALUE(kErrorCaptureUnmatched, CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
CISTERN_SAME_VALUE(kErrorCaptureUnjoined, CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
CISTERN_SAME_VALUE(kErrorCaptureIsolation, CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
CISTERN_SAME_VALUE(kErrorCaptureImplicit, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
CISTERN_SAME_VALUE(kErrorCapturedEvent, CUDA_ERROR_CAPTURED_EVENT);
CISTERN_SAME_VALUE(kErrorCaptureWrongThread, CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
CISTERN_SAME_VALUE(kErrorGraphExecUpdateFailure, CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);

CISTERN_SAME_VALUE(kStreamDefault, CU_STREAM_DEFAULT);
CISTERN_SAME_VALUE(kStreamNonBlocking, CU_STREAM_NON_BLOCKING);
CISTERN_SAME_VALUE(kEventDefault, CU_EVENT_DEFAULT);
CISTERN_SAME_VALUE(kEventBlockingSync, CU_EVENT_BLOCKING_SYNC);
CISTERN_SAME_VALUE(kEventDisableTiming, CU_EVENT_DISABLE_TIMING);
CISTERN_SAME_VALUE(kEventInterprocess, CU_EVENT_INTERPROCESS);
CISTERN_SAME_VALUE(kIpcLazyPeerAccess, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
CISTERN_SAME_VALUE(kMemAttachGlobal, CU_MEM_ATTACH_GLOBAL);
CISTERN_SAME_VALUE(strict::kMemAttachHost, CU_MEM_ATTACH_HOST);
CISTERN_SAME_VALUE(kHostAllocPortable, CU_MEMHOSTALLOC_PORTABLE);
CISTERN_SAME_VALUE(kHostAllocDeviceMap, CU_MEMHOSTALLOC_DEVICEMAP);
CISTERN_SAME_VALUE(kHostRegisterPortable, CU_MEMHOSTREGISTER_PORTABLE);
CISTERN_SAME_VALUE(kHostRegisterDeviceMap, CU_MEMHOSTREGISTER_DEVICEMAP);
CISTERN_SAME_VALUE(strict::kHostAllocWriteCombined, CU_MEMHOSTALLOC_WRITECOMBINED);
CISTERN_SAME_VALUE(strict::kHostRegisterIoMemory, CU_MEMHOSTREGISTER_IOMEMORY);
CISTERN_SAME_VALUE(strict::kHostRegisterReadOnly, CU_MEMHOSTREGISTER_READ_ONLY);
CISTERN_SAME_VALUE(kCaptureModeGlobal, CU_STREAM_CAPTURE_MODE_GLOBAL);
CISTERN_SAME_VALUE(kCaptureModeThreadLocal, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
CISTERN_SAME_VALUE(kCaptureModeRelaxed, CU_STREAM_CAPTURE_MODE_RELAXED);
CISTERN_SAME_VALUE(kCaptureNone, CU_STREAM_CAPTURE_STATUS_NONE);
CISTERN_SAME_VALUE(kCaptureActive, CU_STREAM_CAPTURE_STATUS_ACTIVE);
CISTERN_SAME_VALUE(kCaptureInvalidated, CU_STREAM_CAPTURE_STATUS_INVALIDATED);
CISTERN_SAME_VALUE(kNodeCopy, CU_GRAPH_NODE_TYPE_MEMCPY);
CISTERN_SAME_VALUE(kNodeFill, CU_GRAPH_NODE_TYPE_MEMSET);
CISTERN_SAME_VALUE(kNodeHost, CU_GRAPH_NODE_TYPE_HOST);
CISTERN_SAME_VALUE(kNodeAllocation, CU_GRAPH_NODE_TYPE_MEM_ALLOC);
CISTERN_SAME_VALUE(kNodeFree, CU_GRAPH_NODE_TYPE_MEM_FREE);
CISTERN_SAME_VALUE(kNodeTypeCount - 1, CU_GRAPH_NODE_TYPE_CONDITIONAL);
CISTERN_SAME_VALUE(kInstantiateAutoFree, CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH);
CISTERN_SAME_VALUE(kUserObjectNoDestructorSync, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC);
CISTERN_SAME_VALUE(kUserObjectMove, CU_GRAPH_USER_OBJECT_MOVE);
CISTERN_SAME_VALUE(kUpdateSuccess, CU_GRAPH_EXEC_UPDATE_SUCCESS);
CISTERN_SAME_VALUE(kUpdateTopologyChanged, CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED);
CISTERN_SAME_VALUE(kUpdateNodeTypeChanged, CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED);
CISTERN_SAME_VALUE(kUpdateParametersChanged, CU_GRAPH_EXEC_UPDATE_ERROR_PARAMETERS_CHANGED);
CISTERN_SAME_VALUE(kUpdateNotSupported, CU_GRAPH_EXEC_UPDATE_ERROR_NOT_SUPPORTED);
CISTERN_SAME_VALUE(sizeof(GraphUpdateResult), sizeof(CUgraphExecUpdateResultInfo));
CISTERN_SAME_VALUE(offsetof(GraphUpdateResult, node), offsetof(CUgraphExecUpdateResultInfo, errorNode));
CISTERN_SAME_VALUE(strict::kWaitValueGreaterOrEqual, CU_STREAM_WAIT_VALUE_GEQ);
CISTERN_SAME_VALUE(strict::kWaitValueEqual, CU_STREAM_WAIT_VALUE_EQ);
CISTERN_SAME_VALUE(strict::kWaitValueAnd, CU_STREAM_WAIT_VALUE_AND);
CISTERN_SAME_VALUE(strict::kWaitValueNor, CU_STREAM_WAIT_VALUE_NOR);
CISTERN_SAME_VALUE(strict::kWriteValueDefault, CU_STREAM_WRITE_VALUE_DEFAULT);
CISTERN_SAME_VALUE(strict::kWriteValueNoMemoryBarrier, CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER);

CISTERN_SAME_VALUE(kAttributeUnifiedAddressing, CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING);
CISTERN_SAME_VALUE(kAttributeMultiprocessorCount, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
CISTERN_SAME_VALUE(kAttributeIntegrated, CU_DEVICE_ATTRIBUTE_INTEGRATED);
CISTERN_SAME_VALUE(kAttributeComputeCapabilityMajor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
CISTERN_SAME_VALUE(kAttributeComputeCapabilityMinor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
CISTERN_SAME_VALUE(kAttributeManagedMemory, CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY);
CISTERN_SAME_VALUE(kAttributePageableMemoryAccess, CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS);
CISTERN_SAME_VALUE(kAttributeDirectManagedMemAccessFromHost, CU_DEVICE_ATTRIBUTE_DIRECT_MANAGED_MEM_ACCESS_FROM_HOST);
CISTERN_SAME_VALUE(kAttributePageableMemoryAccessUsesHostPageTables, CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES);
CISTERN_SAME_VALUE(kAttributeConcurrentManagedAccess, CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS);
CISTERN_SAME_VALUE(kAttributeVirtualMemoryManagementSupported, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED);
CISTERN_SAME_VALUE(kAttributeHandleTypePosixFileDescriptorSupported, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED);
CISTERN_SAME_VALUE(kAttributeCanUseHostPointerForRegisteredMem, CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM);
CISTERN_SAME_VALUE(kAttributeHostRegisterSupported, CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED);
CISTERN_SAME_VALUE(kAttributeIpcEventSupported, CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED);
CISTERN_SAME_VALUE(kAttributeMemoryPoolsSupported, CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED);
CISTERN_SAME_VALUE(strict::kAttributeCanUseStreamMemoryOperationsV1, CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_MEM_OPS_V1);
CISTERN_SAME_VALUE(strict::kAttributeCanUse64BitStreamMemoryOperationsV1, CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS_V1);
CISTERN_SAME_VALUE(strict::kAttributeCanUseStreamWaitValueNorV1, CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR_V1);
CISTERN_SAME_VALUE(strict::kAttributeCanUse64BitStreamMemoryOperations, CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS);
CISTERN_SAME_VALUE(strict::kAttributeCanUseStreamWaitValueNor, CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR);

CISTERN_SAME_VALUE(kLocationDevice, CU_MEM_LOCATION_TYPE_DEVICE);
CISTERN_SAME_VALUE(kLocationHost, CU_MEM_LOCATION_TYPE_HOST);
CISTERN_SAME_VALUE(strict::kHostLocation, CU_DEVICE_CPU);
CISTERN_SAME_VALUE(strict::kNoLocation, CU_DEVICE_INVALID);
CISTERN_SAME_VALUE(kAllocationTypePinned, CU_MEM_ALLOCATION_TYPE_PINNED);
CISTERN_SAME_VALUE(kHandleTypePosixDescriptor, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
CISTERN_SAME_VALUE(kAccessNone, CU_MEM_ACCESS_FLAGS_PROT_NONE);
CISTERN_SAME_VALUE(kAccessRead, CU_MEM_ACCESS_FLAGS_PROT_READ);
CISTERN_SAME_VALUE(kAccessReadWrite, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
CISTERN_SAME_VALUE(kGranularityMinimum, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
CISTERN_SAME_VALUE(kGranularityRecommended, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
CISTERN_SAME_VALUE(kPoolReuseFollowEventDependencies, CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES);
CISTERN_SAME_VALUE(kPoolReuseAllowOpportunistic, CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC);
CISTERN_SAME_VALUE(kPoolReuseAllowInternalDependencies, CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES);
CISTERN_SAME_VALUE(kPoolReleaseThreshold, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD);
CISTERN_SAME_VALUE(kPoolReservedCurrent, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);
CISTERN_SAME_VALUE(kPoolReservedHigh, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH);
CISTERN_SAME_VALUE(kPoolUsedCurrent, CU_MEMPOOL_ATTR_USED_MEM_CURRENT);
CISTERN_SAME_VALUE(kPoolUsedHigh, CU_MEMPOOL_ATTR_USED_MEM_HIGH);
CISTERN_SAME_VALUE(kAdviseSetReadMostly, CU_MEM_ADVISE_SET_READ_MOSTLY);
CISTERN_SAME_VALUE(kAdviseUnsetReadMostly, CU_MEM_ADVISE_UNSET_READ_MOSTLY);
CISTERN_SAME_VALUE(kAdviseSetPreferredLocation, CU_MEM_ADVISE_SET_PREFERRED_LOCATION);
CISTERN_SAME_VALUE(kAdviseUnsetPreferredLocation, CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION);
CISTERN_SAME_VALUE(kAdviseSetAccessedBy, CU_MEM_ADVISE_SET_ACCESSED_BY);
CISTERN_SAME_VALUE(kAdviseUnsetAccessedBy, CU_MEM_ADVISE_UNSET_ACCESSED_BY);
CISTERN_SAME_VALUE(kRangeReadMostly, CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY);
CISTERN_SAME_VALUE(kRangePreferredLocation, CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION);
CISTERN_SAME_VALUE(kRangeAccessedBy, CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY);
CISTERN_SAME_VALUE(kRangeLastPrefetchLocation, CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION);
CISTERN_SAME_VALUE(kPointerMemoryType, CU_POINTER_ATTRIBUTE_MEMORY_TYPE);
CISTERN_SAME_VALUE(kPointerIsManaged, CU_POINTER_ATTRIBUTE_IS_MANAGED);
CISTERN_SAME_VALUE(kPointerDeviceOrdinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL);
CISTERN_SAME_VALUE(kPointerRangeStart, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR);
CISTERN_SAME_VALUE(kPointerIsLegacyIpcCapable, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE);
CISTERN_SAME_VALUE(kPointerPool, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE);
CISTERN_SAME_VALUE(kMemoryTypeHost, CU_MEMORYTYPE_HOST);
CISTERN_SAME_VALUE(kMemoryTypeDevice, CU_MEMORYTYPE_DEVICE);
CISTERN_SAME_VALUE(strict::kLegacyStreamFlag, CU_GET_PROC_ADDRESS_LEGACY_STREAM);
CISTERN_SAME_VALUE(strict::kPerThreadStreamFlag, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM);
CISTERN_SAME_VALUE(strict::kSymbolFound, CU_GET_PROC_ADDRESS_SUCCESS);
CISTERN_SAME_VALUE(strict::kSymbolNotFound, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
CISTERN_SAME_VALUE(strict::kSymbolVersionNotSufficient, CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);

CISTERN_SAME_VALUE(sizeof(Status), sizeof(CUresult));
CISTERN_SAME_VALUE(sizeof(DeviceOrdinal), sizeof(CUdevice));
CISTERN_SAME_VALUE(sizeof(DevicePointer), sizeof(CUdeviceptr));
CISTERN_SAME_VALUE(16, sizeof(CUuuid));
CISTERN_SAME_VALUE(sizeof(MemLocation), sizeof(CUmemLocation));
CISTERN_SAME_VALUE(offsetof(MemLocation, type), offsetof(CUmemLocation, type));
CISTERN_SAME_VALUE(offsetof(MemLocation, id), offsetof(CUmemLocation, id));
CISTERN_SAME_VALUE(sizeof(MemoryHandle), sizeof(CUmemGenericAllocationHandle));
CISTERN_SAME_VALUE(sizeof(IpcMemoryHandle), sizeof(CUipcMemHandle));
CISTERN_SAME_VALUE(sizeof(IpcEventHandle), sizeof(CUipcEventHandle));
CISTERN_SAME_VALUE(sizeof(PoolPointerData), sizeof(CUmemPoolPtrExportData));
CISTERN_SAME_VALUE(kProcessRunning, CU_PROCESS_STATE_RUNNING);
CISTERN_SAME_VALUE(kProcessLocked, CU_PROCESS_STATE_LOCKED);
CISTERN_SAME_VALUE(kProcessCheckpointed, CU_PROCESS_STATE_CHECKPOINTED);
CISTERN_SAME_VALUE(kProcessFailed, CU_PROCESS_STATE_FAILED);
CISTERN_SAME_VALUE(sizeof(ProcessLockArguments), sizeof(CUcheckpointLockArgs));
CISTERN_SAME_VALUE(offsetof(ProcessLockArguments, timeout_milliseconds), offsetof(CUcheckpointLockArgs, timeoutMs));
CISTERN_SAME_VALUE(sizeof(ProcessStepArguments), sizeof(CUcheckpointCheckpointArgs));
CISTERN_SAME_VALUE(sizeof(ProcessStepArguments), sizeof(CUcheckpointRestoreArgs));
CISTERN_SAME_VALUE(sizeof(ProcessStepArguments), sizeof(CUcheckpointUnlockArgs));
CISTERN_SAME_VALUE(sizeof(AllocationProperties), sizeof(CUmemAllocationProp));
CISTERN_SAME_VALUE(offsetof(AllocationProperties, type), offsetof(CUmemAllocationProp, type));
CISTERN_SAME_VALUE(offsetof(AllocationProperties, handle_types), offsetof(CUmemAllocationProp, requestedHandleTypes));
CISTERN_SAME_VALUE(offsetof(AllocationProperties, location), offsetof(CUmemAllocationProp, location));
CISTERN_SAME_VALUE(offsetof(AllocationProperties, win32_metadata), offsetof(CUmemAllocationProp, win32HandleMetaData));
CISTERN_SAME_VALUE(offsetof(AllocationProperties, compression_type), offsetof(CUmemAllocationProp, allocFlags));
CISTERN_SAME_VALUE(sizeof(AccessDescription), sizeof(CUmemAccessDesc));
CISTERN_SAME_VALUE(offsetof(AccessDescription, location), offsetof(CUmemAccessDesc, location));
CISTERN_SAME_VALUE(offsetof(AccessDescription, flags), offsetof(CUmemAccessDesc, flags));
CISTERN_SAME_VALUE(sizeof(PoolProperties), sizeof(CUmemPoolProps));
CISTERN_SAME_VALUE(offsetof(PoolProperties, alloc_type), offsetof(CUmemPoolProps, allocType));
CISTERN_SAME_VALUE(offsetof(PoolProperties, handle_types), offsetof(CUmemPoolProps, handleTypes));
CISTERN_SAME_VALUE(offsetof(PoolProperties, location), offsetof(CUmemPoolProps, location));
CISTERN_SAME_VALUE(offsetof(PoolProperties, security_attributes), offsetof(CUmemPoolProps, win32SecurityAttributes));
CISTERN_SAME_VALUE(offsetof(PoolProperties, max_size), offsetof(CUmemPoolProps, maxSize));
CISTERN_SAME_VALUE(offsetof(PoolProperties, usage), offsetof(CUmemPoolProps, usage));
CISTERN_SAME_VALUE(offsetof(PoolProperties, reserved), offsetof(CUmemPoolProps, reserved));

}  // namespace cistern::cuda_header

#endif  // CISTERN_TEST_CUDA_HEADER_H_
