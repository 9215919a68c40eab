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
//     client bench CALLS           measures pairs of an allocation and a free, and a call that does neither: JSON, in nanoseconds
#include <pthread.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "way.h"

using namespace cistern;
using outside::Way;

extern "C" {
int linked_allocate(DevicePointer* pointer, std::size_t bytes);
int linked_free(DevicePointer pointer);
void* linked_next();
}

namespace {

struct Array {
  std::size_t width, height;
  int format;
  unsigned channels;
};
struct External {
  int type = 1;
  void* handle[2] = {};
  unsigned long long bytes;
  unsigned flags = 0;
};
struct AllocationNode {
  PoolProperties properties = {};
  const void* access = nullptr;
  std::size_t access_count = 0;
  std::size_t bytes = 0;
  DevicePointer pointer = 0;
};

// All functions, found in one way.
struct Functions {
#define FUNCTION(member, symbol, exported, version, parameters) Status(*member) parameters;
#define FUNCTIONS(X)                                                                                                            \
  X(init, "cuInit", "cuInit", 2000, (unsigned))                                                                                 \
  X(retain, "cuDevicePrimaryCtxRetain", "cuDevicePrimaryCtxRetain", 7000, (Context*, int))                                      \
  X(set_current, "cuCtxSetCurrent", "cuCtxSetCurrent", 4000, (Context))                                                         \
  X(create_stream, "cuStreamCreateWithPriority", "cuStreamCreateWithPriority", 5050, (Stream*, unsigned, int))                  \
  X(synchronize, "cuStreamSynchronize", "cuStreamSynchronize", 2000, (Stream))                                                  \
  X(info, "cuMemGetInfo", "cuMemGetInfo_v2", 3020, (std::size_t*, std::size_t*))                                                \
  X(total, "cuDeviceTotalMem", "cuDeviceTotalMem_v2", 3020, (std::size_t*, int))                                                \
  X(allocate, "cuMemAlloc", "cuMemAlloc_v2", 3020, (DevicePointer*, std::size_t))                                               \
  X(pitch, "cuMemAllocPitch", "cuMemAllocPitch_v2", 3020, (DevicePointer*, std::size_t*, std::size_t, std::size_t, unsigned))   \
  X(free, "cuMemFree", "cuMemFree_v2", 3020, (DevicePointer))                                                                   \
  X(managed, "cuMemAllocManaged", "cuMemAllocManaged", 6000, (DevicePointer*, std::size_t, unsigned))                           \
  X(host, "cuMemHostAlloc", "cuMemHostAlloc", 2020, (void**, std::size_t, unsigned))                                            \
  X(free_host, "cuMemFreeHost", "cuMemFreeHost", 2000, (void*))                                                                 \
  X(enroll, "cuMemHostRegister", "cuMemHostRegister_v2", 6050, (void*, std::size_t, unsigned))                                  \
  X(unenroll, "cuMemHostUnregister", "cuMemHostUnregister", 4000, (void*))                                                      \
  X(async, "cuMemAllocAsync", "cuMemAllocAsync", 11020, (DevicePointer*, std::size_t, Stream))                                  \
  X(from_pool, "cuMemAllocFromPoolAsync", "cuMemAllocFromPoolAsync", 11020, (DevicePointer*, std::size_t, Pool, Stream))        \
  X(free_async, "cuMemFreeAsync", "cuMemFreeAsync", 11020, (DevicePointer, Stream))                                             \
  X(default_pool, "cuDeviceGetDefaultMemPool", "cuDeviceGetDefaultMemPool", 11020, (Pool*, int))                                \
  X(reserve, "cuMemAddressReserve", "cuMemAddressReserve", 10020,                                                               \
    (DevicePointer*, std::size_t, std::size_t, DevicePointer, unsigned long long))                                              \
  X(create, "cuMemCreate", "cuMemCreate", 10020, (MemoryHandle*, std::size_t, const AllocationProperties*, unsigned long long)) \
  X(release, "cuMemRelease", "cuMemRelease", 10020, (MemoryHandle))                                                             \
  X(retain_handle, "cuMemRetainAllocationHandle", "cuMemRetainAllocationHandle", 11000, (MemoryHandle*, void*))                 \
  X(map, "cuMemMap", "cuMemMap", 10020, (DevicePointer, std::size_t, std::size_t, MemoryHandle, unsigned long long))            \
  X(unmap, "cuMemUnmap", "cuMemUnmap", 10020, (DevicePointer, std::size_t))                                                     \
  X(create_array, "cuArrayCreate", "cuArrayCreate_v2", 3020, (void**, const Array*))                                            \
  X(destroy_array, "cuArrayDestroy", "cuArrayDestroy", 2000, (void*))                                                           \
  X(import, "cuImportExternalMemory", "cuImportExternalMemory", 10000, (void**, const External*))                               \
  X(destroy_import, "cuDestroyExternalMemory", "cuDestroyExternalMemory", 10000, (void*))                                       \
  X(add_node, "cuGraphAddMemAllocNode", "cuGraphAddMemAllocNode", 11040,                                                        \
    (GraphNode*, Graph, const GraphNode*, std::size_t, AllocationNode*))                                                        \
  X(add_free_node, "cuGraphAddMemFreeNode", "cuGraphAddMemFreeNode", 11040,                                                     \
    (GraphNode*, Graph, const GraphNode*, std::size_t, DevicePointer))
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

struct Live {
  int kind;
  std::uint64_t value;
  std::uint64_t more;
};

int Random(unsigned seed, int steps) {
  const Functions ways[] = {Functions({Way::kDlsym}), Functions({Way::kLegacy}), Functions({Way::kPerThread}),
                            Functions({Way::kOldProcAddress})};
  std::mt19937 random(seed);
  const auto below = [&](unsigned most) { return static_cast<unsigned>(random() % most); };
  Stream stream;
  Pool pool;
  ways[0].create_stream(&stream, 1, 0);
  ways[0].default_pool(&pool, 0);
  constexpr std::size_t kPage = std::size_t{2} << 20;
  DevicePointer addresses = 0;
  ways[0].reserve(&addresses, 64 * kPage, 0, 0, 0);
  std::vector<Live> live;
  std::vector<bool> pages(64);
  AllocationProperties properties = {1, 0, {kLocationDevice, 0}, nullptr, 0, 0, 0, {}};
  std::vector<void*> registered;
  for (int step = 0; step < steps; step++) {
    const Functions& functions = ways[below(4)];
    // Now and then far too much.
    const std::size_t bytes = below(40) == 0 ? std::size_t{1} << 50 : std::size_t{1} + below(1 << below(20));
    int status = 0;
    unsigned kind = below(24);
    if (kind >= 11 && kind < 21 && !live.empty()) {
      const std::size_t index = below(static_cast<unsigned>(live.size()));
      const Live each = live[index];
      GraphNode freed;
      void* pointer = reinterpret_cast<void*>(each.value);
      switch (each.kind) {
        case 0:
          status = functions.free(each.value);
          break;
        case 1:
          status = functions.free_host(pointer);
          break;
        case 2:
          status = functions.free_async(each.value, stream);
          break;
        case 3:
          status = functions.release(each.value);
          break;
        case 4:
          status = functions.unmap(each.value, kPage);
          pages[(each.value - addresses) / kPage] = false;
          break;
        case 5:
          status = functions.destroy_array(pointer);
          break;
        case 6:
          status = functions.destroy_import(pointer);
          break;
        case 7:
          status = functions.add_free_node(&freed, nullptr, nullptr, 0, each.value);
          break;
        case 8:
          status = functions.unenroll(pointer);
          ::free(pointer);
          break;
      }
      live.erase(live.begin() + static_cast<std::ptrdiff_t>(index));
      printf("%d free %d %d %lld\n", step, each.kind, status, Used());
      continue;
    }
    DevicePointer pointer = 0;
    void* at = nullptr;
    GraphNode node;
    switch (kind) {
      case 0:
      case 11:
        if ((status = functions.allocate(&pointer, bytes)) == 0) live.push_back({0, pointer, 0});
        break;
      case 1: {
        std::size_t pitch;
        if ((status = functions.pitch(&pointer, &pitch, bytes, 1 + below(9), 4)) == 0) live.push_back({0, pointer, 0});
        break;
      }
      case 2:
        if ((status = functions.managed(&pointer, bytes, kMemAttachGlobal)) == 0) live.push_back({0, pointer, 0});
        break;
      case 3:
        if ((status = functions.host(&at, bytes, 0)) == 0) live.push_back({1, reinterpret_cast<std::uint64_t>(at), 0});
        break;
      case 4:
        if ((status = functions.async(&pointer, bytes, stream)) == 0) live.push_back({2, pointer, 0});
        break;
      case 5:
        if ((status = functions.from_pool(&pointer, bytes, pool, below(2) == 0 ? stream : nullptr)) == 0) live.push_back({2, pointer, 0});
        break;
      case 6: {
        MemoryHandle handle;
        if ((status = functions.create(&handle, kPage, &properties, 0)) == 0) live.push_back({3, handle, 0});
        break;
      }
      case 7: {
        // A mapping keeps its memory, whether the handle is released before or after.
        const auto handle = std::find_if(live.begin(), live.end(), [](const Live& each) { return each.kind == 3 && each.more == 0; });
        const auto page = static_cast<std::size_t>(std::find(pages.begin(), pages.end(), false) - pages.begin());
        if (handle == live.end() || page == pages.size()) break;
        if ((status = functions.map(addresses + page * kPage, kPage, 0, handle->value, 0)) != 0) break;
        handle->more = 1;
        pages[page] = true;
        live.push_back({4, addresses + page * kPage, 0});
        break;
      }
      case 8: {
        const Array shape = {1 + below(500), below(30), 0x20, 1 + below(4)};
        if ((status = functions.create_array(&at, &shape)) == 0) live.push_back({5, reinterpret_cast<std::uint64_t>(at), 0});
        break;
      }
      case 9: {
        External external;
        external.bytes = bytes;
        if ((status = functions.import(&at, &external)) == 0) live.push_back({6, reinterpret_cast<std::uint64_t>(at), 0});
        break;
      }
      case 10: {
        AllocationNode parameters;
        parameters.bytes = 1 + below(10000);
        if ((status = functions.add_node(&node, nullptr, nullptr, 0, &parameters)) == 0) live.push_back({7, parameters.pointer, 0});
        break;
      }
      case 21: {
        const auto mapping = std::find_if(live.begin(), live.end(), [](const Live& each) { return each.kind == 4; });
        if (mapping == live.end()) break;
        MemoryHandle handle;
        status = functions.retain_handle(&handle, reinterpret_cast<void*>(mapping->value));
        if (status == 0) live.push_back({3, handle, 1});
        break;
      }
      case 22: {
        // Frees that the driver refuses: of what was never allocated, and by the wrong function.
        const auto plain = std::find_if(live.begin(), live.end(), [](const Live& each) { return each.kind == 0; });
        const unsigned which = below(plain == live.end() ? 2 : 3);
        if (which == 0)
          status = functions.free(0x1234500);
        else if (which == 1)
          status = functions.release(0x5432100);
        else
          status = functions.free_host(reinterpret_cast<void*>(plain->value));
        break;
      }
      case 23:
        if (posix_memalign(&at, 4096, 8192) != 0) break;
        if ((status = functions.enroll(at, 8192, 0)) == 0)
          live.push_back({8, reinterpret_cast<std::uint64_t>(at), 0});
        else
          ::free(at);
        break;
    }
    printf("%d %u %d %lld\n", step, kind, status, Used());
  }
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

template <typename Call>
void Measure(const char* name, int calls, const char* end, Call call) {
  std::vector<double> times;
  for (int sample = 0; sample < 20; sample++) {
    struct timespec before, after;
    clock_gettime(CLOCK_MONOTONIC, &before);
    for (int i = 0; i < calls; i++) call();
    clock_gettime(CLOCK_MONOTONIC, &after);
    times.push_back((static_cast<double>(after.tv_sec - before.tv_sec) * 1e9 + static_cast<double>(after.tv_nsec - before.tv_nsec)) /
                    calls);
  }
  std::sort(times.begin(), times.end());
  printf("\"%s\":{\"median\":%.1f,\"minimum\":%.1f,\"maximum\":%.1f}%s", name, times[10], times.front(), times.back(), end);
}

int Bench(int calls) {
  const Functions functions({Way::kDlsym});
  DevicePointer pointer;
  printf("{");
  Measure("plain", calls, ",", [&] {
    functions.allocate(&pointer, 4096);
    functions.free(pointer);
  });
  Measure("async", calls, ",", [&] {
    functions.async(&pointer, 4096, nullptr);
    functions.free_async(pointer, nullptr);
  });
  Measure("other", calls, "}\n", [&] { functions.set_current(functions.context); });
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
  if (what == "bench") return Bench(atoi(arguments[2]));
  return 2;
}
