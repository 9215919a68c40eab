// Memory and events that other processes use. The program runs itself as the other process, with the
// name of a scene and handles as text.
#include <fcntl.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "fixture.h"
#include "process_test.h"

namespace cistern::test {
namespace {

// What the scene is given.
struct Given {
  IpcMemoryHandle memory;
  IpcEventHandle event;
  PoolPointerData pool_memory;
  int process;
  int descriptor;
};

std::string ToText(const Given& given) {
  std::string text;
  char digits[3];
  for (std::size_t index = 0; index < sizeof given; ++index) {
    std::snprintf(digits, sizeof digits, "%02x", reinterpret_cast<const unsigned char*>(&given)[index]);
    text += digits;
  }
  return text;
}

Given FromText(const char* text) {
  Given given;
  for (std::size_t index = 0; index < sizeof given; ++index) {
    const char digits[3] = {text[2 * index], text[2 * index + 1], '\0'};
    reinterpret_cast<unsigned char*>(&given)[index] = static_cast<unsigned char>(std::strtoul(digits, nullptr, 16));
  }
  return given;
}

pid_t Begin(const std::string& scene, const Given& given) {
  std::string program = "/proc/self/exe";
  std::string name = scene;
  std::string text = ToText(given);
  char* arguments[] = {program.data(), name.data(), text.data(), nullptr};
  pid_t child = 0;
  CHECK(posix_spawn(&child, program.c_str(), nullptr, nullptr, arguments, environ) == 0);
  return child;
}

// The exit status, or -1 if it did not end within ten seconds.
int End(pid_t child) {
  for (int waited = 0; waited < 10000; waited += 5) {
    int status = 0;
    if (waitpid(child, &status, WNOHANG) == child) return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    SleepMilliseconds(5);
  }
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  return -1;
}

bool UseDevice() {
  Context context;
  return driver.Init(0) == kSuccess && driver.DevicePrimaryCtxRetain(&context, 0) == kSuccess && driver.CtxSetCurrent(context) == kSuccess;
}

unsigned char ByteAt(DevicePointer pointer, Stream stream) {
  unsigned char byte = 0;
  if (driver.MemcpyAsync(reinterpret_cast<DevicePointer>(&byte), pointer, 1, stream) != kSuccess) return 255;
  driver.StreamSynchronize(stream);
  return byte;
}

DevicePointer Allocate(std::uint64_t bytes) {
  DevicePointer pointer = 0;
  CHECK_OK(driver.MemAlloc(&pointer, bytes));
  return pointer;
}

// Opens the memory, waits for the event, and fills the first 4 KiB with one more than it finds.
int IncrementFirstPage(const char* text) {
  const Given given = FromText(text);
  if (!UseDevice()) return 90;
  DevicePointer pointer = 0;
  DevicePointer again = 0;
  Event event = nullptr;
  Stream stream = nullptr;
  if (driver.IpcOpenMemHandle(&pointer, given.memory, kIpcLazyPeerAccess) != kSuccess) return 91;
  if (driver.IpcOpenMemHandle(&again, given.memory, kIpcLazyPeerAccess) != kSuccess || again != pointer) return 92;
  if (driver.IpcOpenEventHandle(&event, given.event) != kSuccess) return 93;
  if (driver.StreamCreateWithPriority(&stream, kStreamNonBlocking, 0) != kSuccess) return 94;
  if (driver.StreamWaitEvent(stream, event, 0) != kSuccess) return 95;
  if (driver.EventDestroy(event) != kSuccess) return 96;
  const unsigned char found = ByteAt(pointer, stream);
  if (driver.MemsetD8Async(pointer, static_cast<unsigned char>(found + 1), 4096, stream) != kSuccess) return 97;
  if (driver.MemsetD8Async(pointer + kMiB, 0, 1, stream) != kErrorInvalidValue) return 98;
  if (driver.IpcCloseMemHandle(pointer) != kSuccess || driver.IpcCloseMemHandle(pointer) != kSuccess) return 99;
  if (driver.IpcCloseMemHandle(pointer) != kErrorInvalidValue) return 100;
  return found;
}

int ImportFromPool(const char* text) {
  const Given given = FromText(text);
  if (!UseDevice()) return 90;
  const std::string path = "/proc/" + std::to_string(given.process) + "/fd/" + std::to_string(given.descriptor);
  const int descriptor = open(path.c_str(), O_RDWR | O_CLOEXEC);
  Pool pool = nullptr;
  void* handle = reinterpret_cast<void*>(static_cast<std::uintptr_t>(descriptor));
  if (driver.MemPoolImportFromShareableHandle(&pool, handle, kHandleTypePosixDescriptor, 0) != kSuccess) return 91;
  DevicePointer pointer = 0;
  PoolPointerData data = given.pool_memory;
  if (driver.MemPoolImportPointer(&pointer, pool, &data) != kSuccess) return 92;
  if (driver.MemPoolDestroy(pool) != kSuccess || driver.MemPoolDestroy(pool) != kErrorInvalidValue) return 93;
  const unsigned char found = ByteAt(pointer, nullptr);
  if (driver.MemsetD8Async(pointer, 77, 1, nullptr) != kSuccess || driver.CtxSynchronize() != kSuccess) return 94;
  if (driver.MemFree(pointer) != kSuccess || driver.MemFree(pointer) == kSuccess) return 95;
  return found;
}

}  // namespace

int PlayScene(const char* scene, const char* given) {
  if (std::strcmp(scene, "increment-first-page") == 0) return IncrementFirstPage(given);
  if (std::strcmp(scene, "import-from-pool") == 0) return ImportFromPool(given);
  return 99;
}

TEST("another process maps an allocation, waits for its event and writes to it") {
  const OnDevice device(0);
  const DevicePointer pointer = Allocate(kMiB);
  {
    TestStream stream;
    TestEvent event(kEventDisableTiming | kEventInterprocess);
    Gate gate;
    CHECK_OK(driver.MemsetD8Async(pointer, 1, kMiB, stream));
    stream.Synchronize();
    gate.Close(stream);
    CHECK_OK(driver.MemsetD8Async(pointer, 41, kMiB, stream));
    CHECK_OK(driver.EventRecord(event, stream));
    Given given = {};
    CHECK_OK(driver.IpcGetMemHandle(&given.memory, pointer));
    CHECK_OK(driver.IpcGetEventHandle(&given.event, event));
    const pid_t child = Begin("increment-first-page", given);
    SleepMilliseconds(100);
    gate.Open();
    CHECK(End(child) == 41);
    CHECK(ByteAt(pointer, stream) == 42);
    CHECK(ByteAt(pointer + 4096, stream) == 41);
  }
  CHECK_OK(driver.MemFree(pointer));
}

TEST("neighbours of an exported allocation keep their contents, and its pages change back when it is freed") {
  const OnDevice device(0);
  TestStream stream;
  std::vector<DevicePointer> pointers;
  for (int index = 0; index < 24; ++index) {
    pointers.push_back(Allocate(512));
    CHECK_OK(driver.MemsetD8Async(pointers.back(), static_cast<unsigned char>(index + 1), 512, stream));
  }
  stream.Synchronize();
  IpcMemoryHandle handle;
  for (int index : {3, 9, 10}) CHECK_OK(driver.IpcGetMemHandle(&handle, pointers[static_cast<std::size_t>(index)]));
  for (int index = 0; index < 24; ++index) CHECK(ByteAt(pointers[static_cast<std::size_t>(index)] + 511, stream) == index + 1);
  for (DevicePointer pointer : pointers) CHECK_OK(driver.MemFree(pointer));
  std::FILE* maps = std::fopen("/proc/self/smaps", "re");
  char line[512];
  bool is_of_file = false;
  bool has_pages = false;
  while (std::fgets(line, sizeof line, maps) != nullptr) {
    if (std::strchr(line, '-') != nullptr && std::strstr(line, " kB") == nullptr)
      is_of_file = std::strstr(line, "cistern-device") != nullptr;
    long kib = 0;
    if (is_of_file && std::sscanf(line, "Size: %ld kB", &kib) == 1 && kib < 1024) has_pages = true;
  }
  std::fclose(maps);
  CHECK(!has_pages);
}

TEST("an export loses no write of another stream") {
  const OnDevice device(0);
  const DevicePointer pointer = Allocate(4 * kMiB);
  TestStream streams[2];
  IpcMemoryHandle handle;
  for (int round = 0; round < 8; ++round) {
    const DevicePointer fresh = Allocate(4 * kMiB);
    for (int index = 0; index < 2; ++index) {
      for (int part = 0; part < 64; ++part) {
        CHECK_OK(driver.MemsetD8Async(fresh + static_cast<std::uint64_t>(2 * part + index) * 32768, static_cast<unsigned char>(part), 32768,
                                      streams[index]));
      }
    }
    CHECK_OK(driver.IpcGetMemHandle(&handle, fresh));
    CHECK_OK(driver.CtxSynchronize());
    for (int part = 0; part < 128; ++part) CHECK(ByteAt(fresh + static_cast<std::uint64_t>(part) * 32768 + 32767, streams[0]) == part / 2);
    CHECK_OK(driver.MemFree(fresh));
  }
  CHECK_OK(driver.MemFree(pointer));
}

TEST("memory that cannot be exported, and handles that cannot be opened, are refused") {
  const OnDevice device(0);
  const DevicePointer pointer = Allocate(4096);
  IpcMemoryHandle handle = {};
  DevicePointer opened = 0;
  CHECK(driver.IpcGetMemHandle(&handle, pointer + 512) == kErrorInvalidValue);
  CHECK(driver.IpcOpenMemHandle(&opened, handle, kIpcLazyPeerAccess) == kErrorInvalidHandle);
  CHECK_OK(driver.IpcGetMemHandle(&handle, pointer));
  CHECK(driver.IpcOpenMemHandle(&opened, handle, kIpcLazyPeerAccess) == kErrorInvalidContext);
  handle.bytes[20] ^= 1;  // in the nonce
  CHECK(driver.IpcOpenMemHandle(&opened, handle, kIpcLazyPeerAccess) == kErrorInvalidHandle);
  CHECK_OK(driver.MemFree(pointer));
  CHECK(driver.IpcGetMemHandle(&handle, pointer) == kErrorInvalidValue);

  TestStream stream;
  TestPool pool;
  const DevicePointer of_pool = pool.Allocate(4096, stream);
  CHECK(driver.IpcGetMemHandle(&handle, of_pool) == kErrorInvalidValue);
  PoolPointerData data;
  CHECK(driver.MemPoolExportPointer(&data, of_pool) == kErrorNotSupported);
  FreeAsync(of_pool, stream);
  Event event = nullptr;
  CHECK(driver.EventCreate(&event, kEventInterprocess) == kErrorInvalidValue);
  TestEvent local;
  IpcEventHandle event_handle;
  CHECK(driver.IpcGetEventHandle(&event_handle, local) == kErrorInvalidValue);
}

TEST("another process imports an allocation of an exportable pool") {
  const OnDevice device(0);
  PoolProperties properties = PoolOn(0);
  properties.handle_types = kHandleTypePosixDescriptor;
  Pool pool = nullptr;
  CHECK_OK(driver.MemPoolCreate(&pool, &properties));
  {
    TestStream stream;
    DevicePointer pointer = 0;
    CHECK_OK(driver.MemAllocFromPoolAsync(&pointer, 8192, pool, stream));
    CHECK_OK(driver.MemsetD8Async(pointer, 5, 8192, stream));
    stream.Synchronize();
    Given given = {};
    given.process = getpid();
    CHECK_OK(driver.MemPoolExportToShareableHandle(&given.descriptor, pool, kHandleTypePosixDescriptor, 0));
    CHECK_OK(driver.MemPoolExportPointer(&given.pool_memory, pointer));
    CHECK(End(Begin("import-from-pool", given)) == 5);
    CHECK(ByteAt(pointer, stream) == 77);
    close(given.descriptor);
    FreeAsync(pointer, stream);
    stream.Synchronize();
  }
  CHECK_OK(driver.MemPoolDestroy(pool));
}

}  // namespace cistern::test
