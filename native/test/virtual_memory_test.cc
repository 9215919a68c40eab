// Virtual memory: reserved addresses, memory that is mapped to them, and what may use it.
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <vector>

#include "fixture.h"
#include "order/checked_table.h"

namespace cistern::test {
namespace {

constexpr std::uint64_t kPage = 2 * kMiB;

AllocationProperties PropertiesOf(int device) {
  AllocationProperties properties{};
  properties.type = 1;
  properties.location = {kLocationDevice, device};
  return properties;
}

std::uint64_t FreeBytes() {
  std::size_t free = 0;
  std::size_t total = 0;
  CHECK_OK(driver.MemGetInfo(&free, &total));
  return free;
}

// Whether the range is accessible, for a copy of it to itself.
bool IsUsable(DevicePointer address, std::uint64_t bytes, Stream stream) {
  return driver.MemcpyAsync(address, address, bytes, stream) == kSuccess && driver.StreamSynchronize(stream) == kSuccess;
}

class Addresses {
 public:
  explicit Addresses(std::uint64_t bytes) : bytes_(bytes) { CHECK_OK(driver.MemAddressReserve(&base_, bytes, 0, 0, 0)); }
  ~Addresses() { CHECK_OK(driver.MemAddressFree(base_, bytes_)); }
  Addresses(const Addresses&) = delete;
  operator DevicePointer() const { return base_; }

 private:
  DevicePointer base_ = 0;
  std::uint64_t bytes_;
};

void SetAccess(DevicePointer address, std::uint64_t bytes, int flags = kAccessReadWrite, int device = 0) {
  AccessDescription access{{kLocationDevice, device}, flags};
  CHECK_OK(driver.MemSetAccess(address, bytes, &access, 1));
}

// Maps new memory, whose handle is released at once, and makes it accessible.
void Map(DevicePointer address, std::uint64_t bytes = kPage, const DriverTable& table = driver) {
  AllocationProperties properties = PropertiesOf(0);
  MemoryHandle memory = 0;
  CHECK_OK(table.MemCreate(&memory, bytes, &properties, 0));
  CHECK_OK(table.MemMap(address, bytes, 0, memory, 0));
  CHECK_OK(table.MemRelease(memory));
  SetAccess(address, bytes);
}

[[maybe_unused]] std::uint64_t ResidentBytes() {
  long pages = 0;
  long resident = 0;
  std::FILE* file = std::fopen("/proc/self/statm", "re");
  CHECK(std::fscanf(file, "%ld %ld", &pages, &resident) == 2);
  std::fclose(file);
  return static_cast<std::uint64_t>(resident) * static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
}

}  // namespace

TEST("reserved addresses take no memory, and cannot be used until memory is mapped and accessible") {
  std::uint64_t before = FreeBytes();
  TestStream stream;
  AllocationProperties properties = PropertiesOf(0);
  std::size_t granularity = 0;
  CHECK_OK(driver.MemGetAllocationGranularity(&granularity, &properties, kGranularityRecommended));
  CHECK(granularity == kPage);
  {
    Addresses addresses(1024 * kTotal);
    CHECK(addresses % kPage == 0);
    CHECK(FreeBytes() == before);
    CHECK(!IsUsable(addresses, 1, stream));
    MemoryHandle memory = 0;
    CHECK_OK(driver.MemCreate(&memory, kPage, &properties, 0));
    CHECK(FreeBytes() == before - kPage);
    CHECK_OK(driver.MemMap(addresses + kPage, kPage, 0, memory, 0));
    CHECK(!IsUsable(addresses + kPage, 1, stream));
    SetAccess(addresses + kPage, kPage);
    CHECK(IsUsable(addresses + kPage, kPage, stream));
    CHECK(!IsUsable(addresses + kPage, kPage + 1, stream));
    unsigned type = 0;
    int ordinal = -1;
    CHECK_OK(driver.PointerGetAttribute(&type, kPointerMemoryType, addresses + kPage + 5));
    CHECK_OK(driver.PointerGetAttribute(&ordinal, kPointerDeviceOrdinal, addresses + kPage + 5));
    CHECK(type == kMemoryTypeDevice && ordinal == 0);
    CHECK(driver.PointerGetAttribute(&type, kPointerMemoryType, addresses) == kErrorInvalidValue);
    SetAccess(addresses + kPage, kPage, kAccessNone);
    CHECK(!IsUsable(addresses + kPage, 1, stream));
    // The mapping and the handle each keep the memory.
    CHECK_OK(driver.MemUnmap(addresses + kPage, kPage));
    CHECK(FreeBytes() == before - kPage);
    CHECK_OK(driver.MemRelease(memory));
    CHECK(FreeBytes() == before);
  }
  Addresses addresses(2 * kPage);
  Map(addresses);
  CHECK(FreeBytes() == before - kPage);
  CHECK_OK(driver.MemUnmap(addresses, kPage));
  CHECK(FreeBytes() == before);
}

TEST("mappings that are adjacent are used as one, and new ones are empty") {
  TestStream stream;
  Addresses addresses(8 * kPage);
  Map(addresses);
  Map(addresses + kPage, 3 * kPage);
  CHECK_OK(driver.MemsetD8Async(addresses, 7, 4 * kPage, stream));
  unsigned char bytes[2] = {};
  CHECK_OK(driver.MemcpyAsync(reinterpret_cast<DevicePointer>(bytes), addresses + kPage - 1, 2, stream));
  stream.Synchronize();
  CHECK(bytes[0] == 7 && bytes[1] == 7);
  CHECK_OK(driver.MemUnmap(addresses, kPage));
  CHECK(!IsUsable(addresses, 1, stream));
  CHECK(IsUsable(addresses + kPage, 3 * kPage, stream));
  Map(addresses);
  CHECK_OK(driver.MemcpyAsync(reinterpret_cast<DevicePointer>(bytes), addresses + kPage - 1, 2, stream));
  stream.Synchronize();
  CHECK(bytes[0] == 0 && bytes[1] == 7);
  // Several at once, if they are whole.
  CHECK(driver.MemUnmap(addresses, 2 * kPage) == kErrorInvalidValue);
  CHECK_OK(driver.MemUnmap(addresses, 4 * kPage));
}

TEST("virtual memory counts against the device's total with everything else") {
  Addresses addresses(2 * kTotal);
  AllocationProperties properties = PropertiesOf(0);
  std::uint64_t rest = FreeBytes() / kPage * kPage;
  DevicePointer plain = 0;
  CHECK_OK(driver.MemAlloc(&plain, rest - kPage));
  Map(addresses);
  MemoryHandle memory = 0;
  CHECK(driver.MemCreate(&memory, kPage, &properties, 0) == kErrorOutOfMemory);
  DevicePointer none = 0;
  CHECK(driver.MemAlloc(&none, kPage) == kErrorOutOfMemory);
  CHECK_OK(driver.MemFree(plain));
  CHECK_OK(driver.MemCreate(&memory, rest - kPage, &properties, 0));
  CHECK_OK(driver.MemRelease(memory));
  // What a pool holds and does not use is taken back.
  {
    TestPool pool;
    TestStream stream;
    FreeAsync(pool.Allocate(rest - 2 * kPage, stream), stream);
    stream.Synchronize();
    CHECK_OK(driver.MemCreate(&memory, rest - 2 * kPage, &properties, 0));
    CHECK_OK(driver.MemRelease(memory));
  }
  CHECK_OK(driver.MemUnmap(addresses, kPage));
}

TEST("mapped memory can be used by the devices that have access to it") {
  Addresses addresses(kPage);
  Map(addresses);
  OnDevice other(1);
  TestStream stream;
  CHECK(!IsUsable(addresses, kPage, stream));
  SetAccess(addresses, kPage, kAccessReadWrite, 1);
  CHECK(IsUsable(addresses, kPage, stream));
  SetAccess(addresses, kPage, kAccessNone, 1);
  CHECK(!IsUsable(addresses, kPage, stream));
  CHECK_OK(driver.MemUnmap(addresses, kPage));
}

TEST("unmapping waits for the work that uses the memory, on every device") {
  for (int device : {0, 1}) {
    OnDevice stream_device(device);
    TestStream stream;
    Addresses addresses(kPage);
    Map(addresses);
    SetAccess(addresses, kPage, kAccessReadWrite, device);
    Gate gate;
    gate.Close(stream);
    CHECK_OK(driver.MemsetD8Async(addresses, 1, kPage, stream));
    std::atomic<bool> is_unmapped{false};
    std::thread thread([&] {
      OnDevice on(0);
      CHECK_OK(driver.MemUnmap(addresses, kPage));
      is_unmapped = true;
    });
    SleepMilliseconds(20);
    CHECK(!is_unmapped);
    gate.Open();
    thread.join();
  }
}

TEST("memory that is unmapped goes back to the system") {
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  TestStream stream;
  Addresses addresses(kTotal);
  Map(addresses, 64 * kMiB);
  CHECK_OK(driver.MemsetD8Async(addresses, 1, 64 * kMiB, stream));
  stream.Synchronize();
  std::uint64_t full = ResidentBytes();
  CHECK_OK(driver.MemUnmap(addresses, 64 * kMiB));
  CHECK(ResidentBytes() + 60 * kMiB < full);
#endif
}

TEST("what is not reserved, mapped or created like that is refused") {
  DevicePointer base = 0;
  CHECK(driver.MemAddressReserve(&base, 0, 0, 0, 0) == kErrorInvalidValue);
  CHECK(driver.MemAddressReserve(&base, kPage + 1, 0, 0, 0) == kErrorInvalidValue);
  CHECK(driver.MemAddressReserve(&base, kPage, 3, 0, 0) == kErrorInvalidValue);
  CHECK(driver.MemAddressReserve(&base, std::uint64_t{1} << 60, 0, 0, 0) == kErrorOutOfMemory);
  CHECK(driver.MemAddressReserve(nullptr, kPage, 0, 0, 0) == kErrorInvalidValue);
  CHECK_OK(driver.MemAddressReserve(&base, 2 * kPage, 64 * kMiB, 0, 0));
  CHECK(base % (64 * kMiB) == 0);
  CHECK_OK(driver.MemAddressFree(base, 2 * kPage));
  CHECK(driver.MemAddressFree(base, 2 * kPage) == kErrorInvalidValue);

  Addresses addresses(4 * kPage);
  AllocationProperties properties = PropertiesOf(0);
  MemoryHandle memory = 0;
  CHECK(driver.MemCreate(&memory, 0, &properties, 0) == kErrorInvalidValue);
  CHECK(driver.MemCreate(&memory, kPage / 2, &properties, 0) == kErrorInvalidValue);
  CHECK(driver.MemCreate(&memory, kPage, nullptr, 0) == kErrorInvalidValue);
  AllocationProperties wrong = PropertiesOf(5);
  CHECK(driver.MemCreate(&memory, kPage, &wrong, 0) == kErrorInvalidDevice);
  wrong = properties;
  wrong.handle_types = 2;
  CHECK(driver.MemCreate(&memory, kPage, &wrong, 0) == kErrorNotSupported);
  CHECK_OK(driver.MemCreate(&memory, kPage, &properties, 0));
  CHECK(driver.MemMap(addresses, 2 * kPage, 0, memory, 0) == kErrorInvalidValue);
  CHECK(driver.MemMap(addresses + 4 * kPage, kPage, 0, memory, 0) == kErrorInvalidValue);
  CHECK(driver.MemMap(addresses + 512, kPage, 0, memory, 0) == kErrorInvalidValue);
  CHECK(driver.MemMap(addresses, kPage, kPage, memory, 0) == kErrorInvalidValue);
  CHECK(driver.MemMap(addresses, kPage, 0, memory + 1, 0) == kErrorInvalidValue);
  Map(addresses + kPage, 2 * kPage);
  CHECK(driver.MemMap(addresses + kPage, kPage, 0, memory, 0) == kErrorInvalidValue);
  CHECK(driver.MemMap(addresses + 2 * kPage, kPage, 0, memory, 0) == kErrorInvalidValue);
  CHECK_OK(driver.MemMap(addresses, kPage, 0, memory, 0));
  CHECK(driver.MemMap(addresses + 3 * kPage, kPage, 0, memory, 0) == kErrorNotSupported);
  CHECK(driver.MemUnmap(addresses + kPage, kPage) == kErrorInvalidValue);
  CHECK(driver.MemUnmap(addresses + 3 * kPage, kPage) == kErrorInvalidValue);
  AccessDescription access{{kLocationDevice, 5}, kAccessReadWrite};
  CHECK(driver.MemSetAccess(addresses, kPage, &access, 1) == kErrorInvalidDevice);
  access.location.id = 1;
  CHECK(software::SetPeers("none"));
  CHECK(driver.MemSetAccess(addresses, kPage, &access, 1) == kErrorInvalidDevice);
  CHECK(software::SetPeers("all"));
  access = {{kLocationDevice, 0}, kAccessReadWrite};
  const AccessDescription mixed[] = {access, {{kLocationDevice, 1}, kAccessRead}};
  CHECK(driver.MemSetAccess(addresses, kPage, mixed, 2) == kErrorNotSupported);
  CHECK(driver.MemSetAccess(addresses, 4 * kPage, &access, 1) == kErrorInvalidValue);
  CHECK(driver.MemSetAccess(addresses, kPage, &access, 0) == kErrorInvalidValue);
  CHECK(driver.MemAddressFree(addresses, 4 * kPage) == kErrorInvalidValue);
  CHECK(driver.MemFree(addresses) == kErrorInvalidValue);
  CHECK_OK(driver.MemUnmap(addresses, 3 * kPage));
  CHECK_OK(driver.MemRelease(memory));
  CHECK(driver.MemRelease(memory) == kErrorInvalidValue);
}

TEST("addresses are those that were asked for, if they are free") {
#ifdef __linux__
  DevicePointer first = 0;
  DevicePointer second = 0;
  // An address that every sanitizer allows.
  CHECK_OK(driver.MemAddressReserve(&first, kPage, 0, 0, 0));
  const DevicePointer wanted = first;
  CHECK_OK(driver.MemAddressFree(first, kPage));
  CHECK_OK(driver.MemAddressReserve(&first, kPage, 0, wanted, 0));
  CHECK(first == wanted);
  CHECK_OK(driver.MemAddressReserve(&second, kPage, 0, first, 0));
  CHECK(second != first);
  CHECK_OK(driver.MemAddressFree(first, kPage));
  CHECK_OK(driver.MemAddressFree(second, kPage));
#endif
}

TEST("memory that may only be read is read, and not written") {
  const OnDevice device(0);
  TestStream stream;
  Addresses addresses(kPage);
  Map(addresses);
  CHECK_OK(driver.MemsetD8Async(addresses, 5, kPage, stream));
  // As on a GPU, work that writes when the access is gone ends the program.
  stream.Synchronize();
  SetAccess(addresses, kPage, kAccessRead);
  CHECK(driver.MemsetD8Async(addresses, 6, kPage, stream) == kErrorInvalidValue);
  unsigned char read = 0;
  CHECK(driver.MemcpyAsync(addresses, reinterpret_cast<DevicePointer>(&read), 1, stream) == kErrorInvalidValue);
  CHECK_OK(driver.MemcpyAsync(reinterpret_cast<DevicePointer>(&read), addresses, 1, stream));
  stream.Synchronize();
  CHECK(read == 5);
  SetAccess(addresses, kPage);
  CHECK_OK(driver.MemsetD8Async(addresses, 7, kPage, stream));
  stream.Synchronize();
  CHECK_OK(driver.MemUnmap(addresses, kPage));
}

TEST("a descriptor keeps memory with its contents, and can be mapped again as long as it is open") {
#ifdef __linux__
  const OnDevice device(0);
  TestStream stream;
  const std::uint64_t before = FreeBytes();
  AllocationProperties properties = PropertiesOf(0);
  properties.handle_types = kHandleTypePosixDescriptor;
  MemoryHandle memory = 0;
  int descriptor = -1;
  CHECK_OK(driver.MemCreate(&memory, kPage, &properties, 0));
  CHECK_OK(driver.MemExportToShareableHandle(&descriptor, memory, kHandleTypePosixDescriptor, 0));
  {
    Addresses addresses(kPage);
    CHECK_OK(driver.MemMap(addresses, kPage, 0, memory, 0));
    CHECK_OK(driver.MemRelease(memory));
    CHECK(!IsUsable(addresses, kPage, stream));
    SetAccess(addresses, kPage);
    CHECK_OK(driver.MemsetD8Async(addresses, 9, kPage, stream));
    stream.Synchronize();
    CHECK_OK(driver.MemUnmap(addresses, kPage));
  }
  CHECK(FreeBytes() == before);
  void* handle = reinterpret_cast<void*>(static_cast<std::uintptr_t>(descriptor));
  CHECK_OK(driver.MemImportFromShareableHandle(&memory, handle, kHandleTypePosixDescriptor));
  CHECK(FreeBytes() == before - kPage);
  {
    Addresses addresses(2 * kPage);
    for (const std::uint64_t offset : {std::uint64_t{0}, kPage}) CHECK_OK(driver.MemMap(addresses + offset, kPage, 0, memory, 0));
    SetAccess(addresses, 2 * kPage, kAccessRead);
    unsigned char read = 0;
    CHECK_OK(driver.MemcpyAsync(reinterpret_cast<DevicePointer>(&read), addresses + 2 * kPage - 1, 1, stream));
    stream.Synchronize();
    CHECK(read == 9);
    CHECK_OK(driver.MemUnmap(addresses, 2 * kPage));
  }
  CHECK_OK(driver.MemRelease(memory));
  close(descriptor);
  CHECK(FreeBytes() == before);
#endif
}

TEST("what is no descriptor of memory is not imported, and memory that was not created for it is not exported") {
#ifdef __linux__
  const OnDevice device(0);
  const std::uint64_t before = FreeBytes();
  MemoryHandle memory = 0;
  int ends[2];
  CHECK(pipe(ends) == 0);
  for (const int descriptor : {-1, ends[0]}) {
    void* handle = reinterpret_cast<void*>(static_cast<std::uintptr_t>(descriptor));
    CHECK(driver.MemImportFromShareableHandle(&memory, handle, kHandleTypePosixDescriptor) == kErrorInvalidValue);
  }
  for (const int end : ends) close(end);
  CHECK(driver.MemImportFromShareableHandle(&memory, nullptr, 2) == kErrorInvalidValue);
  AllocationProperties properties = PropertiesOf(0);
  int descriptor = -1;
  CHECK_OK(driver.MemCreate(&memory, kPage, &properties, 0));
  CHECK(driver.MemExportToShareableHandle(&descriptor, memory, kHandleTypePosixDescriptor, 0) == kErrorInvalidValue);
  CHECK(driver.MemExportToShareableHandle(nullptr, memory, kHandleTypePosixDescriptor, 0) == kErrorInvalidValue);
  CHECK_OK(driver.MemRelease(memory));
  CHECK(FreeBytes() == before);
#endif
}

TEST("the order checker knows mapped memory, and does not count on an unmap to wait") {
  const DriverTable& checked = *order::CheckedTable(&driver);
  order::OrderChecker& checker = *order::CheckerOf(&checked);
  TestStream stream;
  TestStream other;
  Addresses addresses(2 * kPage);
  checker.Start();
  const auto kinds = [&] {
    std::uint64_t dropped;
    std::vector<order::ReportKind> found;
    for (const order::Report& report : checker.TakeReports(0, 100, &dropped)) found.push_back(report.kind);
    return found;
  };
  Map(addresses, kPage, checked);
  Map(addresses + kPage, kPage, checked);
  CHECK_OK(checked.MemsetD8Async(addresses, 1, 2 * kPage, stream));
  // Nothing is really written: a thread sanitizer would report it.
  checker.Used(other, order::Action::kTouch, order::Access::kWrite, addresses + kPage, kPage);
  CHECK((kinds() == std::vector<order::ReportKind>{order::ReportKind::kUnordered}));
  CHECK_OK(checked.MemUnmap(addresses, kPage));
  CHECK((kinds() == std::vector<order::ReportKind>{order::ReportKind::kFreedWhileInUse}));
  CHECK_OK(checked.CtxSynchronize());
  CHECK_OK(checked.MemUnmap(addresses + kPage, kPage));
  Map(addresses, kPage, checked);
  CHECK_OK(checked.MemsetD8Async(addresses, 1, kPage, other));
  CHECK_OK(checked.StreamSynchronize(other));
  CHECK_OK(checked.MemUnmap(addresses, kPage));
  CHECK(kinds().empty());
  checker.Stop();
}

}  // namespace cistern::test
