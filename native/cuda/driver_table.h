// The part of the CUDA driver API that cistern uses, as a table of function pointers.
//
// The table has two implementations: native/cuda/loader.cc fills it from libcuda.so.1 at run time,
// and native/software/ implements it over host memory and threads. Nothing above this header can
// tell which one it uses.
//
// The types are declared here, with the driver's own layout, so that the build needs neither the
// CUDA toolkit nor its headers. Signatures are those of each function's newest version; the loader
// adapts an older driver if they differ.
#ifndef CISTERN_CUDA_DRIVER_TABLE_H_
#define CISTERN_CUDA_DRIVER_TABLE_H_

#include <cstddef>
#include <cstdint>

namespace cistern {

using Status = int;                        // CUresult
using DeviceOrdinal = int;                 // CUdevice
using DevicePointer = unsigned long long;  // CUdeviceptr
using MemoryHandle = unsigned long long;   // CUmemGenericAllocationHandle
struct ContextOpaque;
struct StreamOpaque;
struct EventOpaque;
struct PoolOpaque;
struct GraphOpaque;
struct GraphExecOpaque;
struct GraphNodeOpaque;
struct UserObjectOpaque;
using Context = ContextOpaque*;
using Stream = StreamOpaque*;
using Event = EventOpaque*;
using Pool = PoolOpaque*;
using Graph = GraphOpaque*;
using GraphExec = GraphExecOpaque*;
using GraphNode = GraphNodeOpaque*;
using UserObject = UserObjectOpaque*;
using HostFunction = void (*)(void* user_data);

// CUresult values that cistern itself returns or tests for.
enum : Status {
  kSuccess = 0,
  kErrorInvalidValue = 1,
  kErrorOutOfMemory = 2,
  kErrorNotInitialized = 3,
  kErrorNoDevice = 100,
  kErrorInvalidDevice = 101,
  kErrorInvalidContext = 201,
  kErrorMapFailed = 205,
  kErrorPeerAccessUnsupported = 217,
  kErrorOperatingSystem = 304,
  kErrorInvalidHandle = 400,
  kErrorIllegalState = 401,
  kErrorNotFound = 500,
  kErrorNotReady = 600,
  kErrorIllegalAddress = 700,
  kErrorPeerAccessAlreadyEnabled = 704,
  kErrorPeerAccessNotEnabled = 705,
  kErrorHostMemoryAlreadyRegistered = 712,
  kErrorHostMemoryNotRegistered = 713,
  kErrorNotPermitted = 800,
  kErrorNotSupported = 801,
  kErrorCaptureUnsupported = 900,
  kErrorCaptureInvalidated = 901,
  kErrorCaptureMerge = 902,
  kErrorCaptureUnmatched = 903,
  kErrorCaptureUnjoined = 904,
  kErrorCaptureIsolation = 905,
  kErrorCaptureImplicit = 906,
  kErrorCapturedEvent = 907,
  kErrorCaptureWrongThread = 908,
  kErrorGraphExecUpdateFailure = 910,
  kErrorUnknown = 999,
};

// Handles that stand for the two default streams (CU_STREAM_LEGACY, CU_STREAM_PER_THREAD).
inline Stream LegacyStream() { return reinterpret_cast<Stream>(std::uintptr_t{1}); }
inline Stream PerThreadStream() { return reinterpret_cast<Stream>(std::uintptr_t{2}); }

enum : unsigned { kStreamDefault = 0, kStreamNonBlocking = 1 };
enum : unsigned { kEventDefault = 0, kEventBlockingSync = 1, kEventDisableTiming = 2, kEventInterprocess = 4 };
// CUstreamWaitValue_flags: the stream continues once (int32_t)(*address - value) >= 0.
enum : unsigned { kWaitValueGreaterOrEqual = 0 };
enum : unsigned { kMemAttachGlobal = 1 };
enum : unsigned { kHostAllocPortable = 1, kHostAllocDeviceMap = 2 };
enum : unsigned { kHostRegisterPortable = 1, kHostRegisterDeviceMap = 2 };

// CUstreamCaptureMode
enum : int { kCaptureModeGlobal = 0, kCaptureModeThreadLocal = 1, kCaptureModeRelaxed = 2 };
// CUstreamCaptureStatus
enum : int { kCaptureNone = 0, kCaptureActive = 1, kCaptureInvalidated = 2 };
// CUgraphNodeType: those that the software device makes.
enum : int { kNodeCopy = 1, kNodeFill = 2, kNodeHost = 3, kNodeGraph = 4, kNodeAllocation = 10, kNodeFree = 11, kNodeTypeCount = 14 };
// CUstreamUpdateCaptureDependencies_flags
enum : unsigned { kAddDependencies = 0, kSetDependencies = 1 };
// CUgraphInstantiate_flags
enum : unsigned long long { kInstantiateAutoFree = 1 };
// CUuserObject_flags, CUuserObjectRetain_flags
enum : unsigned { kUserObjectNoDestructorSync = 1, kUserObjectMove = 1 };
// CUgraphExecUpdateResult
enum : int {
  kUpdateSuccess = 0,
  kUpdateTopologyChanged = 2,
  kUpdateNodeTypeChanged = 3,
  kUpdateParametersChanged = 5,
  kUpdateNotSupported = 6
};
// CUgraphExecUpdateResultInfo, 24 bytes
struct GraphUpdateResult {
  int result;
  GraphNode node;
  GraphNode from_node;
};
static_assert(sizeof(GraphUpdateResult) == 24, "CUgraphExecUpdateResultInfo has 24 bytes");

// CUdevice_attribute: those that the software device answers; a CUDA device answers any.
enum : int {
  kAttributeUnifiedAddressing = 41,
  kAttributeMultiprocessorCount = 16,
  kAttributeIntegrated = 18,
  kAttributeComputeCapabilityMajor = 75,
  kAttributeComputeCapabilityMinor = 76,
  kAttributeManagedMemory = 83,
  kAttributePageableMemoryAccess = 88,
  kAttributeConcurrentManagedAccess = 89,
  kAttributeCanUseHostPointerForRegisteredMem = 91,
  kAttributeHostRegisterSupported = 99,
  kAttributePageableMemoryAccessUsesHostPageTables = 100,
  kAttributeDirectManagedMemAccessFromHost = 101,
  kAttributeVirtualMemoryManagementSupported = 102,
  kAttributeHandleTypePosixFileDescriptorSupported = 103,
  kAttributeMemoryPoolsSupported = 115,
  kAttributeIpcEventSupported = 125,
  kAttributeHostNumaId = 134,
  kAttributeHostNumaMemoryPoolsSupported = 142,
  kAttributeHostMemoryPoolsSupported = 144,
};

// CUmemLocation. The id of a location that is a NUMA node of the host is the node's.
enum : int { kLocationNone = 0, kLocationDevice = 1, kLocationHost = 2, kLocationHostNuma = 3 };
struct MemLocation {
  int type;
  int id;
};

// CUmemcpyAttributes, 24 bytes
struct CopyAttributes {
  int source_order;
  MemLocation source;
  MemLocation destination;
  unsigned flags;
};
static_assert(sizeof(CopyAttributes) == 24, "CUmemcpyAttributes has 24 bytes");
// CUmemcpySrcAccessOrder: when a copy of a batch reads its source.
enum : int { kSourceOrderStream = 1, kSourceOrderDuringCall = 2, kSourceOrderAny = 3 };

// CUmemAllocationType. Pinned means memory that stays where it is: of a device, or page-locked memory of the host, whose pools
// need CUDA 12.6 for a NUMA node and CUDA 13 for the host as a whole. Pools of managed memory need CUDA 13.
enum : int { kAllocationTypePinned = 1, kAllocationTypeManaged = 2 };
// CUmemPoolProps, 88 bytes
struct PoolProperties {
  int alloc_type;
  int handle_types;
  MemLocation location;
  void* security_attributes;
  std::size_t max_size;
  unsigned short usage;
  unsigned char reserved[54];
};
static_assert(sizeof(PoolProperties) == 88, "CUmemPoolProps has 88 bytes");

// CUmemAllocationProp, 32 bytes
struct AllocationProperties {
  int type;
  int handle_types;
  MemLocation location;
  void* win32_metadata;
  unsigned char compression_type;
  unsigned char is_rdma_capable;
  unsigned short usage;
  unsigned char reserved[4];
};
static_assert(sizeof(AllocationProperties) == 32, "CUmemAllocationProp has 32 bytes");

// CUmemAccess_flags
enum : int { kAccessNone = 0, kAccessRead = 1, kAccessReadWrite = 3 };
// CUmemAccessDesc
struct AccessDescription {
  MemLocation location;
  int flags;
};
static_assert(sizeof(AccessDescription) == 12, "CUmemAccessDesc has 12 bytes");

// CUmemAllocationGranularity_flags
enum : int { kGranularityMinimum = 0, kGranularityRecommended = 1 };

// CUmemPool_attribute
enum : int {
  kPoolReuseFollowEventDependencies = 1,
  kPoolReuseAllowOpportunistic = 2,
  kPoolReuseAllowInternalDependencies = 3,
  kPoolReleaseThreshold = 4,
  kPoolReservedCurrent = 5,
  kPoolReservedHigh = 6,
  kPoolUsedCurrent = 7,
  kPoolUsedHigh = 8,
};

// CUmem_advise
enum : int {
  kAdviseSetReadMostly = 1,
  kAdviseUnsetReadMostly = 2,
  kAdviseSetPreferredLocation = 3,
  kAdviseUnsetPreferredLocation = 4,
  kAdviseSetAccessedBy = 5,
  kAdviseUnsetAccessedBy = 6,
};

// CUmem_range_attribute: each answers one int32 (location ids: a device ordinal, -1 the host, -2 none or mixed).
enum : int {
  kRangeReadMostly = 1,
  kRangePreferredLocation = 2,
  kRangeAccessedBy = 3,
  kRangeLastPrefetchLocation = 4,
};

// CUpointer_attribute
enum : int {
  kPointerMemoryType = 2,
  kPointerIsManaged = 8,
  kPointerDeviceOrdinal = 9,
  kPointerIsLegacyIpcCapable = 10,
  kPointerRangeStart = 11,
  kPointerAccessFlags = 16,  // CUmemAccess_flags of the current context's device
  kPointerPool = 17,
};
// CUgraphEdgeData: what an edge of a graph means, if it is not that its first node has ended
struct EdgeData {
  unsigned char from_port;
  unsigned char to_port;
  unsigned char type;
  unsigned char reserved[5];
};
// CUmemorytype
enum : unsigned { kMemoryTypeHost = 1, kMemoryTypeDevice = 2 };

// CUipcMemHandle, CUipcEventHandle and CUmemPoolPtrExportData
struct IpcMemoryHandle {
  unsigned char bytes[64];
};
struct IpcEventHandle {
  unsigned char bytes[64];
};
struct PoolPointerData {
  unsigned char bytes[64];
};
// CUipcMem_flags, CUmemAllocationHandleType
enum : unsigned { kIpcLazyPeerAccess = 1 };
enum : int { kHandleTypePosixDescriptor = 1 };

// CUprocessState; 13.4 adds two for checkpoints to storage of the caller's own, which cistern does not make.
enum : int { kProcessRunning = 0, kProcessLocked = 1, kProcessCheckpointed = 2, kProcessFailed = 3 };
// CUcheckpointLockArgs, and the arguments of the other calls, which are zeros if nothing is asked for: without another device to
// restore to, and without storage of the caller's own.
struct ProcessLockArguments {
  unsigned timeout_milliseconds;  // 0: none
  unsigned reserved;
  std::uint64_t reserved_too[7];
};
struct ProcessStepArguments {
  std::uint64_t reserved[8];
};
static_assert(sizeof(ProcessLockArguments) == 64 && sizeof(ProcessStepArguments) == 64, "the arguments of checkpoints have 64 bytes");

// X(member, driver symbol, version requested from cuGetProcAddress, parameters)
#define CISTERN_DRIVER_FUNCTIONS(X)                                                                                                  \
  X(Init, "cuInit", 2000, (unsigned flags))                                                                                          \
  X(DriverGetVersion, "cuDriverGetVersion", 2020, (int* version))                                                                    \
  X(GetErrorName, "cuGetErrorName", 6000, (Status error, const char** name))                                                         \
  X(GetErrorString, "cuGetErrorString", 6000, (Status error, const char** text))                                                     \
  X(DeviceGetCount, "cuDeviceGetCount", 2000, (int* count))                                                                          \
  X(DeviceGet, "cuDeviceGet", 2000, (DeviceOrdinal * device, int ordinal))                                                           \
  X(DeviceGetName, "cuDeviceGetName", 2000, (char* name, int length, DeviceOrdinal device))                                          \
  X(DeviceGetUuid, "cuDeviceGetUuid", 11040, (unsigned char uuid[16], DeviceOrdinal device))                                         \
  X(DeviceTotalMem, "cuDeviceTotalMem", 3020, (std::size_t * bytes, DeviceOrdinal device))                                           \
  X(DeviceGetAttribute, "cuDeviceGetAttribute", 2000, (int* value, int attribute, DeviceOrdinal device))                             \
  X(DevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", 7000, (Context * context, DeviceOrdinal device))                             \
  X(DevicePrimaryCtxRelease, "cuDevicePrimaryCtxRelease", 11000, (DeviceOrdinal device))                                             \
  X(CtxGetCurrent, "cuCtxGetCurrent", 4000, (Context * context))                                                                     \
  X(CtxSetCurrent, "cuCtxSetCurrent", 4000, (Context context))                                                                       \
  X(CtxSynchronize, "cuCtxSynchronize", 2000, ())                                                                                    \
  X(DeviceCanAccessPeer, "cuDeviceCanAccessPeer", 4000, (int* can_access, DeviceOrdinal device, DeviceOrdinal peer))                 \
  X(CtxEnablePeerAccess, "cuCtxEnablePeerAccess", 4000, (Context peer, unsigned flags))                                              \
  X(CtxDisablePeerAccess, "cuCtxDisablePeerAccess", 4000, (Context peer))                                                            \
  X(CtxGetStreamPriorityRange, "cuCtxGetStreamPriorityRange", 5050, (int* least, int* greatest))                                     \
  X(StreamCreateWithPriority, "cuStreamCreateWithPriority", 5050, (Stream * stream, unsigned flags, int priority))                   \
  X(StreamDestroy, "cuStreamDestroy", 4000, (Stream stream))                                                                         \
  X(StreamSynchronize, "cuStreamSynchronize", 2000, (Stream stream))                                                                 \
  X(StreamQuery, "cuStreamQuery", 2000, (Stream stream))                                                                             \
  X(StreamGetId, "cuStreamGetId", 12000, (Stream stream, unsigned long long* id))                                                    \
  X(StreamGetFlags, "cuStreamGetFlags", 5050, (Stream stream, unsigned* flags))                                                      \
  X(StreamGetCtx, "cuStreamGetCtx", 9020, (Stream stream, Context * context))                                                        \
  X(StreamGetPriority, "cuStreamGetPriority", 5050, (Stream stream, int* priority))                                                  \
  X(StreamWaitEvent, "cuStreamWaitEvent", 3020, (Stream stream, Event event, unsigned flags))                                        \
  X(StreamWaitValue32, "cuStreamWaitValue32", 11070, (Stream stream, DevicePointer address, std::uint32_t value, unsigned flags))    \
  X(ThreadExchangeStreamCaptureMode, "cuThreadExchangeStreamCaptureMode", 10010, (int* mode))                                        \
  X(StreamBeginCapture, "cuStreamBeginCapture", 10010, (Stream stream, int mode))                                                    \
  X(StreamEndCapture, "cuStreamEndCapture", 10000, (Stream stream, Graph * graph))                                                   \
  X(StreamIsCapturing, "cuStreamIsCapturing", 10000, (Stream stream, int* status))                                                   \
  X(StreamGetCaptureInfo, "cuStreamGetCaptureInfo", 12030,                                                                           \
    (Stream stream, int* status, std::uint64_t* id, Graph* graph, const GraphNode** dependencies, const EdgeData** edges,            \
     std::size_t* dependency_count))                                                                                                 \
  X(StreamUpdateCaptureDependencies, "cuStreamUpdateCaptureDependencies", 11030,                                                     \
    (Stream stream, GraphNode * dependencies, std::size_t count, unsigned flags))                                                    \
  X(GraphAddChildGraphNode, "cuGraphAddChildGraphNode", 10000,                                                                       \
    (GraphNode * node, Graph graph, const GraphNode* dependencies, std::size_t count, Graph child))                                  \
  X(GraphDestroy, "cuGraphDestroy", 10000, (Graph graph))                                                                            \
  X(GraphGetNodes, "cuGraphGetNodes", 10000, (Graph graph, GraphNode * nodes, std::size_t * count))                                  \
  X(GraphNodeGetType, "cuGraphNodeGetType", 10000, (GraphNode node, int* type))                                                      \
  X(GraphDebugDotPrint, "cuGraphDebugDotPrint", 11030, (Graph graph, const char* path, unsigned flags))                              \
  X(GraphInstantiateWithFlags, "cuGraphInstantiateWithFlags", 11040, (GraphExec * exec, Graph graph, unsigned long long flags))      \
  X(GraphExecDestroy, "cuGraphExecDestroy", 10000, (GraphExec exec))                                                                 \
  X(GraphExecUpdate, "cuGraphExecUpdate", 12000, (GraphExec exec, Graph graph, GraphUpdateResult * result))                          \
  X(GraphUpload, "cuGraphUpload", 11010, (GraphExec exec, Stream stream))                                                            \
  X(GraphLaunch, "cuGraphLaunch", 10000, (GraphExec exec, Stream stream))                                                            \
  X(UserObjectCreate, "cuUserObjectCreate", 11030,                                                                                   \
    (UserObject * object, void* data, HostFunction destroy, unsigned references, unsigned flags))                                    \
  X(UserObjectRelease, "cuUserObjectRelease", 11030, (UserObject object, unsigned count))                                            \
  X(GraphRetainUserObject, "cuGraphRetainUserObject", 11030, (Graph graph, UserObject object, unsigned count, unsigned flags))       \
  X(EventCreate, "cuEventCreate", 2000, (Event * event, unsigned flags))                                                             \
  X(EventDestroy, "cuEventDestroy", 4000, (Event event))                                                                             \
  X(EventRecord, "cuEventRecord", 2000, (Event event, Stream stream))                                                                \
  X(EventQuery, "cuEventQuery", 2000, (Event event))                                                                                 \
  X(EventSynchronize, "cuEventSynchronize", 2000, (Event event))                                                                     \
  X(EventElapsedTime, "cuEventElapsedTime", 2000, (float* milliseconds, Event start, Event end))                                     \
  X(LaunchHostFunc, "cuLaunchHostFunc", 10000, (Stream stream, HostFunction function, void* user_data))                              \
  X(MemGetInfo, "cuMemGetInfo", 3020, (std::size_t * free, std::size_t * total))                                                     \
  X(MemAlloc, "cuMemAlloc", 3020, (DevicePointer * pointer, std::size_t bytes))                                                      \
  X(MemFree, "cuMemFree", 3020, (DevicePointer pointer))                                                                             \
  X(MemAllocManaged, "cuMemAllocManaged", 6000, (DevicePointer * pointer, std::size_t bytes, unsigned flags))                        \
  X(MemHostAlloc, "cuMemHostAlloc", 2020, (void** pointer, std::size_t bytes, unsigned flags))                                       \
  X(MemFreeHost, "cuMemFreeHost", 2000, (void* pointer))                                                                             \
  X(MemHostRegister, "cuMemHostRegister", 6050, (void* pointer, std::size_t bytes, unsigned flags))                                  \
  X(MemHostUnregister, "cuMemHostUnregister", 4000, (void* pointer))                                                                 \
  X(MemPoolCreate, "cuMemPoolCreate", 11020, (Pool * pool, const PoolProperties* properties))                                        \
  X(DeviceGetDefaultMemPool, "cuDeviceGetDefaultMemPool", 11020, (Pool * pool, DeviceOrdinal device))                                \
  X(DeviceGetMemPool, "cuDeviceGetMemPool", 11020, (Pool * pool, DeviceOrdinal device))                                              \
  X(DeviceSetMemPool, "cuDeviceSetMemPool", 11020, (DeviceOrdinal device, Pool pool))                                                \
  X(MemPoolDestroy, "cuMemPoolDestroy", 11020, (Pool pool))                                                                          \
  X(MemPoolTrimTo, "cuMemPoolTrimTo", 11020, (Pool pool, std::size_t bytes_to_keep))                                                 \
  X(MemPoolSetAttribute, "cuMemPoolSetAttribute", 11020, (Pool pool, int attribute, void* value))                                    \
  X(MemPoolGetAttribute, "cuMemPoolGetAttribute", 11020, (Pool pool, int attribute, void* value))                                    \
  X(MemPoolSetAccess, "cuMemPoolSetAccess", 11020, (Pool pool, const AccessDescription* descriptions, std::size_t count))            \
  X(MemAllocFromPoolAsync, "cuMemAllocFromPoolAsync", 11020, (DevicePointer * pointer, std::size_t bytes, Pool pool, Stream stream)) \
  X(MemFreeAsync, "cuMemFreeAsync", 11020, (DevicePointer pointer, Stream stream))                                                   \
  X(MemGetAllocationGranularity, "cuMemGetAllocationGranularity", 10020,                                                             \
    (std::size_t * bytes, const AllocationProperties* properties, int option))                                                       \
  X(MemAddressReserve, "cuMemAddressReserve", 10020,                                                                                 \
    (DevicePointer * address, std::size_t bytes, std::size_t alignment, DevicePointer hint, unsigned long long flags))               \
  X(MemAddressFree, "cuMemAddressFree", 10020, (DevicePointer address, std::size_t bytes))                                           \
  X(MemCreate, "cuMemCreate", 10020,                                                                                                 \
    (MemoryHandle * memory, std::size_t bytes, const AllocationProperties* properties, unsigned long long flags))                    \
  X(MemRelease, "cuMemRelease", 10020, (MemoryHandle memory))                                                                        \
  X(MemMap, "cuMemMap", 10020,                                                                                                       \
    (DevicePointer address, std::size_t bytes, std::size_t offset, MemoryHandle memory, unsigned long long flags))                   \
  X(MemUnmap, "cuMemUnmap", 10020, (DevicePointer address, std::size_t bytes))                                                       \
  X(MemSetAccess, "cuMemSetAccess", 10020,                                                                                           \
    (DevicePointer address, std::size_t bytes, const AccessDescription* descriptions, std::size_t count))                            \
  X(MemcpyAsync, "cuMemcpyAsync", 4000, (DevicePointer destination, DevicePointer source, std::size_t bytes, Stream stream))         \
  X(MemcpyPeerAsync, "cuMemcpyPeerAsync", 4000,                                                                                      \
    (DevicePointer destination, Context destination_context, DevicePointer source, Context source_context, std::size_t bytes,        \
     Stream stream))                                                                                                                 \
  X(MemsetD8Async, "cuMemsetD8Async", 3020, (DevicePointer destination, unsigned char value, std::size_t bytes, Stream stream))      \
  X(MemsetD32Async, "cuMemsetD32Async", 3020, (DevicePointer destination, unsigned value, std::size_t count, Stream stream))         \
  X(MemAdvise, "cuMemAdvise", 12020, (DevicePointer pointer, std::size_t bytes, int advice, MemLocation location))                   \
  X(MemPrefetchAsync, "cuMemPrefetchAsync", 12020,                                                                                   \
    (DevicePointer pointer, std::size_t bytes, MemLocation location, unsigned flags, Stream stream))                                 \
  X(MemRangeGetAttribute, "cuMemRangeGetAttribute", 8000,                                                                            \
    (void* data, std::size_t data_size, int attribute, DevicePointer pointer, std::size_t bytes))                                    \
  X(PointerGetAttribute, "cuPointerGetAttribute", 4000, (void* data, int attribute, DevicePointer pointer))                          \
  X(IpcGetMemHandle, "cuIpcGetMemHandle", 4010, (IpcMemoryHandle * handle, DevicePointer pointer))                                   \
  X(IpcOpenMemHandle, "cuIpcOpenMemHandle", 11000, (DevicePointer * pointer, IpcMemoryHandle handle, unsigned flags))                \
  X(IpcCloseMemHandle, "cuIpcCloseMemHandle", 4010, (DevicePointer pointer))                                                         \
  X(IpcGetEventHandle, "cuIpcGetEventHandle", 4010, (IpcEventHandle * handle, Event event))                                          \
  X(IpcOpenEventHandle, "cuIpcOpenEventHandle", 4010, (Event * event, IpcEventHandle handle))                                        \
  X(MemPoolExportToShareableHandle, "cuMemPoolExportToShareableHandle", 11020,                                                       \
    (void* handle, Pool pool, int type, unsigned long long flags))                                                                   \
  X(MemPoolImportFromShareableHandle, "cuMemPoolImportFromShareableHandle", 11020,                                                   \
    (Pool * pool, void* handle, int type, unsigned long long flags))                                                                 \
  X(MemPoolExportPointer, "cuMemPoolExportPointer", 11020, (PoolPointerData * data, DevicePointer pointer))                          \
  X(MemPoolImportPointer, "cuMemPoolImportPointer", 11020, (DevicePointer * pointer, Pool pool, PoolPointerData * data))             \
  X(CheckpointProcessGetState, "cuCheckpointProcessGetState", 12080, (int process, int* state))                                      \
  X(CheckpointProcessLock, "cuCheckpointProcessLock", 12080, (int process, ProcessLockArguments* arguments))                         \
  X(CheckpointProcessCheckpoint, "cuCheckpointProcessCheckpoint", 12080, (int process, ProcessStepArguments* arguments))             \
  X(CheckpointProcessRestore, "cuCheckpointProcessRestore", 12080, (int process, ProcessStepArguments* arguments))                   \
  X(CheckpointProcessUnlock, "cuCheckpointProcessUnlock", 12080, (int process, ProcessStepArguments* arguments))                     \
  X(MemExportToShareableHandle, "cuMemExportToShareableHandle", 10020,                                                               \
    (void* handle, MemoryHandle memory, int type, unsigned long long flags))                                                         \
  X(MemImportFromShareableHandle, "cuMemImportFromShareableHandle", 10020, (MemoryHandle * memory, void* handle, int type))          \
  X(MemcpyBatchAsync, "cuMemcpyBatchAsync", 13000,                                                                                   \
    (DevicePointer * destinations, DevicePointer * sources, std::size_t * sizes, std::size_t count, CopyAttributes * attributes,     \
     std::size_t * first_copies, std::size_t attribute_count, Stream stream))

struct DriverTable {
#define CISTERN_MEMBER(member, symbol, version, parameters) Status(*member) parameters;
  CISTERN_DRIVER_FUNCTIONS(CISTERN_MEMBER)
#undef CISTERN_MEMBER
};

// One number per function of the table, in table order: it indexes the call counters and the
// software device's injections.
enum class Call : int {
#define CISTERN_CALL(member, symbol, version, parameters) k##member,
  CISTERN_DRIVER_FUNCTIONS(CISTERN_CALL)
#undef CISTERN_CALL
};

inline constexpr const char* kCallNames[] = {
#define CISTERN_CALL_NAME(member, symbol, version, parameters) symbol,
    CISTERN_DRIVER_FUNCTIONS(CISTERN_CALL_NAME)
#undef CISTERN_CALL_NAME
};
inline constexpr int kCallCount = sizeof(kCallNames) / sizeof(kCallNames[0]);

}  // namespace cistern

#endif  // CISTERN_CUDA_DRIVER_TABLE_H_
