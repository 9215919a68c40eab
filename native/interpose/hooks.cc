// The driver's functions that allocate, free, or tell how much memory there is. Each calls the driver's own and
// passes on its answer; only a limit makes it answer for itself.
#include <cstring>

#include "interpose/control.h"
#include "interpose/driver.h"
#include "interpose/ledger.h"
#include "interpose/thread_scope.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace cistern::interpose {
namespace {

struct Array2D {  // CUDA_ARRAY_DESCRIPTOR
  std::size_t width, height;
  int format;
  unsigned channels;
};
struct Array3D {  // CUDA_ARRAY3D_DESCRIPTOR
  std::size_t width, height, depth;
  int format;
  unsigned channels, flags;
};
struct ExternalMemory {  // CUDA_EXTERNAL_MEMORY_HANDLE_DESC
  int type;
  void* handle[2];
  unsigned long long bytes;
  unsigned flags;
};
struct AllocationNode {  // CUDA_MEM_ALLOC_NODE_PARAMS
  PoolProperties properties;
  const void* access;
  std::size_t access_count;
  std::size_t bytes;
  DevicePointer pointer;
};
static_assert(offsetof(AllocationNode, bytes) == 104 && offsetof(ExternalMemory, bytes) == 24, "the driver's layout");
struct NodeParameters {  // CUgraphNodeParams
  int type;
  int reserved[3];
  union {
    AllocationNode allocation;
    DevicePointer freed;
    long long padding[29];
  };
};

constexpr unsigned kSparseOrDeferred = 0x40 | 0x80;  // arrays without memory

// What the driver is asked on the way. It answers without waiting for a device.
struct Questions {
  Status (*current_context)(Context*);
  Status (*current_device)(int*);
  Status (*is_capturing)(Stream, int*);
  Status (*is_capturing_per_thread)(Stream, int*);
  Status (*address_range)(DevicePointer*, std::size_t*, DevicePointer);
  Status (*primary_state)(DeviceOrdinal, unsigned*, int*);
};

const Questions& Ask() {
  static const Questions questions = [] {
    Questions found = {};
    const auto find = [](auto* function, const char* symbol, const char* exported, int version) {
      void* address = FindInDriver(symbol, exported, version);
      std::memcpy(function, &address, sizeof(address));
    };
    find(&found.current_context, "cuCtxGetCurrent", "cuCtxGetCurrent", 4000);
    find(&found.current_device, "cuCtxGetDevice", "cuCtxGetDevice", 2000);
    find(&found.is_capturing, "cuStreamIsCapturing", "cuStreamIsCapturing", 10000);
    find(&found.is_capturing_per_thread, "cuStreamIsCapturing", "cuStreamIsCapturing_ptsz", 10000);
    find(&found.address_range, "cuMemGetAddressRange", "cuMemGetAddressRange_v2", 3020);
    find(&found.primary_state, "cuDevicePrimaryCtxGetState", "cuDevicePrimaryCtxGetState", 7000);
    return found;
  }();
  return questions;
}

// The devices of contexts. A context that was destroyed is forgotten.
struct KnownContext {
  std::atomic<Context> context;
  std::atomic<int> device;
};
KnownContext known_contexts[kMostDevices];
std::atomic<Context> primary[kMostDevices];

int DeviceOf(Context context) {
  if (context == nullptr) return 0;
  KnownContext& known = known_contexts[reinterpret_cast<std::uintptr_t>(context) / 64 % kMostDevices];
  if (known.context.load(std::memory_order_acquire) == context) return known.device.load(std::memory_order_relaxed);
  int device = 0;
  if (Ask().current_device == nullptr || Ask().current_device(&device) != kSuccess || device < 0 || device >= kMostDevices) return 0;
  known.context.store(nullptr);
  known.device.store(device);
  known.context.store(context, std::memory_order_release);
  return device;
}

void Forget(Context context) {
  for (KnownContext& known : known_contexts) {
    if (known.context.load() == context) known.context.store(nullptr);
  }
  RemoveContext(context);
}

Context CurrentContext() {
  Context context = nullptr;
  if (Ask().current_context != nullptr) Ask().current_context(&context);
  return context;
}

constexpr int kCurrentDevice = -1;

// Whose memory it is: the library's that asks, unless the program has named an account. The limits of both hold.
struct Owner {
  std::uint16_t account;
  std::uint32_t limits;
};

Owner OwnerOf(const void* return_address) {
  const std::uint16_t library = CallerOf(return_address).account;
  const std::uint16_t named = CurrentScope().account;
  const std::uint32_t limits = AccountLimits(library);
  return named == 0 ? Owner{library, limits} : Owner{named, limits | AccountLimits(named)};
}

Request Asked(const char* way, int place, std::uint64_t bytes, std::uint64_t stream, const void* return_address) {
  const Context context = CurrentContext();
  const Owner owner = OwnerOf(return_address);
  return {way, place == kCurrentDevice ? DeviceOf(context) : place, bytes, stream, context, owner.account, owner.limits};
}

// Allocates: `call` asks the driver, `read` tells what it gave, and how many bytes.
struct Given {
  std::uint64_t value;
  std::uint64_t bytes;
};
template <typename Call, typename Read>
Status Allocate(const Request& request, Class kind, Call call, Read read) {
  const Nested nested;
  if (!Admit(request)) return kErrorOutOfMemory;
  const Status status = call();
  if (status != kSuccess) {
    Fail(request, status);
    return status;
  }
  const Given given = read();
  Add(request, kind, given.value, given.bytes);
  return status;
}

template <typename Call>
Status Free(Class kind, std::uint64_t value, std::uint64_t stream, Call call) {
  const Nested nested;
  const Freed freed = Remove(kind, value, stream);
  const Status status = call();
  Freeing(freed, status);
  return status;
}

std::uint64_t Handle(Stream stream, bool is_per_thread) {
  const auto handle = reinterpret_cast<std::uint64_t>(stream);
  return handle != 0 ? handle : is_per_thread ? 2 : 1;
}

bool IsCapturing(Stream stream, bool is_per_thread) {
  const auto ask = is_per_thread && Ask().is_capturing_per_thread != nullptr ? Ask().is_capturing_per_thread : Ask().is_capturing;
  int status = 0;
  return ask != nullptr && ask(stream, &status) == kSuccess && status != kCaptureNone;
}

template <typename T>
std::uint64_t Value(T* pointer) {
  return reinterpret_cast<std::uint64_t>(pointer);
}

int PlaceOf(MemLocation location, int otherwise) {
  if (location.type == kLocationDevice) return location.id >= 0 && location.id < kMostDevices ? location.id : 0;
  return location.type == kLocationNone ? otherwise : static_cast<int>(kPinned);
}

std::uint64_t BytesOfElement(int format, unsigned channels) {
  int bytes = 4;
  if (format == 0x01 || format == 0x08)
    bytes = 1;
  else if (format == 0x02 || format == 0x09 || format == 0x10)
    bytes = 2;
  return static_cast<std::uint64_t>(bytes) * (channels == 0 ? 1 : channels);
}

std::uint64_t AtLeastOne(std::uint64_t count) { return count == 0 ? 1 : count; }

std::uint64_t BytesOf(const Array3D& array) {
  if ((array.flags & kSparseOrDeferred) != 0) return 0;
  return array.width * AtLeastOne(array.height) * AtLeastOne(array.depth) * BytesOfElement(array.format, array.channels);
}

}  // namespace
}  // namespace cistern::interpose

using namespace cistern;
using namespace cistern::interpose;

// Declares a stand-in and its hook.
#define STAND_IN(exported, symbol, version, is_per_thread, parameters)                                                        \
  EXPORT Status exported parameters;                                                                                          \
  static Hook hook_of_##exported = {symbol, #exported, version, is_per_thread, reinterpret_cast<void*>(exported), {nullptr}}; \
  EXPORT Status exported parameters

// The driver's function. Without `cistern run`, and within another stand-in, nothing else is done.
#define REAL(exported, ...)                                                            \
  const auto real = reinterpret_cast<decltype(&exported)>(RealOf(hook_of_##exported)); \
  if (real == nullptr) return kErrorNotInitialized;                                    \
  if (!IsActive() || !IsOutermost()) return real(__VA_ARGS__)

// Plain memory.

STAND_IN(cuMemAlloc_v2, "cuMemAlloc", 3020, false, (DevicePointer * pointer, std::size_t bytes)) {
  REAL(cuMemAlloc_v2, pointer, bytes);
  return Allocate(
      Asked(nullptr, kCurrentDevice, bytes, kNoStream, __builtin_return_address(0)), Class::kAddress, [&] { return real(pointer, bytes); },
      [&] {
        return Given{*pointer, bytes};
      });
}

STAND_IN(cuMemAllocPitch_v2, "cuMemAllocPitch", 3020, false,
         (DevicePointer * pointer, std::size_t* pitch, std::size_t width, std::size_t height, unsigned element_bytes)) {
  REAL(cuMemAllocPitch_v2, pointer, pitch, width, height, element_bytes);
  return Allocate(
      Asked("cuMemAllocPitch", kCurrentDevice, width * height, kNoStream, __builtin_return_address(0)), Class::kAddress,
      [&] { return real(pointer, pitch, width, height, element_bytes); },
      [&] {
        return Given{*pointer, *pitch * height};
      });
}

STAND_IN(cuMemFree_v2, "cuMemFree", 3020, false, (DevicePointer pointer)) {
  REAL(cuMemFree_v2, pointer);
  return Free(Class::kAddress, pointer, kNoStream, [&] { return real(pointer); });
}

STAND_IN(cuMemAllocManaged, "cuMemAllocManaged", 6000, false, (DevicePointer * pointer, std::size_t bytes, unsigned flags)) {
  REAL(cuMemAllocManaged, pointer, bytes, flags);
  return Allocate(
      Asked(nullptr, kManaged, bytes, kNoStream, __builtin_return_address(0)), Class::kAddress, [&] { return real(pointer, bytes, flags); },
      [&] {
        return Given{*pointer, bytes};
      });
}

// Memory of the host.

STAND_IN(cuMemAllocHost_v2, "cuMemAllocHost", 3020, false, (void** pointer, std::size_t bytes)) {
  REAL(cuMemAllocHost_v2, pointer, bytes);
  return Allocate(
      Asked("cuMemAllocHost", kPinned, bytes, kNoStream, __builtin_return_address(0)), Class::kAddress,
      [&] { return real(pointer, bytes); },
      [&] {
        return Given{Value(*pointer), bytes};
      });
}

STAND_IN(cuMemHostAlloc, "cuMemHostAlloc", 2020, false, (void** pointer, std::size_t bytes, unsigned flags)) {
  REAL(cuMemHostAlloc, pointer, bytes, flags);
  return Allocate(
      Asked(nullptr, kPinned, bytes, kNoStream, __builtin_return_address(0)), Class::kAddress, [&] { return real(pointer, bytes, flags); },
      [&] {
        return Given{Value(*pointer), bytes};
      });
}

STAND_IN(cuMemFreeHost, "cuMemFreeHost", 2000, false, (void* pointer)) {
  REAL(cuMemFreeHost, pointer);
  return Free(Class::kAddress, Value(pointer), kNoStream, [&] { return real(pointer); });
}

STAND_IN(cuMemHostRegister_v2, "cuMemHostRegister", 6050, false, (void* pointer, std::size_t bytes, unsigned flags)) {
  REAL(cuMemHostRegister_v2, pointer, bytes, flags);
  return Allocate(
      Asked(nullptr, kRegistered, bytes, kNoStream, __builtin_return_address(0)), Class::kRegistered,
      [&] { return real(pointer, bytes, flags); },
      [&] {
        return Given{Value(pointer), bytes};
      });
}

STAND_IN(cuMemHostUnregister, "cuMemHostUnregister", 4000, false, (void* pointer)) {
  REAL(cuMemHostUnregister, pointer);
  return Free(Class::kRegistered, Value(pointer), kNoStream, [&] { return real(pointer); });
}

// Memory in stream order. On a stream that is captured, it is memory of the graph.

namespace {

template <typename Call>
Status AllocateAsync(const char* way, DevicePointer* pointer, std::size_t bytes, int place, Stream stream, bool is_per_thread,
                     const void* return_address, Call call) {
  const int where = IsCapturing(stream, is_per_thread) ? static_cast<int>(kGraph) : place;
  return Allocate(Asked(way, where, bytes, Handle(stream, is_per_thread), return_address), Class::kAddress, call, [&] {
    return Given{*pointer, bytes};
  });
}

// The place of a pool that was created or asked for: otherwise it is the device's.
int PlaceOfPool(Pool pool) {
  const int place = PoolPlace(pool);
  return place < 0 ? kCurrentDevice : place;
}

}  // namespace

STAND_IN(cuMemAllocAsync, "cuMemAllocAsync", 11020, false, (DevicePointer * pointer, std::size_t bytes, Stream stream)) {
  REAL(cuMemAllocAsync, pointer, bytes, stream);
  return AllocateAsync("cuMemAllocAsync", pointer, bytes, kCurrentDevice, stream, false, __builtin_return_address(0),
                       [&] { return real(pointer, bytes, stream); });
}

STAND_IN(cuMemAllocAsync_ptsz, "cuMemAllocAsync", 11020, true, (DevicePointer * pointer, std::size_t bytes, Stream stream)) {
  REAL(cuMemAllocAsync_ptsz, pointer, bytes, stream);
  return AllocateAsync("cuMemAllocAsync", pointer, bytes, kCurrentDevice, stream, true, __builtin_return_address(0),
                       [&] { return real(pointer, bytes, stream); });
}

STAND_IN(cuMemAllocFromPoolAsync, "cuMemAllocFromPoolAsync", 11020, false,
         (DevicePointer * pointer, std::size_t bytes, Pool pool, Stream stream)) {
  REAL(cuMemAllocFromPoolAsync, pointer, bytes, pool, stream);
  return AllocateAsync("cuMemAllocFromPoolAsync", pointer, bytes, PlaceOfPool(pool), stream, false, __builtin_return_address(0),
                       [&] { return real(pointer, bytes, pool, stream); });
}

STAND_IN(cuMemAllocFromPoolAsync_ptsz, "cuMemAllocFromPoolAsync", 11020, true,
         (DevicePointer * pointer, std::size_t bytes, Pool pool, Stream stream)) {
  REAL(cuMemAllocFromPoolAsync_ptsz, pointer, bytes, pool, stream);
  return AllocateAsync("cuMemAllocFromPoolAsync", pointer, bytes, PlaceOfPool(pool), stream, true, __builtin_return_address(0),
                       [&] { return real(pointer, bytes, pool, stream); });
}

STAND_IN(cuMemFreeAsync, "cuMemFreeAsync", 11020, false, (DevicePointer pointer, Stream stream)) {
  REAL(cuMemFreeAsync, pointer, stream);
  return Free(Class::kAddress, pointer, Handle(stream, false), [&] { return real(pointer, stream); });
}

STAND_IN(cuMemFreeAsync_ptsz, "cuMemFreeAsync", 11020, true, (DevicePointer pointer, Stream stream)) {
  REAL(cuMemFreeAsync_ptsz, pointer, stream);
  return Free(Class::kAddress, pointer, Handle(stream, true), [&] { return real(pointer, stream); });
}

namespace {

// A pool that the driver has, or one that the program has made the current one of a device, whose place is known.
Status Got(Status status, Pool* pool, int place) {
  if (status == kSuccess && PoolPlace(*pool) < 0) SetPoolPlace(*pool, place);
  return status;
}

int PlaceOfPools(const MemLocation* location, int type) {
  return type == kAllocationTypeManaged ? static_cast<int>(kManaged) : PlaceOf(*location, 0);
}

}  // namespace

STAND_IN(cuMemPoolCreate, "cuMemPoolCreate", 11020, false, (Pool * pool, const PoolProperties* properties)) {
  REAL(cuMemPoolCreate, pool, properties);
  const Status status = real(pool, properties);
  if (status == kSuccess) {
    SetPoolPlace(*pool, PlaceOfPools(&properties->location, properties->alloc_type));
  }
  return status;
}

STAND_IN(cuDeviceGetDefaultMemPool, "cuDeviceGetDefaultMemPool", 11020, false, (Pool * pool, DeviceOrdinal device)) {
  REAL(cuDeviceGetDefaultMemPool, pool, device);
  return Got(real(pool, device), pool, device < kMostDevices ? device : 0);
}

STAND_IN(cuDeviceGetMemPool, "cuDeviceGetMemPool", 11020, false, (Pool * pool, DeviceOrdinal device)) {
  REAL(cuDeviceGetMemPool, pool, device);
  return Got(real(pool, device), pool, device < kMostDevices ? device : 0);
}

STAND_IN(cuMemGetDefaultMemPool, "cuMemGetDefaultMemPool", 13000, false, (Pool * pool, MemLocation* location, int type)) {
  REAL(cuMemGetDefaultMemPool, pool, location, type);
  return Got(real(pool, location, type), pool, PlaceOfPools(location, type));
}

STAND_IN(cuMemGetMemPool, "cuMemGetMemPool", 13000, false, (Pool * pool, MemLocation* location, int type)) {
  REAL(cuMemGetMemPool, pool, location, type);
  return Got(real(pool, location, type), pool, PlaceOfPools(location, type));
}

STAND_IN(cuMemPoolDestroy, "cuMemPoolDestroy", 11020, false, (Pool pool)) {
  REAL(cuMemPoolDestroy, pool);
  const Status status = real(pool);
  if (status == kSuccess) SetPoolPlace(pool, -1);
  return status;
}

// Virtual memory.

STAND_IN(cuMemCreate, "cuMemCreate", 10020, false,
         (MemoryHandle * handle, std::size_t bytes, const AllocationProperties* properties, unsigned long long flags)) {
  REAL(cuMemCreate, handle, bytes, properties, flags);
  const int place = properties == nullptr ? 0 : PlaceOf(properties->location, 0);
  const Request request = Asked("cuMemCreate", place, bytes, kNoStream, __builtin_return_address(0));
  const Nested nested;
  if (!Admit(request)) return kErrorOutOfMemory;
  const Status status = real(handle, bytes, properties, flags);
  if (status == kSuccess)
    AddMemory(request, *handle, false);
  else
    Fail(request, status);
  return status;
}

STAND_IN(cuMemImportFromShareableHandle, "cuMemImportFromShareableHandle", 10020, false, (MemoryHandle * handle, void* shared, int type)) {
  REAL(cuMemImportFromShareableHandle, handle, shared, type);
  const Request request = Asked(nullptr, kImported, 0, kNoStream, __builtin_return_address(0));
  const Status status = real(handle, shared, type);
  if (status == kSuccess) AddMemory(request, *handle, true);
  return status;
}

STAND_IN(cuMemRetainAllocationHandle, "cuMemRetainAllocationHandle", 11000, false, (MemoryHandle * handle, void* address)) {
  REAL(cuMemRetainAllocationHandle, handle, address);
  const Status status = real(handle, address);
  if (status == kSuccess) RetainMemory(*handle, Value(address));
  return status;
}

STAND_IN(cuMemRelease, "cuMemRelease", 10020, false, (MemoryHandle handle)) {
  REAL(cuMemRelease, handle);
  const Nested nested;
  const Releasing releasing = BeginRelease(handle);
  const Status status = real(handle);
  EndRelease(releasing, status);
  return status;
}

STAND_IN(cuMemMap, "cuMemMap", 10020, false,
         (DevicePointer address, std::size_t bytes, std::size_t offset, MemoryHandle handle, unsigned long long flags)) {
  REAL(cuMemMap, address, bytes, offset, handle, flags);
  const Status status = real(address, bytes, offset, handle, flags);
  if (status == kSuccess) MapMemory(address, bytes, handle);
  return status;
}

STAND_IN(cuMemUnmap, "cuMemUnmap", 10020, false, (DevicePointer address, std::size_t bytes)) {
  REAL(cuMemUnmap, address, bytes);
  const Nested nested;
  const Status status = real(address, bytes);
  if (status == kSuccess) UnmapMemory(address, bytes);
  return status;
}

// Memory of others.

namespace {

// The size is asked for afterwards. What others have allocated is not limited.
template <typename Call>
Status Import(const char* way, DevicePointer* pointer, const void* return_address, Call call) {
  return Allocate(Asked(way, kImported, 0, kNoStream, return_address), Class::kAddress, call, [&] {
    DevicePointer base = 0;
    std::size_t bytes = 0;
    if (Ask().address_range != nullptr) Ask().address_range(&base, &bytes, *pointer);
    return Given{*pointer, bytes};
  });
}

}  // namespace

STAND_IN(cuIpcOpenMemHandle_v2, "cuIpcOpenMemHandle", 11000, false, (DevicePointer * pointer, IpcMemoryHandle handle, unsigned flags)) {
  REAL(cuIpcOpenMemHandle_v2, pointer, handle, flags);
  return Import("cuIpcOpenMemHandle", pointer, __builtin_return_address(0), [&] { return real(pointer, handle, flags); });
}

STAND_IN(cuIpcCloseMemHandle, "cuIpcCloseMemHandle", 4010, false, (DevicePointer pointer)) {
  REAL(cuIpcCloseMemHandle, pointer);
  return Free(Class::kAddress, pointer, kNoStream, [&] { return real(pointer); });
}

STAND_IN(cuMemPoolImportPointer, "cuMemPoolImportPointer", 11020, false, (DevicePointer * pointer, Pool pool, PoolPointerData* data)) {
  REAL(cuMemPoolImportPointer, pointer, pool, data);
  return Import("cuMemPoolImportPointer", pointer, __builtin_return_address(0), [&] { return real(pointer, pool, data); });
}

STAND_IN(cuImportExternalMemory, "cuImportExternalMemory", 10000, false, (void** memory, const ExternalMemory* description)) {
  REAL(cuImportExternalMemory, memory, description);
  return Allocate(
      Asked("cuImportExternalMemory", kImported, description == nullptr ? 0 : description->bytes, kNoStream, __builtin_return_address(0)),
      Class::kExternalMemory, [&] { return real(memory, description); },
      [&] {
        return Given{Value(*memory), description->bytes};
      });
}

STAND_IN(cuDestroyExternalMemory, "cuDestroyExternalMemory", 10000, false, (void* memory)) {
  REAL(cuDestroyExternalMemory, memory);
  return Free(Class::kExternalMemory, Value(memory), kNoStream, [&] { return real(memory); });
}

// Arrays. The driver does not tell how large they are: this is what their elements need.

STAND_IN(cuArrayCreate_v2, "cuArrayCreate", 3020, false, (void** array, const Array2D* description)) {
  REAL(cuArrayCreate_v2, array, description);
  const Array2D is = description == nullptr ? Array2D{} : *description;
  const std::uint64_t bytes = BytesOf({is.width, is.height, 0, is.format, is.channels, 0});
  return Allocate(
      Asked("cuArrayCreate", kCurrentDevice, bytes, kNoStream, __builtin_return_address(0)), Class::kArray,
      [&] { return real(array, description); },
      [&] {
        return Given{Value(*array), bytes};
      });
}

STAND_IN(cuArray3DCreate_v2, "cuArray3DCreate", 3020, false, (void** array, const Array3D* description)) {
  REAL(cuArray3DCreate_v2, array, description);
  const std::uint64_t bytes = description == nullptr ? 0 : BytesOf(*description);
  return Allocate(
      Asked("cuArray3DCreate", kCurrentDevice, bytes, kNoStream, __builtin_return_address(0)), Class::kArray,
      [&] { return real(array, description); },
      [&] {
        return Given{Value(*array), bytes};
      });
}

STAND_IN(cuArrayDestroy, "cuArrayDestroy", 2000, false, (void* array)) {
  REAL(cuArrayDestroy, array);
  return Free(Class::kArray, Value(array), kNoStream, [&] { return real(array); });
}

STAND_IN(cuMipmappedArrayCreate, "cuMipmappedArrayCreate", 5000, false, (void** array, const Array3D* description, unsigned levels)) {
  REAL(cuMipmappedArrayCreate, array, description, levels);
  std::uint64_t bytes = 0;
  if (description != nullptr) {
    Array3D level = *description;
    for (unsigned i = 0; i < levels && i < 32; i++) {
      bytes += BytesOf(level);
      level.width = AtLeastOne(level.width / 2), level.height /= 2, level.depth /= 2;
    }
  }
  return Allocate(
      Asked("cuMipmappedArrayCreate", kCurrentDevice, bytes, kNoStream, __builtin_return_address(0)), Class::kArray,
      [&] { return real(array, description, levels); },
      [&] {
        return Given{Value(*array), bytes};
      });
}

STAND_IN(cuMipmappedArrayDestroy, "cuMipmappedArrayDestroy", 5000, false, (void* array)) {
  REAL(cuMipmappedArrayDestroy, array);
  return Free(Class::kArray, Value(array), kNoStream, [&] { return real(array); });
}

// Nodes of graphs. The memory is the driver's, who gives it to a graph when that runs.

STAND_IN(cuGraphAddMemAllocNode, "cuGraphAddMemAllocNode", 11040, false,
         (GraphNode * node, Graph graph, const GraphNode* dependencies, std::size_t count, AllocationNode* parameters)) {
  REAL(cuGraphAddMemAllocNode, node, graph, dependencies, count, parameters);
  return Allocate(
      Asked("cuGraphAddMemAllocNode", kGraph, parameters == nullptr ? 0 : parameters->bytes, kNoStream, __builtin_return_address(0)),
      Class::kAddress, [&] { return real(node, graph, dependencies, count, parameters); },
      [&] {
        return Given{parameters->pointer, parameters->bytes};
      });
}

STAND_IN(cuGraphAddMemFreeNode, "cuGraphAddMemFreeNode", 11040, false,
         (GraphNode * node, Graph graph, const GraphNode* dependencies, std::size_t count, DevicePointer pointer)) {
  REAL(cuGraphAddMemFreeNode, node, graph, dependencies, count, pointer);
  return Free(Class::kAddress, pointer, kNoStream, [&] { return real(node, graph, dependencies, count, pointer); });
}

namespace {

template <typename Call>
Status AddNode(NodeParameters* parameters, const void* return_address, Call call) {
  if (parameters != nullptr && parameters->type == kNodeAllocation) {
    AllocationNode& node = parameters->allocation;
    return Allocate(Asked("cuGraphAddMemAllocNode", kGraph, node.bytes, kNoStream, return_address), Class::kAddress, call, [&] {
      return Given{node.pointer, node.bytes};
    });
  }
  if (parameters != nullptr && parameters->type == kNodeFree) return Free(Class::kAddress, parameters->freed, kNoStream, call);
  return call();
}

}  // namespace

STAND_IN(cuGraphAddNode, "cuGraphAddNode", 12020, false,
         (GraphNode * node, Graph graph, const GraphNode* dependencies, std::size_t count, NodeParameters* parameters)) {
  REAL(cuGraphAddNode, node, graph, dependencies, count, parameters);
  return AddNode(parameters, __builtin_return_address(0), [&] { return real(node, graph, dependencies, count, parameters); });
}

STAND_IN(cuGraphAddNode_v2, "cuGraphAddNode", 12030, false,
         (GraphNode * node, Graph graph, const GraphNode* dependencies, const void* edges, std::size_t count, NodeParameters* parameters)) {
  REAL(cuGraphAddNode_v2, node, graph, dependencies, edges, count, parameters);
  return AddNode(parameters, __builtin_return_address(0), [&] { return real(node, graph, dependencies, edges, count, parameters); });
}

// Contexts take what was allocated in them along.

STAND_IN(cuCtxDestroy_v2, "cuCtxDestroy", 4000, false, (Context context)) {
  REAL(cuCtxDestroy_v2, context);
  const Nested nested;
  const Status status = real(context);
  if (status == kSuccess) Forget(context);
  return status;
}

STAND_IN(cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", 7000, false, (Context * context, DeviceOrdinal device)) {
  REAL(cuDevicePrimaryCtxRetain, context, device);
  const Status status = real(context, device);
  if (status == kSuccess && device >= 0 && device < kMostDevices) primary[device].store(*context);
  return status;
}

namespace {

template <typename Call>
Status EndPrimary(DeviceOrdinal device, Call call) {
  const Nested nested;
  const Status status = call();
  unsigned flags = 0;
  int is_active = 1;
  if (status == kSuccess && device >= 0 && device < kMostDevices && Ask().primary_state != nullptr &&
      Ask().primary_state(device, &flags, &is_active) == kSuccess && is_active == 0)
    Forget(primary[device].load());
  return status;
}

}  // namespace

STAND_IN(cuDevicePrimaryCtxRelease_v2, "cuDevicePrimaryCtxRelease", 11000, false, (DeviceOrdinal device)) {
  REAL(cuDevicePrimaryCtxRelease_v2, device);
  return EndPrimary(device, [&] { return real(device); });
}

STAND_IN(cuDevicePrimaryCtxReset_v2, "cuDevicePrimaryCtxReset", 11000, false, (DeviceOrdinal device)) {
  REAL(cuDevicePrimaryCtxReset_v2, device);
  return EndPrimary(device, [&] { return real(device); });
}

// How much there is, as far as the limits allow.

STAND_IN(cuMemGetInfo_v2, "cuMemGetInfo", 3020, false, (std::size_t * free, std::size_t* total)) {
  REAL(cuMemGetInfo_v2, free, total);
  const Status status = real(free, total);
  if (status != kSuccess) return status;
  std::uint64_t left, smallest;
  Remaining(OwnerOf(__builtin_return_address(0)).limits, &left, &smallest);
  if (free != nullptr && left < *free) *free = left;
  if (total != nullptr && smallest < *total) *total = smallest;
  return status;
}

STAND_IN(cuDeviceTotalMem_v2, "cuDeviceTotalMem", 3020, false, (std::size_t * bytes, DeviceOrdinal device)) {
  REAL(cuDeviceTotalMem_v2, bytes, device);
  const Status status = real(bytes, device);
  if (status != kSuccess) return status;
  std::uint64_t left, smallest;
  Remaining(OwnerOf(__builtin_return_address(0)).limits, &left, &smallest);
  if (bytes != nullptr && smallest < *bytes) *bytes = smallest;
  return status;
}

namespace cistern::interpose {

extern Hook get_proc_address_v2;
extern Hook get_proc_address;

namespace {

Hook* const kAll[] = {
    &get_proc_address_v2,
    &get_proc_address,
    &hook_of_cuMemAlloc_v2,
    &hook_of_cuMemAllocPitch_v2,
    &hook_of_cuMemFree_v2,
    &hook_of_cuMemAllocManaged,
    &hook_of_cuMemAllocHost_v2,
    &hook_of_cuMemHostAlloc,
    &hook_of_cuMemFreeHost,
    &hook_of_cuMemHostRegister_v2,
    &hook_of_cuMemHostUnregister,
    &hook_of_cuMemAllocAsync,
    &hook_of_cuMemAllocAsync_ptsz,
    &hook_of_cuMemAllocFromPoolAsync,
    &hook_of_cuMemAllocFromPoolAsync_ptsz,
    &hook_of_cuMemFreeAsync,
    &hook_of_cuMemFreeAsync_ptsz,
    &hook_of_cuMemPoolCreate,
    &hook_of_cuDeviceGetDefaultMemPool,
    &hook_of_cuDeviceGetMemPool,
    &hook_of_cuMemGetDefaultMemPool,
    &hook_of_cuMemGetMemPool,
    &hook_of_cuMemPoolDestroy,
    &hook_of_cuMemCreate,
    &hook_of_cuMemImportFromShareableHandle,
    &hook_of_cuMemRetainAllocationHandle,
    &hook_of_cuMemRelease,
    &hook_of_cuMemMap,
    &hook_of_cuMemUnmap,
    &hook_of_cuIpcOpenMemHandle_v2,
    &hook_of_cuIpcCloseMemHandle,
    &hook_of_cuMemPoolImportPointer,
    &hook_of_cuImportExternalMemory,
    &hook_of_cuDestroyExternalMemory,
    &hook_of_cuArrayCreate_v2,
    &hook_of_cuArray3DCreate_v2,
    &hook_of_cuArrayDestroy,
    &hook_of_cuMipmappedArrayCreate,
    &hook_of_cuMipmappedArrayDestroy,
    &hook_of_cuGraphAddMemAllocNode,
    &hook_of_cuGraphAddMemFreeNode,
    &hook_of_cuGraphAddNode,
    &hook_of_cuGraphAddNode_v2,
    &hook_of_cuCtxDestroy_v2,
    &hook_of_cuDevicePrimaryCtxRetain,
    &hook_of_cuDevicePrimaryCtxRelease_v2,
    &hook_of_cuDevicePrimaryCtxReset_v2,
    &hook_of_cuMemGetInfo_v2,
    &hook_of_cuDeviceTotalMem_v2,
};

}  // namespace

Hook* const* const kHooks = kAll;
const int kHookCount = sizeof(kAll) / sizeof(kAll[0]);

}  // namespace cistern::interpose
