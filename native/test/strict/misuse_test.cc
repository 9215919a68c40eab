// What CUDA does not define: the strict driver reports it. A case plays a scene in a process of its own, and
// reads the driver's log.
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>

#include "fixture.h"
#include "scenes.h"
#include "strict_driver/calls.h"

extern char** environ;

namespace cistern::test {
namespace {

void Increment(void* counter) { static_cast<std::atomic<int>*>(counter)->fetch_add(1); }
void Delete(void* counter) { delete static_cast<std::atomic<int>*>(counter); }

DevicePointer Allocate() {
  DevicePointer pointer = 0;
  CHECK_OK(driver.MemAlloc(&pointer, 4096));
  return pointer;
}

// One that is not destroyed: its context will be in error.
Stream BrokenStream() {
  Stream stream = nullptr;
  CHECK_OK(driver.StreamCreateWithPriority(&stream, kStreamNonBlocking, 0));
  return stream;
}

// An executable graph of what is captured meanwhile.
template <typename Capture>
GraphExec Captured(Stream stream, Capture&& capture) {
  CHECK_OK(driver.StreamBeginCapture(stream, kCaptureModeRelaxed));
  capture();
  Graph graph;
  CHECK_OK(driver.StreamEndCapture(stream, &graph));
  GraphExec exec;
  CHECK_OK(driver.GraphInstantiateWithFlags(&exec, graph, 0));
  return exec;
}

GraphExec CapturedFill(Stream stream, DevicePointer pointer) {
  return Captured(stream, [&] { CHECK_OK(driver.MemsetD8Async(pointer, 1, 4096, stream)); });
}

struct Scene {
  const char* name;
  const char* expected;  // a line of the log has it; null: there is no misuse
  void (*play)();
  const char* mild = "0";  // MILD_CAPTURES
};

const Scene kScenes[] = {
    {"registered memory that is registered again", "a part of which is registered",
     [] {
       alignas(4096) static char memory[8192];
       CHECK_OK(driver.MemHostRegister(memory, sizeof memory, 0));
       CHECK(driver.MemHostRegister(memory + 4096, 4096, 0) == kErrorHostMemoryAlreadyRegistered);
       CHECK_OK(driver.MemHostUnregister(memory));
     }},
    {"the end of a registration that there is not", "is not the start of registered memory",
     [] {
       static char memory[1];
       CHECK(driver.MemHostUnregister(memory) == kErrorHostMemoryNotRegistered);
     }},
    {"registered memory that is freed as the driver's", "is not the start of pinned memory",
     [] {
       alignas(4096) static char memory[4096];
       CHECK_OK(driver.MemHostRegister(memory, sizeof memory, 0));
       CHECK(driver.MemFreeHost(memory) == kErrorInvalidValue);
       CHECK_OK(driver.MemHostUnregister(memory));
     }},
    {"memory that is unmapped while it is registered", "was unmapped while it was registered",
     [] {
       void* memory = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
       CHECK_OK(driver.MemHostRegister(memory, 4096, 0));
       munmap(memory, 4096);
       CHECK_OK(driver.MemHostUnregister(memory));
     }},
    {"a registration of memory that is not mapped", "which are not all mapped",
     [] {
       void* memory = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
       munmap(memory, 4096);
       CHECK(driver.MemHostRegister(memory, 4096, 0) == kErrorInvalidValue);
     }},
    {"a registration that ends once it is unused", nullptr,
     [] {
       const Stream stream = BrokenStream();
       alignas(4096) static char memory[4096];
       CHECK_OK(driver.MemHostRegister(memory, sizeof memory, kHostRegisterPortable | kHostRegisterDeviceMap));
       CHECK_OK(driver.MemsetD8Async(reinterpret_cast<DevicePointer>(memory), 1, sizeof memory, stream));
       CHECK_OK(driver.StreamSynchronize(stream));
       CHECK_OK(driver.MemHostUnregister(memory));
       CHECK(memory[4095] == 1);
     }},
    {"a launch after the memory of a node was freed", "the memory of a node is not there any more",
     [] {
       const Stream stream = BrokenStream();
       const DevicePointer pointer = Allocate();
       const GraphExec exec = CapturedFill(stream, pointer);
       CHECK_OK(driver.MemFree(pointer));
       CHECK_OK(driver.GraphLaunch(exec, stream));
       CHECK(driver.StreamSynchronize(stream) == kErrorIllegalAddress);
     }},
    {"a launch after the memory of a node became somebody else's", "has been freed, and other memory is there",
     [] {
       const Stream stream = BrokenStream();
       const DevicePointer pointer = Allocate();
       const GraphExec exec = CapturedFill(stream, pointer);
       CHECK_OK(driver.MemFree(pointer));
       CHECK(Allocate() == pointer);
       CHECK_OK(driver.GraphLaunch(exec, stream));
       CHECK(driver.StreamSynchronize(stream) == kErrorIllegalAddress);
     }},
    {"an export of memory that was not created for it", "can be exported as a descriptor",
     [] {
       MemoryHandle memory;
       AllocationProperties properties = {};
       properties.type = kAllocationTypePinned;
       properties.location = {kLocationDevice, 0};
       int descriptor = -1;
       CHECK_OK(driver.MemCreate(&memory, 2 * kMiB, &properties, 0));
       CHECK(driver.MemExportToShareableHandle(&descriptor, memory, kHandleTypePosixDescriptor, 0) == kErrorInvalidValue);
     }},
    {"a write to memory that may only be read", "accessible, to write",
     [] {
       TestStream stream;
       DevicePointer pointer;
       MemoryHandle memory;
       AllocationProperties properties = {};
       properties.type = kAllocationTypePinned;
       properties.location = {kLocationDevice, 0};
       properties.handle_types = kHandleTypePosixDescriptor;
       const AccessDescription reading = {{kLocationDevice, 0}, kAccessRead};
       CHECK_OK(driver.MemAddressReserve(&pointer, 2 * kMiB, 0, 0, 0));
       CHECK_OK(driver.MemCreate(&memory, 2 * kMiB, &properties, 0));
       CHECK_OK(driver.MemMap(pointer, 2 * kMiB, 0, memory, 0));
       CHECK_OK(driver.MemSetAccess(pointer, 2 * kMiB, &reading, 1));
       CHECK(driver.MemsetD8Async(pointer, 1, 4096, stream) == kErrorInvalidValue);
     }},
    {"memory of another mapping, by its descriptor, with the contents that it had", nullptr,
     [] {
       TestStream stream;
       DevicePointer pointer;
       MemoryHandle memory;
       AllocationProperties properties = {};
       properties.type = kAllocationTypePinned;
       properties.location = {kLocationDevice, 0};
       properties.handle_types = kHandleTypePosixDescriptor;
       const AccessDescription access = {{kLocationDevice, 0}, kAccessReadWrite};
       int descriptor = -1;
       CHECK_OK(driver.MemAddressReserve(&pointer, 2 * kMiB, 0, 0, 0));
       CHECK_OK(driver.MemCreate(&memory, 2 * kMiB, &properties, 0));
       CHECK_OK(driver.MemExportToShareableHandle(&descriptor, memory, kHandleTypePosixDescriptor, 0));
       CHECK_OK(driver.MemMap(pointer, 2 * kMiB, 0, memory, 0));
       CHECK_OK(driver.MemRelease(memory));
       CHECK_OK(driver.MemSetAccess(pointer, 2 * kMiB, &access, 1));
       CHECK_OK(driver.MemsetD8Async(pointer, 6, 4096, stream));
       stream.Synchronize();
       CHECK_OK(driver.MemUnmap(pointer, 2 * kMiB));
       void* handle = reinterpret_cast<void*>(static_cast<std::uintptr_t>(descriptor));
       CHECK_OK(driver.MemImportFromShareableHandle(&memory, handle, kHandleTypePosixDescriptor));
       CHECK_OK(driver.MemMap(pointer, 2 * kMiB, 0, memory, 0));
       CHECK_OK(driver.MemSetAccess(pointer, 2 * kMiB, &access, 1));
       unsigned char read = 0;
       CHECK_OK(driver.MemcpyAsync(reinterpret_cast<DevicePointer>(&read), pointer, 1, stream));
       stream.Synchronize();
       CHECK(read == 6);
     }},
    {"a launch after the memory of a node was mapped anew", nullptr,
     [] {
       TestStream stream;
       DevicePointer pointer;
       constexpr std::size_t kBytes = 2 * kMiB;
       const AccessDescription access = {{kLocationDevice, 0}, kAccessReadWrite};
       AllocationProperties properties = {};
       properties.type = kAllocationTypePinned;
       properties.location = {kLocationDevice, 0};
       CHECK_OK(driver.MemAddressReserve(&pointer, kBytes, 0, 0, 0));
       const auto map = [&] {
         MemoryHandle memory;
         CHECK_OK(driver.MemCreate(&memory, kBytes, &properties, 0));
         CHECK_OK(driver.MemMap(pointer, kBytes, 0, memory, 0));
         CHECK_OK(driver.MemSetAccess(pointer, kBytes, &access, 1));
         CHECK_OK(driver.MemRelease(memory));
       };
       map();
       const GraphExec exec = CapturedFill(stream, pointer);
       CHECK_OK(driver.MemUnmap(pointer, kBytes));
       map();
       CHECK_OK(driver.GraphLaunch(exec, stream));
       stream.Synchronize();
     }},
    {"a launch after the data of a host function were destroyed", "after its data",
     [] {
       TestStream stream;
       static std::atomic<int> runs{0};
       UserObject object;
       CHECK_OK(driver.UserObjectCreate(&object, &runs, Increment, 1, kUserObjectNoDestructorSync));
       const GraphExec exec = Captured(stream, [&] { CHECK_OK(driver.LaunchHostFunc(stream, Increment, &runs)); });
       CHECK_OK(driver.UserObjectRelease(object, 1));
       CHECK_OK(driver.GraphLaunch(exec, stream));
       stream.Synchronize();
     }},
    {"launches of a host function whose data the graph owns", nullptr,
     [] {
       TestStream stream;
       auto* runs = new std::atomic<int>{0};
       UserObject object;
       CHECK_OK(driver.UserObjectCreate(&object, runs, Delete, 1, kUserObjectNoDestructorSync));
       const GraphExec exec = Captured(stream, [&] {
         int status;
         Graph graph;
         CHECK_OK(driver.LaunchHostFunc(stream, Increment, runs));
         CHECK_OK(driver.StreamGetCaptureInfo(stream, &status, nullptr, &graph, nullptr, nullptr, nullptr));
         CHECK_OK(driver.GraphRetainUserObject(graph, object, 1, kUserObjectMove));
       });
       for (int launch = 0; launch < 2; ++launch) CHECK_OK(driver.GraphLaunch(exec, stream));
       stream.Synchronize();
       CHECK(*runs == 2);
     }},
    {"the end of an event that a capture has recorded", "an event of a capture that has not ended",
     [] {
       TestStream stream;
       CHECK_OK(driver.StreamBeginCapture(stream, kCaptureModeRelaxed));
       {
         TestEvent event;
         CHECK_OK(driver.EventRecord(event, stream));
       }
       Graph graph;
       CHECK_OK(driver.StreamEndCapture(stream, &graph));
     }},
    {"memory of a graph that is used before a launch has allocated it", "ORDER a fill runs before the allocation",
     [] {
       TestStream stream;
       TestPool pool;
       DevicePointer pointer = 0;
       const GraphExec exec = Captured(stream, [&] { pointer = pool.Allocate(4096, stream); });
       CHECK_OK(driver.MemsetD8Async(pointer, 1, 4096, stream));
       CHECK_OK(driver.GraphLaunch(exec, stream));
       stream.Synchronize();
     }},
    {"memory of a graph that another stream uses after its free", "ORDER a fill runs after the free",
     [] {
       TestStream stream;
       TestPool pool;
       DevicePointer pointer = 0;
       const GraphExec exec = Captured(stream, [&] { pointer = pool.Allocate(4096, stream); });
       CHECK_OK(driver.GraphLaunch(exec, stream));
       FreeAsync(pointer, stream);
       CHECK_OK(driver.MemsetD8Async(pointer, 1, 4096, stream));
       stream.Synchronize();
     }},
    {"memory of a graph that a node without an edge from its allocation uses", "ORDER a fill runs",
     [] {
       TestStream stream;
       TestStream fork;
       TestPool pool;
       TestEvent event;
       TestEvent join;
       const GraphExec exec = Captured(stream, [&] {
         CHECK_OK(driver.EventRecord(event, stream));
         CHECK_OK(driver.StreamWaitEvent(fork, event, 0));
         const DevicePointer pointer = pool.Allocate(4096, stream);
         CHECK_OK(driver.MemsetD8Async(pointer, 1, 4096, fork));
         CHECK_OK(driver.EventRecord(join, fork));
         CHECK_OK(driver.StreamWaitEvent(stream, join, 0));
         FreeAsync(pointer, stream);
       });
       for (int launch = 0; launch < 32; ++launch) CHECK_OK(driver.GraphLaunch(exec, stream));
       stream.Synchronize();
     }},
    {"a second free of what a launch has left allocated", "that no launch has left allocated",
     [] {
       TestStream stream;
       TestPool pool;
       DevicePointer pointer = 0;
       const GraphExec exec = Captured(stream, [&] { pointer = pool.Allocate(4096, stream); });
       CHECK_OK(driver.GraphLaunch(exec, stream));
       FreeAsync(pointer, stream);
       CHECK(driver.MemFreeAsync(pointer, stream) == kErrorInvalidValue);
       stream.Synchronize();
     }},
    {"a wait for an event from outside, which becomes a node", nullptr,
     [] {
       TestStream stream;
       TestStream other;
       TestEvent event;
       static std::atomic<int> runs{0};
       static std::atomic<int> found{-1};
       CHECK(driver.StreamWaitEvent(stream, event, strict::kEventWaitExternal) == kErrorInvalidValue);
       const GraphExec exec = Captured(stream, [&] {
         CHECK_OK(driver.StreamWaitEvent(stream, event, strict::kEventWaitExternal));
         CHECK_OK(driver.LaunchHostFunc(
             stream, +[](void*) { found = runs.load(); }, nullptr));
       });
       for (int launch = 1; launch <= 8; ++launch) {
         CHECK_OK(driver.LaunchHostFunc(other, Increment, &runs));
         CHECK_OK(driver.EventRecord(event, other));
         CHECK_OK(driver.GraphLaunch(exec, stream));
         stream.Synchronize();
         CHECK(found == launch);
       }
     }},
    {"copies of a batch that depend on each other", "copies 0 and 1 of a batch depend on each other",
     [] {
       TestStream stream;
       const DevicePointer memory = Allocate();
       DevicePointer destinations[] = {memory, memory + 1024};
       DevicePointer sources[] = {memory + 2048, memory + 63};
       std::size_t sizes[] = {64, 64};
       CopyAttributes attributes = {kSourceOrderStream, {kLocationNone, 0}, {kLocationNone, 0}, 0};
       std::size_t first_copy = 0;
       CHECK_OK(driver.MemcpyBatchAsync(destinations, sources, sizes, 2, &attributes, &first_copy, 1, stream));
       stream.Synchronize();
     }},
    {"a batch on the legacy stream", "the legacy default stream takes no batches",
     [] {
       DevicePointer pointers[] = {Allocate(), Allocate()};
       std::size_t size = 64;
       CopyAttributes attributes = {kSourceOrderStream, {kLocationNone, 0}, {kLocationNone, 0}, 0};
       std::size_t first_copy = 0;
       CHECK(driver.MemcpyBatchAsync(&pointers[0], &pointers[1], &size, 1, &attributes, &first_copy, 1, nullptr) == kErrorInvalidValue);
     }},
    {"a batch, whose copies run in any order, and the form before CUDA 13, which names the copy that is refused", nullptr,
     [] {
       TestStream stream;
       const DevicePointer memory = Allocate();
       const DevicePointer other = Allocate();
       DevicePointer destinations[] = {memory, memory + 64, memory + 128};
       DevicePointer sources[] = {other, other + 64, other + 128};
       std::size_t sizes[] = {64, 64, 64};
       CopyAttributes attributes = {kSourceOrderStream, {kLocationNone, 0}, {kLocationNone, 0}, 0};
       std::size_t first_copy = 0;
       std::size_t failed = 7;
       const auto copy = [&] {
         return strict::calls::MemcpyBatchAsync12080(destinations, sources, sizes, 3, &attributes, &first_copy, 1, &failed, stream);
       };
       CHECK_OK(copy());
       CHECK(failed == SIZE_MAX);
       int pageable = 0;
       sources[1] = reinterpret_cast<DevicePointer>(&pageable);
       CHECK(copy() == kErrorInvalidValue);
       CHECK(failed == 1);
       attributes.source_order = kSourceOrderStream;
       CHECK_OK(driver.StreamBeginCapture(stream, kCaptureModeRelaxed));
       CHECK(copy() == kErrorCaptureUnsupported);
       CHECK(failed == SIZE_MAX);
       Graph graph;
       driver.StreamEndCapture(stream, &graph);
     }},
    {"dependencies that a capture is given", nullptr,
     [] {
       TestStream stream;
       static std::atomic<int> runs{0};
       int status;
       Graph graph;
       const GraphNode* dependencies;
       std::size_t count;
       const auto ask = [&] { CHECK_OK(driver.StreamGetCaptureInfo(stream, &status, nullptr, &graph, &dependencies, nullptr, &count)); };
       const auto set = driver.StreamUpdateCaptureDependencies;
       CHECK(set(stream, nullptr, 0, kSetDependencies) == kErrorIllegalState);
       const GraphExec exec = Captured(stream, [&] {
         CHECK_OK(driver.LaunchHostFunc(stream, Increment, &runs));
         ask();
         GraphNode first = dependencies[0];
         CHECK_OK(set(stream, nullptr, 0, kSetDependencies));
         ask();
         CHECK(count == 0);
         CHECK_OK(driver.LaunchHostFunc(stream, Increment, &runs));
         CHECK_OK(set(stream, &first, 1, kAddDependencies));
         CHECK_OK(set(stream, &first, 1, kAddDependencies));
         ask();
         CHECK(count == 2);
         CHECK_OK(set(stream, &first, 1, kSetDependencies));
         CHECK(set(stream, &first, 1, 2) == kErrorInvalidValue);
       });
       CHECK_OK(driver.GraphLaunch(exec, stream));
       stream.Synchronize();
       CHECK(runs == 2);
     }},
    {"what the documentation does not refuse, mildly", nullptr,
     [] {
       TestStream stream;
       TestEvent join;
       Stream fork;
       Graph graph;
       unsigned words[2] = {1, 0};
       const auto address = [&](int index) { return reinterpret_cast<DevicePointer>(&words[index]); };
       const auto is_active = [&] {
         int status;
         CHECK_OK(driver.StreamIsCapturing(stream, &status));
         return status == kCaptureActive;
       };
       const DevicePointer plain = Allocate();
       Context context;
       CHECK_OK(driver.CtxGetCurrent(&context));
       CHECK_OK(driver.StreamCreateWithPriority(&fork, kStreamNonBlocking, 0));
       CHECK_OK(driver.StreamBeginCapture(stream, kCaptureModeGlobal));
       {
         TestEvent event;
         CHECK_OK(driver.EventRecord(event, stream));
         CHECK_OK(driver.StreamWaitEvent(fork, event, 0));
       }
       CHECK_OK(driver.MemcpyAsync(address(1), address(0), 4, fork));
       CHECK_OK(driver.EventRecord(join, fork));
       CHECK_OK(driver.StreamDestroy(fork));
       CHECK(driver.MemcpyPeerAsync(plain, context, plain + 64, context, 4, stream) == kErrorCaptureUnsupported);
       CHECK(is_active());
       std::thread([&] {
         const OnDevice device(0);
         CHECK(driver.StreamEndCapture(stream, &graph) == kErrorCaptureWrongThread);
       }).join();
       CHECK(is_active());
       CHECK_OK(driver.StreamWaitEvent(stream, join, 0));
       CHECK_OK(driver.StreamEndCapture(stream, &graph));
       GraphExec exec;
       CHECK_OK(driver.GraphInstantiateWithFlags(&exec, graph, 0));
       words[0] = 7;
       CHECK_OK(driver.GraphLaunch(exec, stream));
       stream.Synchronize();
       CHECK(words[1] == 7);
     },
     "1"},
    {"memory of a graph without a launch", nullptr,
     [] {
       TestStream stream;
       TestPool pool;
       std::size_t before = 0;
       std::size_t after = 0;
       std::size_t total = 0;
       CHECK_OK(driver.MemGetInfo(&before, &total));
       const GraphExec exec = Captured(stream, [&] { FreeAsync(pool.Allocate(4096, stream), stream); });
       CHECK_OK(driver.MemGetInfo(&after, &total));
       CHECK(after == before);
       CHECK_OK(driver.GraphLaunch(exec, stream));
       stream.Synchronize();
       CHECK_OK(driver.MemGetInfo(&after, &total));
       CHECK(after < before);
       CHECK_OK(strict::calls::DeviceGraphMemTrim(0));
       CHECK_OK(driver.MemGetInfo(&after, &total));
       CHECK(after == before);
     }},
};

// Plays a scene in a process of its own. False if a check failed there. `log` is what the driver reported.
bool Play(const Scene& scene, std::string* log) {
  std::string path = "/tmp/cistern-misuse-XXXXXX";
  const int file = mkstemp(path.data());
  if (file < 0) return false;
  close(file);
  setenv("STRICT_DRIVER_LOG", path.c_str(), 1);
  setenv("STRICT_DRIVER_MILD_CAPTURES", scene.mild, 1);
  std::string arguments[] = {"/proc/self/exe", "--scene", scene.name};
  char* argv[] = {arguments[0].data(), arguments[1].data(), arguments[2].data(), nullptr};
  pid_t child = 0;
  int status = -1;
  if (posix_spawn(&child, "/proc/self/exe", nullptr, nullptr, argv, environ) == 0) waitpid(child, &status, 0);
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  *log = text.str();
  std::remove(path.c_str());
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

}  // namespace

int PlayScene(const char* name) {
  CHECK_OK(driver.Init(0));
  for (const Scene& scene : kScenes) {
    if (std::strcmp(scene.name, name) != 0) continue;
    Context context;
    CHECK_OK(driver.DevicePrimaryCtxRetain(&context, 0));
    CHECK_OK(driver.CtxSetCurrent(context));
    scene.play();
  }
  return failure_count;
}

TEST("what CUDA does not define is reported, and nothing else") {
  for (const Scene& scene : kScenes) {
    std::string log;
    const bool is_good = Play(scene, &log);
    const bool is_as_expected = scene.expected != nullptr
                                    ? log.find(scene.expected) != std::string::npos
                                    : log.find(" MISUSE ") == std::string::npos && log.find(" ORDER ") == std::string::npos;
    if (!is_good || !is_as_expected) std::printf("    %s:\n%s", scene.name, log.c_str());
    CHECK(is_good);
    CHECK(is_as_expected);
  }
}

}  // namespace cistern::test
