// A libcuda.so.1 over the software device, for tests of `cistern run`: exported functions to link with and to find by
// dlsym, and cuGetProcAddress with both flags. It has what the software device's table lacks, made of what the table
// has, and counts what is allocated on devices itself.
//
//     TEST_DRIVER_TRACE=file    a line for each call that allocates or frees
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <map>
#include <mutex>

#include "cuda/driver_table.h"
#include "software/software_device.h"
#include "structures.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

using namespace cistern;
using namespace outside;

namespace {

const DriverTable& Device() { return software::Table(); }

struct Memory {
  std::size_t bytes;
  bool is_on_device;
  int references;
  int mappings;
  Context context;
};

std::mutex& Mutex() {
  static std::mutex& mutex = *new std::mutex;
  return mutex;
}
std::map<unsigned long long, Memory>& Plain() {
  static auto& map = *new std::map<unsigned long long, Memory>;
  return map;
}
std::map<unsigned long long, Memory>& Handles() {
  static auto& map = *new std::map<unsigned long long, Memory>;
  return map;
}
std::map<unsigned long long, std::pair<unsigned long long, std::size_t>>& Mappings() {
  static auto& map = *new std::map<unsigned long long, std::pair<unsigned long long, std::size_t>>;
  return map;
}
std::atomic<long long> used;

// Contexts that a program makes beside the device's. The device knows only its own one, which stands for them.
thread_local Context current_made;
Context CurrentContext() {
  Context current = current_made;
  if (current == nullptr) Device().CtxGetCurrent(&current);
  return current;
}

// Addresses of memory that nobody uses: that of graphs, and of others.
constexpr DevicePointer kMadeUp = 0x700000000000;
DevicePointer MadeUp(std::size_t bytes) {
  static std::atomic<unsigned long long> next{kMadeUp};
  return next.fetch_add((bytes + 511) / 512 * 512 + 512);
}

void Trace(const char* call, unsigned long long value, Status status) {
  static const int file = [] {
    const char* path = getenv("TEST_DRIVER_TRACE");
    return path == nullptr ? -1 : open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  }();
  if (file < 0) return;
  char line[200];
  const int length = snprintf(line, sizeof(line), "%s %llu = %d\n", call, value, status);
  (void)!write(file, line, static_cast<std::size_t>(length));
}

Status Allocated(const char* call, unsigned long long key, std::size_t bytes, bool is_on_device, Status status) {
  Trace(call, bytes, status);
  if (status != kSuccess) return status;
  const std::lock_guard<std::mutex> lock(Mutex());
  Plain()[key] = {bytes, is_on_device, 0, 0, CurrentContext()};
  if (is_on_device) used += static_cast<long long>(bytes);
  return status;
}

// The entry is taken out before the device frees: the address may be given out again at once.
template <typename Call>
Status Free(const char* name, unsigned long long key, Call call) {
  Memory memory = {};
  {
    const std::lock_guard<std::mutex> lock(Mutex());
    const auto found = Plain().find(key);
    if (found != Plain().end()) {
      memory = found->second;
      Plain().erase(found);
    }
  }
  const Status status = call();
  Trace(name, memory.bytes, status);
  if (status == kSuccess) {
    if (memory.is_on_device) used -= static_cast<long long>(memory.bytes);
  } else if (memory.bytes > 0) {
    const std::lock_guard<std::mutex> lock(Mutex());
    Plain()[key] = memory;
  }
  return status;
}

// The context takes its memory along, whose addresses nobody gets again.
void EndContext(Context context) {
  const std::lock_guard<std::mutex> lock(Mutex());
  for (auto each = Plain().begin(); each != Plain().end();) {
    if (each->second.context != context) {
      ++each;
      continue;
    }
    if (each->second.is_on_device) used -= static_cast<long long>(each->second.bytes);
    each = Plain().erase(each);
  }
}

}  // namespace

// What this driver counts.
EXPORT long long test_driver_used() { return used.load(); }

EXPORT Status cuInit(unsigned flags) { return Device().Init(flags); }
EXPORT Status cuDriverGetVersion(int* version) { return Device().DriverGetVersion(version); }
EXPORT Status cuDeviceGetCount(int* count) { return Device().DeviceGetCount(count); }
EXPORT Status cuDeviceGet(DeviceOrdinal* device, int ordinal) { return Device().DeviceGet(device, ordinal); }
EXPORT Status cuCtxGetCurrent(Context* context) { return *context = CurrentContext(), kSuccess; }
namespace {
std::map<Context, Context>& Made() {
  static auto& map = *new std::map<Context, Context>;
  return map;
}
}  // namespace
EXPORT Status cuCtxSetCurrent(Context context) {
  if (context == current_made && context != nullptr) return kSuccess;
  if (current_made == nullptr && Made().empty()) return Device().CtxSetCurrent(context);
  const std::lock_guard<std::mutex> lock(Mutex());
  const auto made = Made().find(context);
  current_made = made == Made().end() ? nullptr : context;
  return Device().CtxSetCurrent(made == Made().end() ? context : made->second);
}
EXPORT Status cuCtxCreate_v2(Context* context, unsigned, DeviceOrdinal device) {
  Context of_device;
  const Status status = Device().DevicePrimaryCtxRetain(&of_device, device);
  if (status != kSuccess) return status;
  *context = reinterpret_cast<Context>(malloc(64));
  {
    const std::lock_guard<std::mutex> lock(Mutex());
    Made()[*context] = of_device;
  }
  return cuCtxSetCurrent(*context);
}
EXPORT Status cuCtxDestroy_v2(Context context) {
  {
    const std::lock_guard<std::mutex> lock(Mutex());
    if (Made().erase(context) == 0) return kErrorInvalidContext;
  }
  if (current_made == context) current_made = nullptr;
  EndContext(context);
  free(context);
  Trace("cuCtxDestroy", 0, kSuccess);
  return kSuccess;
}
namespace {
std::atomic<bool> is_reset;
}
EXPORT Status cuDevicePrimaryCtxReset_v2(DeviceOrdinal device) {
  Context context;
  const Status status = Device().DevicePrimaryCtxRetain(&context, device);
  if (status != kSuccess) return status;
  EndContext(context);
  is_reset = true;
  Trace("cuDevicePrimaryCtxReset", 0, kSuccess);
  return kSuccess;
}
EXPORT Status cuDevicePrimaryCtxGetState(DeviceOrdinal, unsigned* flags, int* is_active) {
  *flags = 0;
  *is_active = is_reset ? 0 : 1;
  return kSuccess;
}
EXPORT Status cuDevicePrimaryCtxRetain(Context* context, DeviceOrdinal device) { return Device().DevicePrimaryCtxRetain(context, device); }
EXPORT Status cuDevicePrimaryCtxRelease_v2(DeviceOrdinal device) { return Device().DevicePrimaryCtxRelease(device); }
EXPORT Status cuCtxGetDevice(DeviceOrdinal* device) {
  Context current = nullptr;
  int count = 0;
  Device().CtxGetCurrent(&current);  // the device's own, also if the program has made one
  Device().DeviceGetCount(&count);
  for (*device = 0; *device < count; ++*device) {
    Context primary = nullptr;
    if (Device().DevicePrimaryCtxRetain(&primary, *device) == kSuccess) Device().DevicePrimaryCtxRelease(*device);
    if (primary == current) return kSuccess;
  }
  return kErrorInvalidContext;
}
EXPORT Status cuStreamCreateWithPriority(Stream* stream, unsigned flags, int priority) {
  return Device().StreamCreateWithPriority(stream, flags, priority);
}
EXPORT Status cuStreamSynchronize(Stream stream) { return Device().StreamSynchronize(stream); }
// A capture that records nothing.
namespace {
std::atomic<Stream> captured;
}
EXPORT Status cuStreamBeginCapture_v2(Stream stream, int) { return captured = stream, kSuccess; }
EXPORT Status cuStreamEndCapture(Stream, Graph* graph) { return captured = nullptr, *graph = nullptr, kSuccess; }
EXPORT Status cuStreamIsCapturing(Stream stream, int* status) {
  if (captured == nullptr || captured != stream) return Device().StreamIsCapturing(stream, status);
  return *status = kCaptureActive, kSuccess;
}
EXPORT Status cuMemGetInfo_v2(std::size_t* free, std::size_t* total) { return Device().MemGetInfo(free, total); }
EXPORT Status cuDeviceTotalMem_v2(std::size_t* bytes, DeviceOrdinal device) { return Device().DeviceTotalMem(bytes, device); }

EXPORT Status cuMemAlloc_v2(DevicePointer* pointer, std::size_t bytes) {
  const Status status = Device().MemAlloc(pointer, bytes);
  return Allocated("cuMemAlloc", *pointer, bytes, true, status);
}
EXPORT Status cuMemAllocPitch_v2(DevicePointer* pointer, std::size_t* pitch, std::size_t width, std::size_t height, unsigned) {
  *pitch = (width + 511) / 512 * 512;
  const Status status = Device().MemAlloc(pointer, *pitch * height);
  return Allocated("cuMemAllocPitch", *pointer, *pitch * height, true, status);
}
EXPORT Status cuMemFree_v2(DevicePointer pointer) {
  return Free("cuMemFree", pointer, [&] { return Device().MemFree(pointer); });
}
EXPORT Status cuMemAllocManaged(DevicePointer* pointer, std::size_t bytes, unsigned flags) {
  const Status status = Device().MemAllocManaged(pointer, bytes, flags);
  return Allocated("cuMemAllocManaged", *pointer, bytes, false, status);
}
EXPORT Status cuMemHostAlloc(void** pointer, std::size_t bytes, unsigned flags) {
  const Status status = Device().MemHostAlloc(pointer, bytes, flags);
  return Allocated("cuMemHostAlloc", reinterpret_cast<unsigned long long>(*pointer), bytes, false, status);
}
EXPORT Status cuMemAllocHost_v2(void** pointer, std::size_t bytes) { return cuMemHostAlloc(pointer, bytes, 0); }
EXPORT Status cuMemFreeHost(void* pointer) {
  return Free("cuMemFreeHost", reinterpret_cast<unsigned long long>(pointer), [&] { return Device().MemFreeHost(pointer); });
}
EXPORT Status cuMemHostRegister_v2(void* pointer, std::size_t bytes, unsigned flags) {
  const Status status = Device().MemHostRegister(pointer, bytes, flags);
  Trace("cuMemHostRegister", bytes, status);
  return status;
}
EXPORT Status cuMemHostUnregister(void* pointer) {
  const Status status = Device().MemHostUnregister(pointer);
  Trace("cuMemHostUnregister", 0, status);
  return status;
}

// Streams 0, 1 and 2 are the default streams.
namespace {
// Pools whose memory is not a device's.
std::map<Pool, bool>& OtherPools() {
  static auto& map = *new std::map<Pool, bool>;
  return map;
}
}  // namespace
EXPORT Status cuMemAllocFromPoolAsync(DevicePointer* pointer, std::size_t bytes, Pool pool, Stream stream) {
  if (captured != nullptr && captured == stream) {
    *pointer = MadeUp(bytes);
    return Allocated("cuMemAllocFromPoolAsync", *pointer, bytes, false, kSuccess);
  }
  const Status status = Device().MemAllocFromPoolAsync(pointer, bytes, pool, stream);
  return Allocated("cuMemAllocFromPoolAsync", *pointer, bytes, OtherPools().count(pool) == 0, status);
}
EXPORT Status cuMemAllocFromPoolAsync_ptsz(DevicePointer* pointer, std::size_t bytes, Pool pool, Stream stream) {
  return cuMemAllocFromPoolAsync(pointer, bytes, pool, stream == nullptr ? PerThreadStream() : stream);
}
EXPORT Status cuMemAllocAsync(DevicePointer* pointer, std::size_t bytes, Stream stream) {
  Pool pool;
  DeviceOrdinal device;
  Status status = cuCtxGetDevice(&device);
  if (status == kSuccess) status = Device().DeviceGetMemPool(&pool, device);
  return status == kSuccess ? cuMemAllocFromPoolAsync(pointer, bytes, pool, stream) : status;
}
EXPORT Status cuMemAllocAsync_ptsz(DevicePointer* pointer, std::size_t bytes, Stream stream) {
  return cuMemAllocAsync(pointer, bytes, stream == nullptr ? PerThreadStream() : stream);
}
EXPORT Status cuMemFreeAsync(DevicePointer pointer, Stream stream) {
  return Free("cuMemFreeAsync", pointer, [&] { return pointer >= kMadeUp ? kSuccess : Device().MemFreeAsync(pointer, stream); });
}
EXPORT Status cuMemFreeAsync_ptsz(DevicePointer pointer, Stream stream) {
  return cuMemFreeAsync(pointer, stream == nullptr ? PerThreadStream() : stream);
}
EXPORT Status cuMemPoolCreate(Pool* pool, const PoolProperties* properties) {
  const Status status = Device().MemPoolCreate(pool, properties);
  const bool is_of_device = properties->location.type == kLocationDevice && properties->alloc_type != kAllocationTypeManaged;
  if (status == kSuccess && !is_of_device) OtherPools()[*pool] = true;
  return status;
}
EXPORT Status cuDeviceGetDefaultMemPool(Pool* pool, DeviceOrdinal device) { return Device().DeviceGetDefaultMemPool(pool, device); }
EXPORT Status cuDeviceGetMemPool(Pool* pool, DeviceOrdinal device) { return Device().DeviceGetMemPool(pool, device); }
// Of version 13: pools that the driver has for the host, and for managed memory.
EXPORT Status cuMemGetDefaultMemPool(Pool* pool, MemLocation* location, int type) {
  static std::map<std::pair<int, int>, Pool>& pools = *new std::map<std::pair<int, int>, Pool>;
  Pool& known = pools[{location->type, type}];
  PoolProperties properties = {};
  properties.alloc_type = type;
  properties.location = *location;
  const Status status = known != nullptr ? kSuccess : cuMemPoolCreate(&known, &properties);
  *pool = known;
  return status;
}
EXPORT Status cuMemGetMemPool(Pool* pool, MemLocation* location, int type) { return cuMemGetDefaultMemPool(pool, location, type); }
EXPORT Status cuMemPoolDestroy(Pool pool) { return Device().MemPoolDestroy(pool); }

// Virtual memory: it lives as long as a handle or a mapping of it.
namespace {
void DropIfUnused(unsigned long long handle) {
  const Memory& memory = Handles()[handle];
  if (memory.references > 0 || memory.mappings > 0) return;
  if (memory.is_on_device) used -= static_cast<long long>(memory.bytes);
  Handles().erase(handle);
}
}  // namespace

EXPORT Status cuMemAddressReserve(DevicePointer* address, std::size_t bytes, std::size_t alignment, DevicePointer hint,
                                  unsigned long long flags) {
  return Device().MemAddressReserve(address, bytes, alignment, hint, flags);
}
EXPORT Status cuMemAddressFree(DevicePointer address, std::size_t bytes) { return Device().MemAddressFree(address, bytes); }
EXPORT Status cuMemCreate(MemoryHandle* handle, std::size_t bytes, const AllocationProperties* properties, unsigned long long flags) {
  const Status status = Device().MemCreate(handle, bytes, properties, flags);
  Trace("cuMemCreate", bytes, status);
  if (status != kSuccess) return status;
  const std::lock_guard<std::mutex> lock(Mutex());
  Handles()[*handle] = {bytes, true, 1, 0, nullptr};
  used += static_cast<long long>(bytes);
  return status;
}
// What is imported is as large as the file's descriptor says.
EXPORT Status cuMemImportFromShareableHandle(MemoryHandle* handle, void* shared, int) {
  const auto bytes = reinterpret_cast<std::size_t>(shared);
  const AllocationProperties properties = {1, 0, {kLocationDevice, 0}, nullptr, 0, 0, 0, {}};
  const Status status = Device().MemCreate(handle, bytes, &properties, 0);
  Trace("cuMemImportFromShareableHandle", bytes, status);
  if (status != kSuccess) return status;
  const std::lock_guard<std::mutex> lock(Mutex());
  Handles()[*handle] = {bytes, false, 1, 0, nullptr};
  return status;
}
EXPORT Status cuMemRetainAllocationHandle(MemoryHandle* handle, void* address) {
  const std::lock_guard<std::mutex> lock(Mutex());
  const auto found = Mappings().find(reinterpret_cast<unsigned long long>(address));
  Trace("cuMemRetainAllocationHandle", 0, found == Mappings().end() ? kErrorInvalidValue : kSuccess);
  if (found == Mappings().end()) return kErrorInvalidValue;
  *handle = found->second.first;
  Handles()[*handle].references++;
  return kSuccess;
}
EXPORT Status cuMemRelease(MemoryHandle handle) {
  const std::lock_guard<std::mutex> lock(Mutex());
  const auto found = Handles().find(handle);
  Status status = kErrorInvalidValue;
  if (found != Handles().end() && found->second.references > 0) {
    // The device counts one handle only.
    status = found->second.references > 1 ? kSuccess : Device().MemRelease(handle);
  }
  Trace("cuMemRelease", 0, status);
  if (status != kSuccess) return status;
  found->second.references--;
  DropIfUnused(handle);
  return status;
}
EXPORT Status cuMemMap(DevicePointer address, std::size_t bytes, std::size_t offset, MemoryHandle handle, unsigned long long flags) {
  const Status status = Device().MemMap(address, bytes, offset, handle, flags);
  Trace("cuMemMap", bytes, status);
  if (status != kSuccess) return status;
  const std::lock_guard<std::mutex> lock(Mutex());
  Handles()[handle].mappings++;
  Mappings()[address] = {handle, bytes};
  return status;
}
EXPORT Status cuMemUnmap(DevicePointer address, std::size_t bytes) {
  const Status status = Device().MemUnmap(address, bytes);
  Trace("cuMemUnmap", bytes, status);
  if (status != kSuccess) return status;
  const std::lock_guard<std::mutex> lock(Mutex());
  for (DevicePointer at = address; at < address + bytes;) {
    const auto mapping = Mappings()[at];
    Mappings().erase(at);
    at += mapping.second;
    Handles()[mapping.first].mappings--;
    DropIfUnused(mapping.first);
  }
  return status;
}

// Arrays, and memory of others.
EXPORT Status cuArrayCreate_v2(void** array, const ArrayShape* shape) {
  const std::size_t bytes = shape->width * (shape->height == 0 ? 1 : shape->height) * shape->channels * 4;
  DevicePointer pointer = 0;
  const Status status = Device().MemAlloc(&pointer, bytes);
  *array = reinterpret_cast<void*>(pointer);
  return Allocated("cuArrayCreate", pointer, bytes, true, status);
}
EXPORT Status cuArrayDestroy(void* array) {
  const auto pointer = reinterpret_cast<DevicePointer>(array);
  return Free("cuArrayDestroy", pointer, [&] { return pointer >= kMadeUp ? kSuccess : Device().MemFree(pointer); });
}
namespace {
std::size_t AtLeastOne(std::size_t count) { return count == 0 ? 1 : count; }
// Sparse arrays have no memory of their own.
Status CreateArray(const char* call, void** array, const ArrayShape3D& shape, unsigned levels) {
  constexpr unsigned kSparse = 0x40;
  std::size_t bytes = 0;
  for (unsigned i = 0; i < levels; i++) {
    bytes += AtLeastOne(shape.width >> i) * AtLeastOne(shape.height >> i) * AtLeastOne(shape.depth >> i) * shape.channels * 4;
  }
  DevicePointer pointer = 0;
  Status status = kSuccess;
  if ((shape.flags & kSparse) != 0) {
    bytes = 0;
    pointer = MadeUp(0);
  } else {
    status = Device().MemAlloc(&pointer, bytes);
  }
  *array = reinterpret_cast<void*>(pointer);
  return Allocated(call, pointer, bytes, true, status);
}
}  // namespace
EXPORT Status cuArray3DCreate_v2(void** array, const ArrayShape3D* shape) { return CreateArray("cuArray3DCreate", array, *shape, 1); }
EXPORT Status cuMipmappedArrayCreate(void** array, const ArrayShape3D* shape, unsigned levels) {
  return CreateArray("cuMipmappedArrayCreate", array, *shape, levels);
}
EXPORT Status cuMipmappedArrayDestroy(void* array) { return cuArrayDestroy(array); }

// Of another process, which is only made up. The handle has the size.
EXPORT Status cuIpcOpenMemHandle_v2(DevicePointer* pointer, IpcMemoryHandle handle, unsigned) {
  std::size_t bytes;
  std::memcpy(&bytes, handle.bytes, sizeof(bytes));
  *pointer = MadeUp(bytes);
  return Allocated("cuIpcOpenMemHandle", *pointer, bytes, false, kSuccess);
}
EXPORT Status cuIpcCloseMemHandle(DevicePointer pointer) {
  return Free("cuIpcCloseMemHandle", pointer, [] { return kSuccess; });
}
EXPORT Status cuMemPoolImportPointer(DevicePointer* pointer, Pool, PoolPointerData* data) {
  std::size_t bytes;
  std::memcpy(&bytes, data->bytes, sizeof(bytes));
  *pointer = MadeUp(bytes);
  return Allocated("cuMemPoolImportPointer", *pointer, bytes, false, kSuccess);
}
EXPORT Status cuMemGetAddressRange_v2(DevicePointer* base, std::size_t* bytes, DevicePointer pointer) {
  const std::lock_guard<std::mutex> lock(Mutex());
  const auto found = Plain().find(pointer);
  if (found == Plain().end()) return kErrorInvalidValue;
  *base = pointer;
  *bytes = found->second.bytes;
  return kSuccess;
}
EXPORT Status cuImportExternalMemory(void** memory, const ExternalMemory* description) {
  *memory = malloc(1);
  Trace("cuImportExternalMemory", description->bytes, kSuccess);
  return kSuccess;
}
EXPORT Status cuDestroyExternalMemory(void* memory) {
  free(memory);
  Trace("cuDestroyExternalMemory", 0, kSuccess);
  return kSuccess;
}

// Nodes of graphs: only an address, which nobody uses.
EXPORT Status cuGraphAddMemAllocNode(GraphNode* node, Graph, const GraphNode*, std::size_t, AllocationNode* parameters) {
  *node = nullptr;
  parameters->pointer = MadeUp(parameters->bytes);
  Trace("cuGraphAddMemAllocNode", parameters->bytes, kSuccess);
  return kSuccess;
}
EXPORT Status cuGraphAddMemFreeNode(GraphNode* node, Graph, const GraphNode*, std::size_t, DevicePointer) {
  *node = nullptr;
  Trace("cuGraphAddMemFreeNode", 0, kSuccess);
  return kSuccess;
}
EXPORT Status cuGraphAddNode(GraphNode* node, Graph graph, const GraphNode*, std::size_t, NodeParameters* parameters) {
  if (parameters->type == kNodeAllocation) return cuGraphAddMemAllocNode(node, graph, nullptr, 0, &parameters->allocation);
  if (parameters->type == kNodeFree) return cuGraphAddMemFreeNode(node, graph, nullptr, 0, parameters->freed);
  *node = nullptr;
  Trace("cuGraphAddNode", 0, kSuccess);
  return kSuccess;
}
EXPORT Status cuGraphAddNode_v2(GraphNode* node, Graph graph, const GraphNode* dependencies, const void*, std::size_t count,
                                NodeParameters* parameters) {
  return cuGraphAddNode(node, graph, dependencies, count, parameters);
}

// What ggml asks besides.
EXPORT Status cuDeviceGetAttribute(int* value, int attribute, DeviceOrdinal device) {
  return Device().DeviceGetAttribute(value, attribute, device);
}
EXPORT Status cuGetErrorString(Status status, const char** text) { return Device().GetErrorString(status, text); }
EXPORT Status cuMemGetAllocationGranularity(std::size_t* bytes, const AllocationProperties* properties, int option) {
  return Device().MemGetAllocationGranularity(bytes, properties, option);
}
EXPORT Status cuMemSetAccess(DevicePointer address, std::size_t bytes, const AccessDescription* descriptions, std::size_t count) {
  return Device().MemSetAccess(address, bytes, descriptions, count);
}

// A form of cuMemAlloc that only a later driver has.
EXPORT Status test_driver_newer_form(int* marker) {
  *marker = 4711;
  return kSuccess;
}

namespace {

struct Entry {
  const char* symbol;
  int version;
  bool is_per_thread;
  void* address;
};

template <typename Function>
void* AddressOf(Function function) {
  return reinterpret_cast<void*>(function);
}

}  // namespace

EXPORT Status cuGetProcAddress_v2(const char* symbol, void** function, int version, unsigned long long flags, int* symbol_status);
EXPORT Status cuGetProcAddress(const char* symbol, void** function, int version, unsigned long long flags) {
  int symbol_status;
  const Status status = cuGetProcAddress_v2(symbol, function, version, flags, &symbol_status);
  return status == kSuccess && *function == nullptr ? kErrorNotFound : status;
}

namespace {

// The forms of this driver's own functions; any other comes from the device's table.
const Entry kEntries[] = {
#define PLAIN(symbol, version, exported) \
  { symbol, version, false, AddressOf(exported) }
    PLAIN("cuGetProcAddress", 11030, cuGetProcAddress),
    PLAIN("cuGetProcAddress", 12000, cuGetProcAddress_v2),
    PLAIN("cuCtxGetDevice", 2000, cuCtxGetDevice),
    PLAIN("cuCtxGetCurrent", 4000, cuCtxGetCurrent),
    PLAIN("cuCtxSetCurrent", 4000, cuCtxSetCurrent),
    PLAIN("cuCtxCreate", 3020, cuCtxCreate_v2),
    PLAIN("cuCtxDestroy", 4000, cuCtxDestroy_v2),
    PLAIN("cuDevicePrimaryCtxReset", 11000, cuDevicePrimaryCtxReset_v2),
    PLAIN("cuDevicePrimaryCtxGetState", 7000, cuDevicePrimaryCtxGetState),
    PLAIN("cuStreamBeginCapture", 10010, cuStreamBeginCapture_v2),
    PLAIN("cuStreamEndCapture", 10000, cuStreamEndCapture),
    PLAIN("cuStreamIsCapturing", 10000, cuStreamIsCapturing),
    PLAIN("cuMemPoolCreate", 11020, cuMemPoolCreate),
    PLAIN("cuDeviceGetMemPool", 11020, cuDeviceGetMemPool),
    PLAIN("cuMemGetDefaultMemPool", 13000, cuMemGetDefaultMemPool),
    PLAIN("cuMemGetMemPool", 13000, cuMemGetMemPool),
    PLAIN("cuMemImportFromShareableHandle", 10020, cuMemImportFromShareableHandle),
    PLAIN("cuIpcOpenMemHandle", 11000, cuIpcOpenMemHandle_v2),
    PLAIN("cuIpcCloseMemHandle", 4010, cuIpcCloseMemHandle),
    PLAIN("cuMemPoolImportPointer", 11020, cuMemPoolImportPointer),
    PLAIN("cuMemGetAddressRange", 3020, cuMemGetAddressRange_v2),
    PLAIN("cuArray3DCreate", 3020, cuArray3DCreate_v2),
    PLAIN("cuMipmappedArrayCreate", 5000, cuMipmappedArrayCreate),
    PLAIN("cuMipmappedArrayDestroy", 5000, cuMipmappedArrayDestroy),
    PLAIN("cuGraphAddNode", 12020, cuGraphAddNode),
    PLAIN("cuGraphAddNode", 12030, cuGraphAddNode_v2),
    PLAIN("cuDeviceTotalMem", 3020, cuDeviceTotalMem_v2),
    PLAIN("cuMemAlloc", 3020, cuMemAlloc_v2),
    PLAIN("cuMemAlloc", 99000, test_driver_newer_form),
    PLAIN("cuMemAllocPitch", 3020, cuMemAllocPitch_v2),
    PLAIN("cuMemFree", 3020, cuMemFree_v2),
    PLAIN("cuMemAllocManaged", 6000, cuMemAllocManaged),
    PLAIN("cuMemHostAlloc", 2020, cuMemHostAlloc),
    PLAIN("cuMemAllocHost", 3020, cuMemAllocHost_v2),
    PLAIN("cuMemFreeHost", 2000, cuMemFreeHost),
    PLAIN("cuMemHostRegister", 6050, cuMemHostRegister_v2),
    PLAIN("cuMemHostUnregister", 4000, cuMemHostUnregister),
    PLAIN("cuMemAllocAsync", 11020, cuMemAllocAsync),
    {"cuMemAllocAsync", 11020, true, AddressOf(cuMemAllocAsync_ptsz)},
    PLAIN("cuMemAllocFromPoolAsync", 11020, cuMemAllocFromPoolAsync),
    {"cuMemAllocFromPoolAsync", 11020, true, AddressOf(cuMemAllocFromPoolAsync_ptsz)},
    PLAIN("cuMemFreeAsync", 11020, cuMemFreeAsync),
    {"cuMemFreeAsync", 11020, true, AddressOf(cuMemFreeAsync_ptsz)},
    PLAIN("cuMemCreate", 10020, cuMemCreate),
    PLAIN("cuMemRetainAllocationHandle", 11000, cuMemRetainAllocationHandle),
    PLAIN("cuMemRelease", 10020, cuMemRelease),
    PLAIN("cuMemMap", 10020, cuMemMap),
    PLAIN("cuMemUnmap", 10020, cuMemUnmap),
    PLAIN("cuArrayCreate", 3020, cuArrayCreate_v2),
    PLAIN("cuArrayDestroy", 2000, cuArrayDestroy),
    PLAIN("cuImportExternalMemory", 10000, cuImportExternalMemory),
    PLAIN("cuDestroyExternalMemory", 10000, cuDestroyExternalMemory),
    PLAIN("cuGraphAddMemAllocNode", 11040, cuGraphAddMemAllocNode),
    PLAIN("cuGraphAddMemFreeNode", 11040, cuGraphAddMemFreeNode),
#undef PLAIN
};

void* OfTable(const char* symbol, int version) {
  const DriverTable& table = Device();
#define CISTERN_FIND(member, name, since, parameters) \
  if (std::strcmp(symbol, name) == 0 && since <= version) return AddressOf(table.member);
  CISTERN_DRIVER_FUNCTIONS(CISTERN_FIND)
#undef CISTERN_FIND
  return nullptr;
}

}  // namespace

EXPORT Status cuGetProcAddress_v2(const char* symbol, void** function, int version, unsigned long long flags, int* symbol_status) {
  const Entry* best = nullptr;
  for (const Entry& entry : kEntries) {
    if (std::strcmp(entry.symbol, symbol) != 0 || entry.version > version || (entry.is_per_thread && flags != 2)) continue;
    if (best == nullptr || entry.version > best->version || entry.is_per_thread) best = &entry;
  }
  *function = best != nullptr ? best->address : OfTable(symbol, version);
  if (symbol_status != nullptr) *symbol_status = *function == nullptr ? 1 : 0;
  return kSuccess;
}
