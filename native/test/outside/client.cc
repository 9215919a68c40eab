// A program that knows nothing of cistern, and reaches the driver in every way. It prints what the driver answers.
//
//     client none                  does not use the driver
//     client ways                  allocates in each way
//     client random SEED STEPS     makes random calls, and prints after each its answer and what the driver counts
//     client threads SECONDS       allocates on several threads, and ends while they do; 0: never
//     client fork                  allocates in a child, and in itself
//     client newer                 asks for a form of a function that only a later driver has
//     client next                  asks dlsym for the next function of a name
//     client take BYTES COUNT [managed [free]]  allocates, device or managed memory, tells what is left, and ends
//     client runtimes              allocates with a copy of cudart that is linked statically, and with one that is not
//     client owners                prints whose function it gets, in each way, for one that allocates and two that do not
//     client unload LIBRARY …      loads each library, allocates with it, closes it and the driver, three times over
//     client bench CALLS           measures allocations, frees, and a call that does neither: JSON, in nanoseconds
#include <pthread.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "structures.h"
#include "way.h"

using namespace cistern;
using namespace outside;

extern "C" {
int linked_allocate(DevicePointer* pointer, std::size_t bytes);
int linked_free(DevicePointer pointer);
void* linked_next();
// Of the copy of cudart.cc in this program.
int cudaMalloc(void** pointer, std::size_t bytes);
int cudaFree(void* pointer);
}

namespace {

// All functions, found in one way.
struct Functions {
#define FUNCTION(member, symbol, exported, version, parameters) Status(*member) parameters;
#define FUNCTIONS(X)                                                                                                              \
  X(init, "cuInit", "cuInit", 2000, (unsigned))                                                                                   \
  X(retain, "cuDevicePrimaryCtxRetain", "cuDevicePrimaryCtxRetain", 7000, (Context*, int))                                        \
  X(set_current, "cuCtxSetCurrent", "cuCtxSetCurrent", 4000, (Context))                                                           \
  X(create_stream, "cuStreamCreateWithPriority", "cuStreamCreateWithPriority", 5050, (Stream*, unsigned, int))                    \
  X(synchronize, "cuStreamSynchronize", "cuStreamSynchronize", 2000, (Stream))                                                    \
  X(info, "cuMemGetInfo", "cuMemGetInfo_v2", 3020, (std::size_t*, std::size_t*))                                                  \
  X(total, "cuDeviceTotalMem", "cuDeviceTotalMem_v2", 3020, (std::size_t*, int))                                                  \
  X(allocate, "cuMemAlloc", "cuMemAlloc_v2", 3020, (DevicePointer*, std::size_t))                                                 \
  X(pitch, "cuMemAllocPitch", "cuMemAllocPitch_v2", 3020, (DevicePointer*, std::size_t*, std::size_t, std::size_t, unsigned))     \
  X(free, "cuMemFree", "cuMemFree_v2", 3020, (DevicePointer))                                                                     \
  X(managed, "cuMemAllocManaged", "cuMemAllocManaged", 6000, (DevicePointer*, std::size_t, unsigned))                             \
  X(host, "cuMemHostAlloc", "cuMemHostAlloc", 2020, (void**, std::size_t, unsigned))                                              \
  X(free_host, "cuMemFreeHost", "cuMemFreeHost", 2000, (void*))                                                                   \
  X(enroll, "cuMemHostRegister", "cuMemHostRegister_v2", 6050, (void*, std::size_t, unsigned))                                    \
  X(unenroll, "cuMemHostUnregister", "cuMemHostUnregister", 4000, (void*))                                                        \
  X(async, "cuMemAllocAsync", "cuMemAllocAsync", 11020, (DevicePointer*, std::size_t, Stream))                                    \
  X(from_pool, "cuMemAllocFromPoolAsync", "cuMemAllocFromPoolAsync", 11020, (DevicePointer*, std::size_t, Pool, Stream))          \
  X(free_async, "cuMemFreeAsync", "cuMemFreeAsync", 11020, (DevicePointer, Stream))                                               \
  X(default_pool, "cuDeviceGetDefaultMemPool", "cuDeviceGetDefaultMemPool", 11020, (Pool*, int))                                  \
  X(reserve, "cuMemAddressReserve", "cuMemAddressReserve", 10020,                                                                 \
    (DevicePointer*, std::size_t, std::size_t, DevicePointer, unsigned long long))                                                \
  X(create, "cuMemCreate", "cuMemCreate", 10020, (MemoryHandle*, std::size_t, const AllocationProperties*, unsigned long long))   \
  X(release, "cuMemRelease", "cuMemRelease", 10020, (MemoryHandle))                                                               \
  X(retain_handle, "cuMemRetainAllocationHandle", "cuMemRetainAllocationHandle", 11000, (MemoryHandle*, void*))                   \
  X(map, "cuMemMap", "cuMemMap", 10020, (DevicePointer, std::size_t, std::size_t, MemoryHandle, unsigned long long))              \
  X(unmap, "cuMemUnmap", "cuMemUnmap", 10020, (DevicePointer, std::size_t))                                                       \
  X(create_array, "cuArrayCreate", "cuArrayCreate_v2", 3020, (void**, const ArrayShape*))                                         \
  X(destroy_array, "cuArrayDestroy", "cuArrayDestroy", 2000, (void*))                                                             \
  X(import, "cuImportExternalMemory", "cuImportExternalMemory", 10000, (void**, const ExternalMemory*))                           \
  X(destroy_import, "cuDestroyExternalMemory", "cuDestroyExternalMemory", 10000, (void*))                                         \
  X(add_node, "cuGraphAddMemAllocNode", "cuGraphAddMemAllocNode", 11040,                                                          \
    (GraphNode*, Graph, const GraphNode*, std::size_t, AllocationNode*))                                                          \
  X(add_free_node, "cuGraphAddMemFreeNode", "cuGraphAddMemFreeNode", 11040,                                                       \
    (GraphNode*, Graph, const GraphNode*, std::size_t, DevicePointer))                                                            \
  X(add_any_node, "cuGraphAddNode", "cuGraphAddNode", 12020, (GraphNode*, Graph, const GraphNode*, std::size_t, NodeParameters*)) \
  X(add_any_node_v2, "cuGraphAddNode", "cuGraphAddNode_v2", 12030,                                                                \
    (GraphNode*, Graph, const GraphNode*, const void*, std::size_t, NodeParameters*))                                             \
  X(old_host, "cuMemAllocHost", "cuMemAllocHost_v2", 3020, (void**, std::size_t))                                                 \
  X(create_pool, "cuMemPoolCreate", "cuMemPoolCreate", 11020, (Pool*, const PoolProperties*))                                     \
  X(current_pool, "cuDeviceGetMemPool", "cuDeviceGetMemPool", 11020, (Pool*, int))                                                \
  X(default_pool_at, "cuMemGetDefaultMemPool", "cuMemGetDefaultMemPool", 13000, (Pool*, MemLocation*, int))                       \
  X(pool_at, "cuMemGetMemPool", "cuMemGetMemPool", 13000, (Pool*, MemLocation*, int))                                             \
  X(import_handle, "cuMemImportFromShareableHandle", "cuMemImportFromShareableHandle", 10020, (MemoryHandle*, void*, int))        \
  X(open_ipc, "cuIpcOpenMemHandle", "cuIpcOpenMemHandle_v2", 11000, (DevicePointer*, IpcMemoryHandle, unsigned))                  \
  X(close_ipc, "cuIpcCloseMemHandle", "cuIpcCloseMemHandle", 4010, (DevicePointer))                                               \
  X(import_pointer, "cuMemPoolImportPointer", "cuMemPoolImportPointer", 11020, (DevicePointer*, Pool, PoolPointerData*))          \
  X(create_array_3d, "cuArray3DCreate", "cuArray3DCreate_v2", 3020, (void**, const ArrayShape3D*))                                \
  X(create_mipmaps, "cuMipmappedArrayCreate", "cuMipmappedArrayCreate", 5000, (void**, const ArrayShape3D*, unsigned))            \
  X(destroy_mipmaps, "cuMipmappedArrayDestroy", "cuMipmappedArrayDestroy", 5000, (void*))                                         \
  X(begin_capture, "cuStreamBeginCapture", "cuStreamBeginCapture_v2", 10010, (Stream, int))                                       \
  X(end_capture, "cuStreamEndCapture", "cuStreamEndCapture", 10000, (Stream, Graph*))                                             \
  X(create_context, "cuCtxCreate", "cuCtxCreate_v2", 3020, (Context*, unsigned, int))                                             \
  X(destroy_context, "cuCtxDestroy", "cuCtxDestroy_v2", 4000, (Context))                                                          \
  X(reset, "cuDevicePrimaryCtxReset", "cuDevicePrimaryCtxReset_v2", 11000, (int))
  FUNCTIONS(FUNCTION)
#undef FUNCTION
  Context context = nullptr;

  explicit Functions(Way way) {
#define FIND(member, symbol, exported, version, parameters) member = way.Find<decltype(member)>(symbol, exported, version);
    FUNCTIONS(FIND)
#undef FIND
    init(0);
    retain(&context, 0);
    set_current(context);
  }
};

long long Used() {
  static const auto used = reinterpret_cast<long long (*)()>(dlsym(outside::Driver(), "test_driver_used"));
  return used();
}

int Ways() {
  DevicePointer pointer;
  for (const Way::Kind kind : {Way::kDlsym, Way::kLegacy, Way::kPerThread, Way::kOldProcAddress}) {
    const Functions functions({kind});
    printf("%d\n", functions.allocate(&pointer, 1000 + kind));
    // Nothing that was looked for on the way has left an error behind.
    if (const char* error = dlerror()) {
      fprintf(stderr, "%s\n", error);
      return 5;
    }
    printf("%d\n", functions.free(pointer));
    printf("%d\n", functions.async(&pointer, 2000 + kind, nullptr));
    printf("%d\n", functions.free_async(pointer, nullptr));
  }
  printf("%d\n", linked_allocate(&pointer, 3000));
  printf("%d\n", linked_free(pointer));
  return 0;
}

// What is freed by which function. Memory that is virtual belongs to no context.
enum class Kind { kPlain, kHost, kAsync, kHandle, kMapping, kArray, kMipmaps, kExternal, kNode, kAnyNode, kRegistered, kIpc };

struct Live {
  Kind kind;
  std::uint64_t value;
  bool is_used;  // a handle that was mapped
  Context context;
};

constexpr std::size_t kPage = std::size_t{2} << 20;

// A program of random calls. After each step it prints what the driver answered, and what it counts.
class RandomProgram {
 public:
  explicit RandomProgram(unsigned seed) : random_(seed), pages_(64) {
    const Functions& functions = ways_[0];
    own_ = current_ = functions.context;
    functions.create_stream(&stream_, 1, 0);
    functions.default_pool(&pools_[0], 0);
    // Pools of a device, of the host, and of managed memory, made here and the driver's own.
    for (int i = 1; i < 4; i++) {
      PoolProperties properties = {};
      properties.alloc_type = i == 3 ? kAllocationTypeManaged : kAllocationTypePinned;
      properties.location = {i == 2 ? kLocationHost : kLocationDevice, 0};
      if (functions.create_pool(&pools_[i], &properties) != 0) pools_[i] = pools_[0];
    }
    functions.current_pool(&pools_[4], 0);
    MemLocation host = {kLocationHost, 0};
    MemLocation device = {kLocationDevice, 0};
    if (functions.default_pool_at(&pools_[5], &host, kAllocationTypePinned) != 0) pools_[5] = pools_[0];
    if (functions.pool_at(&pools_[6], &device, kAllocationTypeManaged) != 0) pools_[6] = pools_[0];
    functions.reserve(&addresses_, 64 * kPage, 0, 0, 0);
  }

  void Run(int steps) {
    for (int step = 0; step < steps; step++) {
      const unsigned kind = Below(42);
      const int status = kind < 16 && !live_.empty() ? Free() : Act(kind % 26);
      End(step, kind, status);
    }
    // The context takes along what is still there.
    End(steps, 0, ways_[0].reset(0));
  }

 private:
  unsigned Below(unsigned most) { return static_cast<unsigned>(random_() % most); }

  // Recordings show where steps end.
  void End(int step, unsigned kind, int status) {
    alignas(4096) static char mark[3 * 4096];
    const int marked = ways_[0].enroll(mark, sizeof(mark), 0);
    ways_[0].unenroll(mark);
    printf("%d %u %d %d %lld\n", step, kind, status, marked, Used());
  }

  void Keep(Kind kind, std::uint64_t value, int status) {
    if (status == 0) live_.push_back({kind, value, false, kind == Kind::kHandle || kind == Kind::kMapping ? nullptr : current_});
  }
  void Keep(Kind kind, void* value, int status) { Keep(kind, reinterpret_cast<std::uint64_t>(value), status); }

  Live* Find(Kind kind) {
    const auto found = std::find_if(live_.begin(), live_.end(), [&](const Live& each) { return each.kind == kind && !each.is_used; });
    return found == live_.end() ? nullptr : &*found;
  }

  int Free() {
    const Functions& functions = ways_[Below(4)];
    const std::size_t index = Below(static_cast<unsigned>(live_.size()));
    const Live each = live_[index];
    live_.erase(live_.begin() + static_cast<std::ptrdiff_t>(index));
    void* pointer = reinterpret_cast<void*>(each.value);
    GraphNode node;
    NodeParameters parameters = {};
    parameters.type = kNodeFree;
    parameters.freed = each.value;
    switch (each.kind) {
      case Kind::kPlain:
        return functions.free(each.value);
      case Kind::kHost:
        return functions.free_host(pointer);
      case Kind::kAsync:
        return functions.free_async(each.value, stream_);
      case Kind::kHandle:
        return functions.release(each.value);
      case Kind::kMapping:
        pages_[(each.value - addresses_) / kPage] = false;
        return functions.unmap(each.value, kPage);
      case Kind::kArray:
        return functions.destroy_array(pointer);
      case Kind::kMipmaps:
        return functions.destroy_mipmaps(pointer);
      case Kind::kExternal:
        return functions.destroy_import(pointer);
      case Kind::kNode:
        return functions.add_free_node(&node, nullptr, nullptr, 0, each.value);
      case Kind::kAnyNode:
        return functions.add_any_node(&node, nullptr, nullptr, 0, &parameters);
      case Kind::kIpc:
        return functions.close_ipc(each.value);
      case Kind::kRegistered:
        break;
    }
    const int status = functions.unenroll(pointer);
    ::free(pointer);
    return status;
  }

  int Act(unsigned kind) {
    const Functions& functions = ways_[Below(4)];
    // Now and then far too much.
    const std::size_t bytes = Below(40) == 0 ? std::size_t{1} << 50 : std::size_t{1} + Below(1 << Below(20));
    int status = 0;
    DevicePointer pointer = 0;
    void* at = nullptr;
    GraphNode node;
    MemoryHandle handle;
    switch (kind) {
      case 0:
      case 1:
        status = functions.allocate(&pointer, bytes);
        Keep(Kind::kPlain, pointer, status);
        break;
      case 2: {
        std::size_t pitch;
        status = functions.pitch(&pointer, &pitch, bytes, 1 + Below(9), 4);
        Keep(Kind::kPlain, pointer, status);
        break;
      }
      case 3:
        status = functions.managed(&pointer, bytes, kMemAttachGlobal);
        Keep(Kind::kPlain, pointer, status);
        break;
      case 4:
        status = Below(2) == 0 ? functions.host(&at, bytes, 0) : functions.old_host(&at, bytes);
        Keep(Kind::kHost, at, status);
        break;
      case 5:
        status = functions.async(&pointer, bytes, stream_);
        Keep(Kind::kAsync, pointer, status);
        break;
      case 6:
      case 7:
        status = functions.from_pool(&pointer, bytes, pools_[Below(7)], Below(2) == 0 ? stream_ : nullptr);
        Keep(Kind::kAsync, pointer, status);
        break;
      case 8: {
        const AllocationProperties properties = {1, 0, {kLocationDevice, 0}, nullptr, 0, 0, 0, {}};
        status = functions.create(&handle, kPage, &properties, 0);
        Keep(Kind::kHandle, handle, status);
        break;
      }
      case 9:
        // The driver of the tests takes the size for the descriptor. Not known before it is mapped.
        status = functions.import_handle(&handle, reinterpret_cast<void*>(kPage), kHandleTypePosixDescriptor);
        Keep(Kind::kHandle, handle, status);
        break;
      case 10:
      case 11: {
        // A mapping keeps its memory, whether the handle is released before or after.
        Live* const of = Find(Kind::kHandle);
        const auto page = static_cast<std::size_t>(std::find(pages_.begin(), pages_.end(), false) - pages_.begin());
        if (of == nullptr || page == pages_.size()) break;
        if ((status = functions.map(addresses_ + page * kPage, kPage, 0, of->value, 0)) != 0) break;
        of->is_used = true;
        pages_[page] = true;
        Keep(Kind::kMapping, addresses_ + page * kPage, 0);
        break;
      }
      case 12: {
        const Live* const mapping = Find(Kind::kMapping);
        if (mapping == nullptr) break;
        status = functions.retain_handle(&handle, reinterpret_cast<void*>(mapping->value));
        Keep(Kind::kHandle, handle, status);
        if (status == 0) live_.back().is_used = true;
        break;
      }
      case 13: {
        const ArrayShape shape = {1 + Below(500), Below(30), 0x20, 1 + Below(4)};
        status = functions.create_array(&at, &shape);
        Keep(Kind::kArray, at, status);
        break;
      }
      case 14: {
        constexpr unsigned kSparse = 0x40;
        const ArrayShape3D shape = {1 + Below(100), Below(30), Below(9), 0x20, 1 + Below(4), Below(4) == 0 ? kSparse : 0};
        const bool has_mipmaps = Below(2) == 0;
        status = has_mipmaps ? functions.create_mipmaps(&at, &shape, 1 + Below(6)) : functions.create_array_3d(&at, &shape);
        Keep(has_mipmaps ? Kind::kMipmaps : Kind::kArray, at, status);
        break;
      }
      case 15: {
        ExternalMemory external = {};
        external.type = 1;
        external.bytes = bytes;
        status = functions.import(&at, &external);
        Keep(Kind::kExternal, at, status);
        break;
      }
      case 16: {
        IpcMemoryHandle shared = {};
        std::memcpy(shared.bytes, &bytes, sizeof(bytes));
        status = functions.open_ipc(&pointer, shared, kIpcLazyPeerAccess);
        Keep(Kind::kIpc, pointer, status);
        break;
      }
      case 17: {
        PoolPointerData shared = {};
        std::memcpy(shared.bytes, &bytes, sizeof(bytes));
        status = functions.import_pointer(&pointer, pools_[0], &shared);
        Keep(Kind::kAsync, pointer, status);
        break;
      }
      case 18: {
        AllocationNode parameters = {};
        parameters.bytes = 1 + Below(10000);
        status = functions.add_node(&node, nullptr, nullptr, 0, &parameters);
        Keep(Kind::kNode, parameters.pointer, status);
        break;
      }
      case 19: {
        NodeParameters parameters = {};
        parameters.type = kNodeAllocation;
        parameters.allocation.bytes = 1 + Below(10000);
        status = Below(2) == 0 ? functions.add_any_node(&node, nullptr, nullptr, 0, &parameters)
                               : functions.add_any_node_v2(&node, nullptr, nullptr, nullptr, 0, &parameters);
        Keep(Kind::kAnyNode, parameters.allocation.pointer, status);
        break;
      }
      case 20: {
        Graph graph;
        functions.begin_capture(stream_, 0);
        status = functions.async(&pointer, 1 + Below(10000), stream_);
        Keep(Kind::kAsync, pointer, status);
        functions.end_capture(stream_, &graph);
        break;
      }
      case 21: {
        // Frees that the driver refuses: of what was never allocated, and by the wrong function.
        const Live* const plain = Find(Kind::kPlain);
        const unsigned which = Below(plain == nullptr ? 2 : 3);
        if (which == 0)
          status = functions.free(0x1234500);
        else if (which == 1)
          status = functions.release(0x5432100);
        else
          status = functions.free_host(reinterpret_cast<void*>(plain->value));
        break;
      }
      case 22:
        if (posix_memalign(&at, 4096, 8192) != 0) break;
        status = functions.enroll(at, 8192, 0);
        Keep(Kind::kRegistered, at, status);
        if (status != 0) ::free(at);
        break;
      case 23:
        if (made_ != nullptr) break;
        if ((status = functions.create_context(&made_, 0, 0)) == 0) current_ = made_;
        break;
      case 24:
        current_ = current_ == own_ && made_ != nullptr ? made_ : own_;
        status = functions.set_current(current_);
        break;
      case 25: {
        if (made_ == nullptr || Below(3) != 0) break;
        functions.set_current(current_ = own_);
        status = functions.destroy_context(made_);
        const auto is_gone = [&](const Live& each) { return each.context == made_; };
        live_.erase(std::remove_if(live_.begin(), live_.end(), is_gone), live_.end());
        made_ = nullptr;
        break;
      }
    }
    return status;
  }

  const Functions ways_[4] = {Functions({Way::kDlsym}), Functions({Way::kLegacy}), Functions({Way::kPerThread}),
                              Functions({Way::kOldProcAddress})};
  std::mt19937 random_;
  Stream stream_ = nullptr;
  Pool pools_[7] = {};
  DevicePointer addresses_ = 0;
  std::vector<bool> pages_;
  std::vector<Live> live_;
  Context own_ = nullptr;
  Context made_ = nullptr;
  Context current_ = nullptr;
};

int Random(unsigned seed, int steps) {
  RandomProgram(seed).Run(steps);
  return 0;
}

int Threads(double seconds) {
  for (unsigned i = 0; i < 4; i++) {
    std::thread([i] {
      const Functions functions({i % 2 == 0 ? Way::kLegacy : Way::kDlsym});
      std::mt19937 random(i);
      std::vector<DevicePointer> live;
      for (;;) {
        DevicePointer pointer;
        if (live.size() < 50 && functions.allocate(&pointer, 256 + random() % 4096) == 0)
          live.push_back(pointer);
        else if (!live.empty())
          functions.free(live.back()), live.pop_back();
        if (random() % 3 == 0 && !live.empty()) functions.free(live.front()), live.erase(live.begin());
      }
    }).detach();
  }
  if (seconds == 0) {
    printf("begun\n");
    fflush(stdout);
    pause();
  }
  usleep(static_cast<useconds_t>(seconds * 1e6));
  return 0;
}

int Fork() {
  // The first child begins with a driver that nobody has used, the second with a copy of its parent's.
  const pid_t first = fork();
  const Functions functions({Way::kLegacy});
  DevicePointer pointer;
  functions.allocate(&pointer, first == 0 ? 444444 : 333333);
  if (first == 0) return 0;
  int ended;
  waitpid(first, &ended, 0);
  const pid_t child = fork();
  functions.allocate(&pointer, child == 0 ? 111111 : 222222);
  int status = 0;
  if (child != 0) waitpid(child, &status, 0);
  return status == 0 ? 0 : 1;
}

int Newer() {
  const Way way = {Way::kLegacy};
  int marker = 0;
  way.Find<Status (*)(int*)>("cuMemAlloc", "", 99000)(&marker);
  printf("%d\n", marker);
  return 0;
}

int Take(std::size_t bytes, int count, bool is_managed, bool frees) {
  const Functions functions({Way::kLegacy});
  for (int i = 0; i < count; i++) {
    DevicePointer pointer;
    std::size_t free = 0, total = 0, of_device = 0;
    const Status status = is_managed ? functions.managed(&pointer, bytes, kMemAttachGlobal) : functions.allocate(&pointer, bytes);
    functions.info(&free, &total);
    functions.total(&of_device, 0);
    printf("%d %zu %zu %zu\n", status, free, total, of_device);
    if (frees && status == 0) functions.free(pointer);
  }
  return 0;
}

int Runtimes() {
  void* const library = dlopen("libcudart.so.13", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    fprintf(stderr, "%s\n", dlerror());
    return 3;
  }
  const auto other_allocate = reinterpret_cast<int (*)(void**, std::size_t)>(dlsym(library, "cudaMalloc"));
  const auto other_free = reinterpret_cast<int (*)(void*)>(dlsym(library, "cudaFree"));
  void* first;
  void* second;
  printf("%d\n", cudaMalloc(&first, 1000));
  printf("%d\n", other_allocate(&second, 2000));
  // Each frees what the other one has allocated.
  printf("%d\n", other_free(first));
  printf("%d\n", cudaFree(second));
  return other_allocate == &cudaMalloc ? 1 : 0;
}

int Owners() {
  for (const Way::Kind kind : {Way::kDlsym, Way::kLegacy, Way::kPerThread, Way::kOldProcAddress}) {
    const Way way = {kind};
    for (void* function :
         {way.Find<void*>("cuMemAlloc", "cuMemAlloc_v2", 3020), way.Find<void*>("cuCtxSetCurrent", "cuCtxSetCurrent", 4000),
          way.Find<void*>("cuStreamSynchronize", "cuStreamSynchronize", 2000)}) {
      Dl_info info;
      if (dladdr(function, &info) == 0) return 1;
      const char* slash = strrchr(info.dli_fname, '/');
      printf("%s ", slash == nullptr ? info.dli_fname : slash + 1);
    }
    printf("\n");
  }
  return 0;
}

int Unload(int count, char** libraries) {
  for (int i = 0; i < 3 * count; i++) {
    void* const library = dlopen(libraries[i % count], RTLD_NOW | RTLD_LOCAL);
    void* const driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr || driver == nullptr) {
      fprintf(stderr, "%s\n", dlerror());
      return 3;
    }
    const auto allocate = reinterpret_cast<int (*)(DevicePointer*, std::size_t)>(dlsym(library, "linked_allocate"));
    const auto free = reinterpret_cast<int (*)(DevicePointer)>(dlsym(library, "linked_free"));
    DevicePointer pointer;
    Functions({Way::kLegacy});
    const int status = allocate(&pointer, static_cast<std::size_t>(i) + 1);
    printf("%d %d %p\n", status, free(pointer), reinterpret_cast<void*>(allocate));
    dlclose(library);
    dlclose(driver);
  }
  return 0;
}

double Now() {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<double>(time.tv_sec) * 1e9 + static_cast<double>(time.tv_nsec);
}

class Times {
 public:
  // Takes the time of a call for each of so many things.
  template <typename Call>
  void Take(int calls, Call call) {
    const double before = Now();
    for (int i = 0; i < calls; i++) call(i);
    times_.push_back((Now() - before) / calls);
  }

  void Print(const char* name, const char* end) {
    std::sort(times_.begin(), times_.end());
    printf("\"%s\":{\"median\":%.1f,\"minimum\":%.1f,\"maximum\":%.1f}%s", name, times_[times_.size() / 2], times_.front(), times_.back(),
           end);
  }

 private:
  std::vector<double> times_;
};

int Bench(int calls) {
  const Functions functions({Way::kDlsym});
  Times plain, plain_free, async, async_free, other;
  std::vector<DevicePointer> pointers(static_cast<std::size_t>(calls));
  for (int sample = 0; sample < 20; sample++) {
    plain.Take(calls, [&](int i) { functions.allocate(&pointers[static_cast<std::size_t>(i)], 4096); });
    plain_free.Take(calls, [&](int i) { functions.free(pointers[static_cast<std::size_t>(i)]); });
    async.Take(calls, [&](int i) { functions.async(&pointers[static_cast<std::size_t>(i)], 4096, nullptr); });
    async_free.Take(calls, [&](int i) { functions.free_async(pointers[static_cast<std::size_t>(i)], nullptr); });
    other.Take(calls, [&](int) { functions.set_current(functions.context); });
  }
  printf("{");
  plain.Print("plain", ",");
  plain_free.Print("plainFree", ",");
  async.Print("async", ",");
  async_free.Print("asyncFree", ",");
  other.Print("other", "}\n");
  return 0;
}

}  // namespace

int main(int count, char** arguments) {
  const std::string what = count > 1 ? arguments[1] : "";
  if (what == "none") return 7;
  if (what == "ways") return Ways();
  if (what == "random") return Random(static_cast<unsigned>(atoi(arguments[2])), atoi(arguments[3]));
  if (what == "threads") return Threads(atof(arguments[2]));
  if (what == "fork") return Fork();
  if (what == "newer") return Newer();
  if (what == "next") return linked_next() == nullptr ? 0 : 1;
  if (what == "take") return Take(strtoull(arguments[2], nullptr, 10), atoi(arguments[3]), count > 4, count > 5);
  if (what == "runtimes") return Runtimes();
  if (what == "owners") return Owners();
  if (what == "unload") return Unload(count - 2, arguments + 2);
  if (what == "bench") return Bench(atoi(arguments[2]));
  return 2;
}
