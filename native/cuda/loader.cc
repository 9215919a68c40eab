#include "cuda/loader.h"

#include <cstring>
#include <initializer_list>
#include <mutex>
#include <set>
#include <utility>

#include "platform/library.h"

namespace cistern::cuda {
namespace {

constexpr int kMinimumVersion = 12000;  // stream identity relies on cuStreamGetId, which 12.0 introduced
constexpr int kLocationVersion = 12020;
constexpr int kEdgeDataVersion = 12030;
constexpr int kFirstBatchVersion = 12080;
constexpr int kBatchVersion = 13000;

// CU_GET_PROC_ADDRESS_LEGACY_STREAM: a null stream means the legacy default stream, whatever
// cistern is embedded in.
constexpr unsigned long long kLegacyStreamFlag = 1;

// cuGetProcAddress_v2 of 12.0, and the form before it.
using GetProcAddressV2 = Status (*)(const char* symbol, void** function, int version, unsigned long long flags, int* symbol_status);
using GetProcAddressV1 = Status (*)(const char* symbol, void** function, int version, unsigned long long flags);

// Before 12.2 these two took an ordinal for the location, with -1 for the host.
using MemAdvise8000 = Status (*)(DevicePointer pointer, std::size_t bytes, int advice, DeviceOrdinal device);
using MemPrefetchAsync8000 = Status (*)(DevicePointer pointer, std::size_t bytes, DeviceOrdinal device, Stream stream);

// Before 12.3 edges had no data.
using StreamGetCaptureInfo11030 = Status (*)(Stream stream, int* status, std::uint64_t* id, Graph* graph, const GraphNode** dependencies,
                                             std::size_t* dependency_count);

// Before 13.0 it also told which copy was refused.
using MemcpyBatchAsync12080 = Status (*)(DevicePointer* destinations, DevicePointer* sources, std::size_t* sizes, std::size_t count,
                                         CopyAttributes* attributes, std::size_t* first_copies, std::size_t attribute_count,
                                         std::size_t* failed, Stream stream);

MemAdvise8000 old_mem_advise = nullptr;
MemPrefetchAsync8000 old_mem_prefetch_async = nullptr;
StreamGetCaptureInfo11030 old_stream_get_capture_info = nullptr;
MemcpyBatchAsync12080 old_memcpy_batch_async = nullptr;

Status OldOrdinal(MemLocation location, DeviceOrdinal* device) {
  if (location.type != kLocationDevice && location.type != kLocationHost) return kErrorInvalidValue;
  *device = location.type == kLocationHost ? -1 : location.id;
  return kSuccess;
}

Status AdviseThroughOldForm(DevicePointer pointer, std::size_t bytes, int advice, MemLocation location) {
  DeviceOrdinal device;
  const Status status = OldOrdinal(location, &device);
  return status == kSuccess ? old_mem_advise(pointer, bytes, advice, device) : status;
}

Status PrefetchThroughOldForm(DevicePointer pointer, std::size_t bytes, MemLocation location, unsigned flags, Stream stream) {
  if (flags != 0) return kErrorInvalidValue;
  DeviceOrdinal device;
  const Status status = OldOrdinal(location, &device);
  return status == kSuccess ? old_mem_prefetch_async(pointer, bytes, device, stream) : status;
}

Status CaptureInfoThroughOldForm(Stream stream, int* status, std::uint64_t* id, Graph* graph, const GraphNode** dependencies,
                                 const EdgeData** edges, std::size_t* dependency_count) {
  if (edges != nullptr) *edges = nullptr;
  return old_stream_get_capture_info(stream, status, id, graph, dependencies, dependency_count);
}

Status CopyBatchThroughOldForm(DevicePointer* destinations, DevicePointer* sources, std::size_t* sizes, std::size_t count,
                               CopyAttributes* attributes, std::size_t* first_copies, std::size_t attribute_count, Stream stream) {
  std::size_t failed;
  return old_memcpy_batch_async(destinations, sources, sizes, count, attributes, first_copies, attribute_count, &failed, stream);
}

// What a driver may lack. If one function of a feature is missing, all of them answer "not supported":
// nothing is begun that could not be ended. Whatever is not named here, cistern cannot do without.
struct Feature {
  const char* cost;
  std::initializer_list<const char*> symbols;
};
const Feature kFeatures[] = {
    {"no pools of the driver: CudaAsyncMemoryResource, ManagedAsyncMemoryResource",
     {"cuMemPoolCreate", "cuMemPoolDestroy", "cuMemPoolTrimTo", "cuMemPoolSetAttribute", "cuMemPoolGetAttribute", "cuMemAllocFromPoolAsync",
      "cuMemFreeAsync"}},
    {"no default pool of a device: CudaAsyncMemoryResource({ pool: 'default' })", {"cuDeviceGetDefaultMemPool"}},
    {"no current pool of a device: CudaAsyncMemoryResource({ pool: 'current' }) and its makeCurrent()",
     {"cuDeviceGetMemPool", "cuDeviceSetMemPool"}},
    {"no VirtualMemoryResource",
     {"cuMemGetAllocationGranularity", "cuMemAddressReserve", "cuMemAddressFree", "cuMemCreate", "cuMemRelease", "cuMemMap", "cuMemUnmap",
      "cuMemSetAccess"}},
    {"no LastingMemoryResource", {"cuMemExportToShareableHandle", "cuMemImportFromShareableHandle"}},
    {"no ManagedMemoryResource", {"cuMemAllocManaged"}},
    {"no PinnedHostMemoryResource({ populateThreads })", {"cuMemHostRegister", "cuMemHostUnregister"}},
    {"no advice, prefetching and attributes of managed memory", {"cuMemAdvise", "cuMemPrefetchAsync", "cuMemRangeGetAttribute"}},
    {"no access between devices: Device.enablePeerAccess; no PinnedAsyncMemoryResource",
     {"cuDeviceCanAccessPeer", "cuCtxEnablePeerAccess", "cuCtxDisablePeerAccess", "cuMemPoolSetAccess"}},
    {"no copies between devices", {"cuMemcpyPeerAsync"}},
    {"buffers that spill together are copied one by one", {"cuMemcpyBatchAsync"}},
    {"no buffers of other processes: exportBuffer, openBuffer",
     {"cuIpcGetMemHandle", "cuIpcOpenMemHandle", "cuIpcCloseMemHandle", "cuIpcGetEventHandle", "cuIpcOpenEventHandle"}},
    {"no exportable pools of the driver",
     {"cuMemPoolExportToShareableHandle", "cuMemPoolImportFromShareableHandle", "cuMemPoolExportPointer", "cuMemPoolImportPointer"}},
    {"holds and host functions stand in the driver's callbacks: certain to work on one stream at a time only", {"cuStreamWaitValue32"}},
    {"streams of contexts other than the primary one of their device are not recognized", {"cuStreamGetCtx"}},
    {"no priorities of streams: Device.streamPriorityRange, Stream.priority", {"cuCtxGetStreamPriorityRange", "cuStreamGetPriority"}},
    {"no times between events: Event.elapsedMilliseconds", {"cuEventElapsedTime"}},
    {"no fills with 4-byte values", {"cuMemsetD32Async"}},
    {"no descriptions in errors", {"cuGetErrorString"}},
    {"calls that cistern makes on its own may invalidate a graph that is being captured", {"cuThreadExchangeStreamCaptureMode"}},
    {"streams that another library captures are not recognized", {"cuStreamIsCapturing"}},
    {"no graphs: Stream.capture",
     {"cuStreamBeginCapture", "cuStreamEndCapture", "cuStreamGetCaptureInfo", "cuGraphDestroy", "cuGraphGetNodes", "cuGraphNodeGetType",
      "cuGraphDebugDotPrint", "cuGraphInstantiateWithFlags", "cuGraphExecDestroy", "cuGraphExecUpdate", "cuGraphUpload", "cuGraphLaunch",
      "cuUserObjectCreate", "cuUserObjectRelease", "cuGraphRetainUserObject"}},
    {"no child graphs: Stream.addChildGraph", {"cuStreamUpdateCaptureDependencies", "cuGraphAddChildGraphNode"}},
    {"no sleep of processes: sleepProcess, cistern sleep",
     {"cuCheckpointProcessGetState", "cuCheckpointProcessLock", "cuCheckpointProcessCheckpoint", "cuCheckpointProcessRestore",
      "cuCheckpointProcessUnlock"}},
    {"nothing", {"cuDevicePrimaryCtxRelease"}},
};

const Feature* FeatureOf(const char* symbol) {
  for (const Feature& feature : kFeatures) {
    for (const char* each : feature.symbols) {
      if (std::strcmp(each, symbol) == 0) return &feature;
    }
  }
  return nullptr;
}

// Stands in for a function that a driver lacks.
template <typename Function>
struct Missing;
template <typename... Parameters>
struct Missing<Status (*)(Parameters...)> {
  static Status Call(Parameters...) { return kErrorNotSupported; }
};

class Resolver {
 public:
  explicit Resolver(void* library)
      : v2_(reinterpret_cast<GetProcAddressV2>(FindDriverSymbol(library, "cuGetProcAddress_v2"))),
        v1_(reinterpret_cast<GetProcAddressV1>(FindDriverSymbol(library, "cuGetProcAddress"))) {}

  bool usable() const { return v2_ != nullptr || v1_ != nullptr; }

  template <typename Function>
  bool Resolve(const char* symbol, int version, Function* function) const {
    void* address = nullptr;
    int symbol_status = 0;
    const Status status = v2_ != nullptr ? v2_(symbol, &address, version, kLegacyStreamFlag, &symbol_status)
                                         : v1_(symbol, &address, version, kLegacyStreamFlag);
    *function = status == kSuccess ? reinterpret_cast<Function>(address) : nullptr;
    return *function != nullptr;
  }

 private:
  GetProcAddressV2 v2_;
  GetProcAddressV1 v1_;
};

std::string VersionText(int version) { return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10); }

std::string ErrorText(const DriverTable& table, Status status) {
  const char* name = nullptr;
  if (table.GetErrorName(status, &name) != kSuccess || name == nullptr) return "CUDA error " + std::to_string(status);
  return std::string(name) + " (" + std::to_string(status) + ")";
}

// Empty on success, else the reason why there is no usable driver.
std::string Fill(DriverTable* table, std::string* missing_functions) {
  const std::string name = kDriverLibraryName;
  std::string failure;
  void* library = OpenDriverLibrary(&failure);
  if (library == nullptr) return name + " could not be loaded; it was searched for " + failure;

  const Resolver resolver(library);
  if (!resolver.usable())
    return name + " was loaded but exports no cuGetProcAddress: its driver is older than CUDA 11.3, and 12.0 is the oldest that works";
  int version = 0;
  if (!resolver.Resolve("cuDriverGetVersion", 2020, &table->DriverGetVersion) || table->DriverGetVersion(&version) != kSuccess) {
    return name + " was loaded but does not report its version";
  }
  if (version < kMinimumVersion) {
    return name + " was loaded but its driver supports CUDA " + VersionText(version) + " only, and " + VersionText(kMinimumVersion) +
           " is the oldest that works";
  }

  // Never request a version above the driver's own. According to the documentation the driver
  // refuses that; if one returned the newest form that it has instead, a call through it would pass
  // the wrong parameters.
  const bool old_locations = version < kLocationVersion;
  const bool old_edges = version < kEdgeDataVersion;
  const bool old_batches = version < kBatchVersion;
  const char* missing = nullptr;
  std::set<const Feature*> lacking;
  const auto lack = [&](const char* symbol) {
    const Feature* feature = FeatureOf(symbol);
    if (feature == nullptr) {
      missing = symbol;
      return;
    }
    lacking.insert(feature);
    *missing_functions += std::string(symbol) + '\t' + feature->cost + '\n';
  };
  missing_functions->clear();
  const auto has_old_form = [&](int symbol_version) {
    return (old_locations && symbol_version == kLocationVersion) || (old_edges && symbol_version == kEdgeDataVersion) ||
           (old_batches && symbol_version == kBatchVersion);
  };
#define CISTERN_RESOLVE(member, symbol, symbol_version, parameters) \
  if (!has_old_form(symbol_version) && !resolver.Resolve(symbol, symbol_version, &table->member)) lack(symbol);
  CISTERN_DRIVER_FUNCTIONS(CISTERN_RESOLVE)
#undef CISTERN_RESOLVE
  if (old_locations) {
    if (!resolver.Resolve("cuMemAdvise", 8000, &old_mem_advise)) lack("cuMemAdvise");
    if (!resolver.Resolve("cuMemPrefetchAsync", 8000, &old_mem_prefetch_async)) lack("cuMemPrefetchAsync");
    table->MemAdvise = AdviseThroughOldForm;
    table->MemPrefetchAsync = PrefetchThroughOldForm;
  }
  if (old_edges) {
    if (!resolver.Resolve("cuStreamGetCaptureInfo", 11030, &old_stream_get_capture_info)) lack("cuStreamGetCaptureInfo");
    table->StreamGetCaptureInfo = CaptureInfoThroughOldForm;
  }
  if (old_batches) {
    const bool is_too_old = version < kFirstBatchVersion;
    if (is_too_old || !resolver.Resolve("cuMemcpyBatchAsync", kFirstBatchVersion, &old_memcpy_batch_async)) lack("cuMemcpyBatchAsync");
    table->MemcpyBatchAsync = CopyBatchThroughOldForm;
  }
#define CISTERN_REPLACE(member, symbol, symbol_version, parameters) \
  if (lacking.count(FeatureOf(symbol)) != 0) table->member = Missing<decltype(table->member)>::Call;
  CISTERN_DRIVER_FUNCTIONS(CISTERN_REPLACE)
#undef CISTERN_REPLACE
  if (missing != nullptr) return name + " was loaded but its driver (CUDA " + VersionText(version) + ") has no " + missing;

  Status status = table->Init(0);
  if (status != kSuccess) return name + " was loaded but cuInit failed with " + ErrorText(*table, status);
  int count = 0;
  status = table->DeviceGetCount(&count);
  if (status != kSuccess) return name + " was loaded but cuDeviceGetCount failed with " + ErrorText(*table, status);
  if (count == 0) return name + " was loaded and initialised but found no device (CUDA_VISIBLE_DEVICES may hide them)";
  return "";
}

}  // namespace

LoadResult Load() {
  // Never destroyed: a thread may still call through the table while the process's static objects
  // are destroyed.
  struct Loaded {
    std::mutex mutex;
    DriverTable table = {};
    std::string missing;
    bool is_usable = false;
  };
  static Loaded& loaded = *new Loaded;
  const std::lock_guard<std::mutex> lock(loaded.mutex);
  if (loaded.is_usable) return {&loaded.table, loaded.missing, ""};
  std::string reason = Fill(&loaded.table, &loaded.missing);
  loaded.is_usable = reason.empty();
  return {loaded.is_usable ? &loaded.table : nullptr, loaded.missing, std::move(reason)};
}

}  // namespace cistern::cuda
