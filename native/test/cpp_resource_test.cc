// cistern.hpp: the C++ class over the table of a resource. What is right without RMM's headers; with them, see
// cpp_resource_rmm_test.cc.
#include <cistern.hpp>
#include <cstring>
#include <type_traits>

#include "thread_safe_fixture.h"

namespace cistern::test {
namespace {

using cuda::mr::device_accessible;
using cuda::mr::host_accessible;

static_assert(cuda::mr::is_resource_with<device_memory_resource, device_accessible>);
static_assert(cuda::mr::is_resource_with<host_device_memory_resource, device_accessible, host_accessible>);
static_assert(!cuda::mr::is_resource_with<device_memory_resource, host_accessible>);
static_assert(cuda::mr::is_resource_with<memory_resource<host_accessible>, host_accessible>);
static_assert(!cuda::mr::is_resource_with<memory_resource<host_accessible>, device_accessible>);
static_assert(std::is_base_of_v<std::bad_alloc, out_of_memory>);
static_assert(std::is_nothrow_copy_constructible_v<device_memory_resource> && std::is_nothrow_copy_constructible_v<out_of_memory>);
static_assert(!std::is_convertible_v<const cistern_thread_safe_resource*, device_memory_resource>);

cuda::stream_ref Ref(const TestStream& stream) { return reinterpret_cast<CUstream_st*>(static_cast<Stream>(stream)); }

// A use of the table for the class to take over.
const cistern_thread_safe_resource* Use(const Resource& resource) {
  resource.c->retain(resource.c->state);
  return resource.c;
}

// What an expression throws.
template <typename Error, typename Body>
std::string Thrown(Body&& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing";
}

}  // namespace

TEST("the C++ resource allocates and frees on streams, with the alignment that is asked for") {
  Global global(kMiB);
  Resource resource(global);
  device_memory_resource memory(Use(resource));
  TestStream stream;
  void* const first = memory.allocate(Ref(stream), 1000);
  void* const second = memory.allocate(Ref(stream), 300, 4096);
  CHECK(reinterpret_cast<std::uintptr_t>(first) % 256 == 0);
  CHECK(reinterpret_cast<std::uintptr_t>(second) % 4096 == 0);
  CHECK(resource.Statistics().live_bytes == 1300);
  memory.deallocate(Ref(stream), first, 1000);
  CHECK(memory.allocate_async(1000, 256, Ref(stream)) == first);
  memory.deallocate_async(first, 1000, 256, Ref(stream));
  memory.deallocate(Ref(stream), second, 300, 4096);
  CHECK(memory.allocate(Ref(stream), 0) == nullptr);
  memory.deallocate(Ref(stream), nullptr, 0);
  CHECK(memory.allocate_sync(0) == nullptr);
  CHECK(resource.Statistics().live_allocations == 0);
  CHECK(memory.table().device == 0);
}

TEST("memory of another stream comes after its work, and without a stream it is idle at once") {
  Global global(kSuperblock);
  Resource resource(global);
  device_memory_resource memory(Use(resource));
  TestStream stream, other;
  Gate gate;
  void* block = memory.allocate(Ref(stream), kSuperblock);
  gate.Close(stream);
  memory.deallocate(Ref(stream), block, kSuperblock);
  block = memory.allocate(Ref(other), kSuperblock);
  CHECK_OK(driver.MemsetD8Async(reinterpret_cast<DevicePointer>(block), 1, kSuperblock, other));
  SleepMilliseconds(20);
  CHECK(driver.StreamQuery(other) == kErrorNotReady);
  memory.deallocate(Ref(other), block, kSuperblock);
  std::thread opener([&] {
    OnDevice device(0);
    SleepMilliseconds(20);
    gate.Open();
  });
  block = memory.allocate_sync(kSuperblock);
  CHECK(driver.StreamQuery(stream) == kSuccess && driver.StreamQuery(other) == kSuccess);
  CHECK(*static_cast<unsigned char*>(block) == 1);
  opener.join();
  memory.deallocate_sync(block, kSuperblock);
  CHECK(memory.allocate(kSuperblock) == block);
  memory.deallocate(block, kSuperblock);
}

TEST("copies of the C++ resource are one resource, which lives as long as they do") {
  Global global(kMiB);
  Resource resource(global), stranger(global);
  const std::weak_ptr<ThreadSafeArena> arena = resource.arena;
  TestStream stream;
  {
    device_memory_resource memory(resource.c);
    resource.c = nullptr;
    device_memory_resource copy(memory), assigned((Use(stranger)));
    CHECK(copy == memory);
    CHECK(assigned != memory);
    assigned = copy;
    CHECK(assigned == memory && !(assigned != memory));
    device_memory_resource& itself = assigned;
    assigned = itself;
    memory = device_memory_resource(Use(stranger));
    CHECK(memory != copy);
    CHECK(!arena.expired());
    assigned.deallocate(Ref(stream), copy.allocate(Ref(stream), 100), 100);
    // Another table of the same arena is equal.
    device_memory_resource second(arenas::NewResourceTable(arena.lock(), 0, CISTERN_DEVICE));
    CHECK(second == copy);
    second.deallocate(Ref(stream), copy.allocate(Ref(stream), 100), 100);
  }
  CHECK(arena.expired());
}

TEST("the C++ resource says what it lacks: memory, or the right arguments") {
  Global global(kMiB);
  Resource resource(global);
  device_memory_resource memory(Use(resource));
  TestStream stream;
  CHECK(Thrown<std::bad_alloc>([&] { memory.allocate(Ref(stream), 2 * kMiB); }).find("out of memory: 2097152 bytes were asked for") == 0);
  CHECK(Thrown<out_of_memory>([&] { memory.allocate_sync(2 * kMiB); }).find("out of memory: 2097152 bytes were asked for") == 0);
  CHECK(Thrown<resource_error>([&] { memory.allocate(Ref(stream), 8, 3); }) == "the alignment must be a power of two up to 65536, got 3");
  CHECK_OK(driver.StreamBeginCapture(stream, kCaptureModeRelaxed));
  std::int32_t code = CISTERN_OK;
  try {
    memory.allocate(Ref(stream), 8);
  } catch (const resource_error& error) {
    code = error.code();
  }
  CHECK(code == CISTERN_STREAM_CAPTURED);
  Graph graph = nullptr;
  CHECK_OK(driver.StreamEndCapture(stream, &graph));
  CHECK_OK(driver.GraphDestroy(graph));
  CHECK(resource.Statistics().live_allocations == 0);
  void* const all = memory.allocate(Ref(stream), kMiB);
  memory.deallocate(Ref(stream), all, kMiB);
}

TEST("memory that cannot be waited for is given back") {
  Global global(kMiB);
  Resource resource(global);
  device_memory_resource memory(Use(resource));
  cistern_thread_safe_resource broken = *resource.c;
  broken.synchronize = [](void*, std::uint64_t) { return std::int32_t{CISTERN_DRIVER_ERROR}; };
  broken.retain(broken.state);
  CHECK(Thrown<resource_error>([&] { device_memory_resource(&broken).allocate_sync(100); }) != "nothing");
  CHECK(resource.Statistics().live_allocations == 0);
}

TEST("the C++ resource has the properties of its memory only") {
  Global global(kMiB);
  Resource resource(global);
  const std::shared_ptr<ThreadSafeArena> arena = resource.arena.lock();
  const auto refuses = [&](auto construct, int kind) {
    const cistern_thread_safe_resource* const table = arenas::NewResourceTable(arena, 0, kind);
    const bool is_refused = Thrown<std::invalid_argument>([&] { construct(table); }) != "nothing";
    if (is_refused) table->release(table->state);  // it is still the caller's
    return is_refused;
  };
  const auto device = [](const cistern_thread_safe_resource* table) { device_memory_resource{table}; };
  const auto both = [](const cistern_thread_safe_resource* table) { host_device_memory_resource{table}; };
  const auto host = [](const cistern_thread_safe_resource* table) { memory_resource<host_accessible>{table}; };
  CHECK(!refuses(device, CISTERN_DEVICE) && !refuses(device, CISTERN_MANAGED) && !refuses(device, CISTERN_PINNED_HOST));
  CHECK(refuses(both, CISTERN_DEVICE) && !refuses(both, CISTERN_MANAGED) && !refuses(both, CISTERN_PINNED_HOST));
  CHECK(refuses(device, CISTERN_HOST) && refuses(both, CISTERN_HOST));
  CHECK(refuses(host, CISTERN_DEVICE) && !refuses(host, CISTERN_HOST));
  CHECK(Thrown<std::invalid_argument>([] { device_memory_resource{nullptr}; }) == "there is no table of a resource");
}

}  // namespace cistern::test
