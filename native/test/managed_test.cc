// Where the pages of managed memory are, when they move, and what is counted.
#include <chrono>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "fixture.h"
#include "platform/system.h"
#include "software/settings.h"

namespace cistern::test {
namespace {

using software::ActivityAt;
using software::ManagedActivity;
using software::ManagedMove;
using software::MoveReason;
using software::ResidentBytes;

constexpr std::uint64_t kPage = 2 * kMiB;
constexpr int kHost = -1;
constexpr MemLocation kToHost = {kLocationHost, 0};
constexpr MemLocation kToDevice0 = {kLocationDevice, 0};
constexpr MemLocation kToDevice1 = {kLocationDevice, 1};

// Managed memory, with the counts reset.
class Managed {
 public:
  explicit Managed(std::uint64_t bytes) : bytes_(bytes) {
    CHECK_OK(driver.MemAllocManaged(&pointer_, bytes, kMemAttachGlobal));
    software::ResetManagedActivity();
  }
  ~Managed() { CHECK_OK(driver.MemFree(pointer_)); }
  Managed(const Managed&) = delete;
  operator DevicePointer() const { return pointer_; }
  std::uint64_t At(int place) const { return ResidentBytes(pointer_, bytes_, place); }
  void Advise(int advice, MemLocation location = {}) const { CHECK_OK(driver.MemAdvise(pointer_, bytes_, advice, location)); }

 private:
  std::uint64_t bytes_;
  DevicePointer pointer_ = 0;
};

DevicePointer AllocateOn(int device, std::uint64_t bytes) {
  OnDevice current(device);
  DevicePointer pointer = 0;
  CHECK_OK(driver.MemAlloc(&pointer, bytes));
  return pointer;
}

void Write(DevicePointer pointer, std::uint64_t bytes, Stream stream) { CHECK_OK(driver.MemsetD8Async(pointer, 7, bytes, stream)); }

// Reads managed memory on the stream's device.
class Reader {
 public:
  explicit Reader(int device) : target_(AllocateOn(device, 16 * kMiB)) {}
  ~Reader() { CHECK_OK(driver.MemFree(target_)); }
  void Read(DevicePointer pointer, std::uint64_t bytes, Stream stream) const {
    CHECK_OK(driver.MemcpyAsync(target_, pointer, bytes, stream));
  }

 private:
  DevicePointer target_;
};

std::uint64_t FreeBytes() {
  std::size_t free = 0;
  std::size_t total = 0;
  CHECK_OK(driver.MemGetInfo(&free, &total));
  return free;
}

// Takes notes of moves for a scope.
class Notes {
 public:
  Notes() { has_begun = software::BeginManagedMoves(&pending_); }
  ~Notes() { software::EndManagedMoves(&pending_); }
  Notes(const Notes&) = delete;
  bool ArePending() const { return __atomic_load_n(&pending_, __ATOMIC_ACQUIRE) == 1; }
  std::vector<ManagedMove> Take(std::size_t count = 1000) {
    std::vector<ManagedMove> moves(count);
    moves.resize(software::TakeManagedMoves(&pending_, moves.data(), count));
    return moves;
  }
  bool has_begun;

 private:
  std::int32_t pending_ = 0;
};

}  // namespace

TEST("moves are noted for one taker, beginning with the pages that are somewhere") {
  TestStream stream;
  Managed memory(2 * kPage + 4096);
  Write(memory + kPage, 1, stream);
  stream.Synchronize();
  {
    Notes notes;
    CHECK(notes.has_begun && notes.ArePending());
    {
      Notes others;
      CHECK(!others.has_begun && !others.ArePending() && others.Take().empty());
    }
    const std::vector<ManagedMove> present = notes.Take();
    CHECK(present.size() == 1 && present[0].reason == MoveReason::kPresent && present[0].place == 0);
    CHECK(present[0].address == memory + kPage && present[0].bytes == kPage && present[0].stream == 0);
    CHECK(!notes.ArePending());
    software::AccessFromHost(memory, 2 * kPage + 4096, false);
    CHECK(notes.ArePending());
    const std::vector<ManagedMove> first = notes.Take(2);
    CHECK(first.size() == 2 && notes.ArePending());
    CHECK(first[0].reason == MoveReason::kFirstUse && first[0].place == kHost);
    CHECK(first[1].reason == MoveReason::kHostView && first[1].address == memory + kPage);
    const std::vector<ManagedMove> rest = notes.Take();
    CHECK(rest.size() == 2 && !notes.ArePending());
    CHECK(rest[0].reason == MoveReason::kLeft && rest[0].place == 0 && rest[0].nanoseconds >= first[1].nanoseconds);
    CHECK(rest[1].reason == MoveReason::kFirstUse && rest[1].bytes == 4096);
    Write(memory, 1, stream);
    stream.Synchronize();
  }
  Notes notes;
  CHECK(notes.has_begun && notes.Take().size() == 3);
}

TEST("notes of several streams on a full device say what is resident after each of them") {
  CHECK_OK(software::Configure(8 * kMiB, 0));
  {
    Managed memory(16 * kPage);
    Notes notes;
    std::vector<ManagedMove> moves;
    {
      TestStream streams[3];
      for (int i = 0; i < 300; ++i) {
        Write(memory + static_cast<std::uint64_t>(i * 7 % 16) * kPage + static_cast<std::uint64_t>(i % 3), 1, streams[i % 3]);
        if (i % 50 != 0) continue;
        for (const ManagedMove& move : notes.Take()) moves.push_back(move);
      }
      for (TestStream& stream : streams) stream.Synchronize();
    }
    for (const ManagedMove& move : notes.Take(100000)) moves.push_back(move);
    std::uint64_t resident = 0;
    std::uint64_t faults = 0;
    for (const ManagedMove& move : moves) {
      if (move.place != 0) continue;
      resident = move.reason == MoveReason::kLeft ? resident - move.bytes : resident + move.bytes;
      faults += move.reason == MoveReason::kLeft ? 0 : 1;
      CHECK(resident <= 8 * kMiB);
    }
    CHECK(resident == ActivityAt(0).resident_bytes && faults == ActivityAt(0).faults);
  }
  CHECK_OK(software::Configure(kTotal, 0));
}

TEST("of more moves than can wait, some are lost, and the notes then say again where each page is") {
  constexpr std::uint64_t kPages = 256;
  CHECK_OK(software::Configure(3 * kPages * kPage, 0));
  {
    TestStream stream;
    const auto bring = [&](const Managed& memory, std::uint64_t pages, MemLocation place) {
      CHECK_OK(driver.MemPrefetchAsync(memory, pages * kPage, place, 0, stream));
      stream.Synchronize();
    };
    auto ends = std::make_unique<Managed>(kPages * kPage);
    bring(*ends, kPages, kToDevice0);
    Managed returns(kPages * kPage);
    Notes notes;
    // Where the pages are according to the notes.
    std::set<std::pair<int, std::uint64_t>> places;
    std::uint64_t lost = 0;
    const auto follow = [&](const std::vector<ManagedMove>& moves) {
      for (std::size_t i = 0; i < moves.size(); ++i) {
        const ManagedMove& move = moves[i];
        CHECK(i == 0 || move.nanoseconds >= moves[i - 1].nanoseconds);
        if (move.reason == MoveReason::kLost) {
          lost += move.bytes;
        } else if (move.reason == MoveReason::kLeft) {
          CHECK(places.erase({move.place, move.address}) == 1);
        } else {
          CHECK(places.emplace(move.place, move.address).second);
        }
      }
      return moves.size();
    };
    const auto pages_at = [&](int place) {
      std::uint64_t pages = 0;
      for (const auto& each : places) pages += each.first == place ? 1 : 0;
      return pages;
    };
    bring(returns, kPages, kToDevice0);
    std::uint64_t added = 2 * kPages;
    while (added < software::kMostNotes + 1000) {
      bring(returns, kPages, kToHost);
      bring(returns, kPages, kToDevice0);
      added += 4 * kPages;
    }
    // The end of a range, another one at its address that nobody will know of, and a third.
    ends.reset();
    {
      Managed unknown(kPages * kPage);
      bring(unknown, kPages, kToDevice0);
    }
    Managed begins(kPages * kPage);
    bring(begins, 3, kToDevice0);
    bring(returns, 1, kToHost);
    added += 3 * kPages + 3 + 2;

    CHECK(follow(notes.Take(software::kMostNotes)) == software::kMostNotes && lost == 0 && notes.ArePending());
    CHECK(pages_at(0) == kPages && pages_at(kHost) == kPages);
    CHECK(follow(notes.Take(1)) == 1 && lost == added - software::kMostNotes && notes.ArePending());
    CHECK(follow(notes.Take(10000)) == 3 * kPages + 3 && !notes.ArePending());
    CHECK(pages_at(0) == kPages + 2 && pages_at(kHost) == 1 && pages_at(0) * kPage == ActivityAt(0).resident_bytes);
    // It goes on as before.
    bring(returns, 1, kToDevice0);
    CHECK(follow(notes.Take()) == 2 && pages_at(0) == kPages + 3 && pages_at(kHost) == 0);
  }
  CHECK_OK(software::Configure(kTotal, 0));
}

TEST("a page of managed memory is at the place that used it, from the time when the operation runs") {
  TestStream stream;
  const std::uint64_t free = FreeBytes();
  Managed memory(3 * kPage + 4096);
  CHECK(memory.At(0) == 0 && memory.At(kHost) == 0);
  Gate gate;
  gate.Close(stream);
  Write(memory + kPage, 1, stream);
  CHECK_OK(driver.MemPrefetchAsync(memory + 3 * kPage, 1, kToDevice0, 0, stream));
  CHECK(memory.At(0) == 0);
  gate.Open();
  stream.Synchronize();
  CHECK(memory.At(0) == kPage + 4096);
  CHECK(FreeBytes() == free - kPage - 4096);
  CHECK(ResidentBytes(memory + kPage, 100, 0) == 100 && ResidentBytes(memory, 100, 0) == 0);
  CHECK(ActivityAt(0).faults == 1 && ActivityAt(0).bytes_from_host == 0);

  software::AccessFromHost(memory, 3 * kPage, false);
  CHECK(memory.At(0) == 4096 && memory.At(kHost) == 3 * kPage);
  CHECK(ActivityAt(kHost).faults == 3 && ActivityAt(kHost).bytes_from_devices == kPage);
  Write(memory + kPage, 1, stream);
  stream.Synchronize();
  CHECK(ActivityAt(0).thrashes == 1 && ActivityAt(0).bytes_from_host == kPage);
}

TEST("freed managed memory leaves its places") {
  TestStream stream;
  const std::uint64_t free = FreeBytes();
  {
    Managed memory(4 * kPage);
    Write(memory, 4 * kPage, stream);
    stream.Synchronize();
    CHECK(FreeBytes() == free - 4 * kPage);
    CHECK(ActivityAt(0).resident_bytes == 4 * kPage);
  }
  CHECK(FreeBytes() == free);
  CHECK(ActivityAt(0).resident_bytes == 0 && ActivityAt(0).peak_resident_bytes == 4 * kPage);
}

TEST("a full device gives up the page that was used longest ago") {
  TestStream stream;
  CHECK_OK(software::Configure(8 * kMiB, 0));
  {
    Managed memory(6 * kPage);
    for (int page : {0, 1, 2, 3, 0, 4}) Write(memory + page * kPage, kPage, stream);
    stream.Synchronize();
    CHECK(memory.At(0) == 4 * kPage && FreeBytes() == 0);
    CHECK(ResidentBytes(memory + kPage, kPage, kHost) == kPage);
    CHECK(ActivityAt(0).evictions == 1 && ActivityAt(0).evicted_bytes == kPage);
    CHECK(ActivityAt(kHost).bytes_from_devices == kPage && ActivityAt(kHost).faults == 0);
    Write(memory + kPage, 1, stream);
    stream.Synchronize();
    CHECK(ResidentBytes(memory + 2 * kPage, kPage, kHost) == kPage && ActivityAt(0).thrashes == 1);
    // Allocations of the device come before pages, and a pool's segments too.
    DevicePointer plain = AllocateOn(0, 3 * kMiB);
    CHECK(memory.At(0) == 2 * kPage);
    TestPool pool;
    DevicePointer pooled = pool.Allocate(2 * kMiB, stream);
    CHECK(memory.At(0) == kPage);
    CHECK(FreeBytes() == kMiB);
    // No page has room now: it stays at the host, and the device uses it there.
    DevicePointer rest = AllocateOn(0, 3 * kMiB);
    CHECK(memory.At(0) == 0);
    software::ResetManagedActivity();
    Write(memory, 100, stream);
    stream.Synchronize();
    CHECK(memory.At(0) == 0 && ActivityAt(0).remote_bytes == 100 && ActivityAt(0).faults == 1);
    FreeAsync(pooled, stream);
    CHECK_OK(driver.MemFree(rest));
    CHECK_OK(driver.MemFree(plain));
    CHECK_OK(driver.MemPrefetchAsync(memory, 3 * kPage, kToDevice0, 0, stream));
    stream.Synchronize();
    CHECK_OK(software::Configure(4 * kMiB, 0));
    CHECK(memory.At(0) == 2 * kPage && FreeBytes() == 0);
  }
  CHECK_OK(software::Configure(kTotal, 0));
}

TEST("twice the device's memory passes through it with its contents") {
  TestStream stream;
  CHECK_OK(software::Configure(16 * kMiB, 0));
  {
    Managed memory(16 * kPage);
    for (int page = 0; page < 16; ++page)
      CHECK_OK(driver.MemsetD8Async(memory + page * kPage, static_cast<unsigned char>(page), kPage, stream));
    std::vector<unsigned char> target(16 * kPage);
    for (int page = 0; page < 16; ++page) {
      CHECK_OK(driver.MemcpyAsync(reinterpret_cast<DevicePointer>(&target[page * kPage]), memory + page * kPage, kPage, stream));
    }
    stream.Synchronize();
    for (std::size_t i = 0; i < target.size(); ++i) CHECK(target[i] == i / kPage);
    CHECK(ActivityAt(0).peak_resident_bytes == 16 * kMiB && ActivityAt(0).evicted_bytes == 24 * kPage);
  }
  CHECK_OK(software::Configure(kTotal, 0));
}

TEST("read-mostly memory is copied by reads and prefetches, and a write ends the copies") {
  TestStream stream;
  Managed memory(kPage);
  Reader reader(0);
  software::AccessFromHost(memory, kPage, true);
  memory.Advise(kAdviseSetReadMostly);
  reader.Read(memory, kPage, stream);
  CHECK_OK(driver.MemPrefetchAsync(memory, kPage, kToDevice1, 0, stream));
  stream.Synchronize();
  CHECK(memory.At(kHost) == kPage && memory.At(0) == kPage && memory.At(1) == kPage);
  CHECK(ActivityAt(0).bytes_from_host == kPage && ActivityAt(0).faults == 1 && ActivityAt(1).faults == 0);
  Write(memory, 1, stream);
  stream.Synchronize();
  CHECK(memory.At(kHost) == 0 && memory.At(0) == kPage && memory.At(1) == 0);
  CHECK(ActivityAt(0).faults == 2 && ActivityAt(0).bytes_from_host == kPage);
  CHECK_OK(driver.MemPrefetchAsync(memory, kPage, kToDevice1, 0, stream));
  stream.Synchronize();
  memory.Advise(kAdviseSetPreferredLocation, kToDevice1);
  memory.Advise(kAdviseUnsetReadMostly);
  CHECK(memory.At(0) == 0 && memory.At(1) == kPage);
}

TEST("memory at its preferred location stays there if it can be mapped, and comes back otherwise") {
  TestStream stream;
  Managed memory(kPage);
  Reader reader(0);
  memory.Advise(kAdviseSetPreferredLocation, kToHost);
  Write(memory, 100, stream);
  stream.Synchronize();
  CHECK(memory.At(kHost) == kPage && memory.At(0) == 0);
  Write(memory, 100, stream);
  stream.Synchronize();
  CHECK(ActivityAt(0).remote_bytes == 200 && ActivityAt(0).faults == 1);
  // A prefetch is not kept from moving it.
  CHECK_OK(driver.MemPrefetchAsync(memory, kPage, kToDevice0, 0, stream));
  stream.Synchronize();
  CHECK(memory.At(0) == kPage);

  // The host cannot map a device's memory.
  memory.Advise(kAdviseSetPreferredLocation, kToDevice0);
  software::AccessFromHost(memory, 1, false);
  CHECK(memory.At(kHost) == kPage);
  reader.Read(memory, 1, stream);
  stream.Synchronize();
  CHECK(memory.At(0) == kPage);
  {
    OnDevice other(1);
    TestStream there;
    Write(memory, 8, there);
    there.Synchronize();
  }
  CHECK(memory.At(0) == kPage && ActivityAt(1).remote_bytes == 8);
  memory.Advise(kAdviseUnsetPreferredLocation);
  OnDevice other(1);
  TestStream there;
  Write(memory, 8, there);
  there.Synchronize();
  CHECK(memory.At(1) == kPage && ActivityAt(1).bytes_from_devices == kPage);
}

TEST("memory advised as accessed by a device is mapped there without faults") {
  TestStream stream;
  Managed memory(kPage);
  software::AccessFromHost(memory, kPage, true);
  memory.Advise(kAdviseSetAccessedBy, kToDevice0);
  Write(memory, 64, stream);
  stream.Synchronize();
  CHECK(memory.At(kHost) == kPage && ActivityAt(0).faults == 0 && ActivityAt(0).remote_bytes == 64);
  memory.Advise(kAdviseUnsetAccessedBy, kToDevice0);
  Write(memory, 64, stream);
  stream.Synchronize();
  CHECK(memory.At(0) == kPage && ActivityAt(0).faults == 1);
}

TEST("the preferred location and other advice decide together where an access finds its page") {
  TestStream stream;
  OnDevice other(1);
  TestStream there;
  const auto write = [](DevicePointer pointer, const TestStream& by) {
    Write(pointer, 8, by);
    by.Synchronize();
  };
  {
    // Memory that is not at its preferred location is not mapped: it moves to who uses it.
    Managed memory(kPage);
    write(memory, stream);
    memory.Advise(kAdviseSetPreferredLocation, kToHost);
    write(memory, there);
    CHECK(memory.At(1) == kPage && ActivityAt(1).remote_bytes == 0 && ActivityAt(1).bytes_from_devices == kPage);
    // Back there, it is mapped again, and the first use is a fault: the page has moved meanwhile.
    CHECK_OK(driver.MemPrefetchAsync(memory, kPage, kToHost, 0, there));
    write(memory, there);
    CHECK_OK(driver.MemPrefetchAsync(memory, kPage, kToDevice0, 0, there));
    CHECK_OK(driver.MemPrefetchAsync(memory, kPage, kToHost, 0, there));
    write(memory, there);
    CHECK(memory.At(kHost) == kPage && ActivityAt(1).faults == 3 && ActivityAt(1).remote_bytes == 16);
  }
  {
    // Memory preferred where it is used begins there, and is not mapped from elsewhere.
    Managed memory(2 * kPage);
    memory.Advise(kAdviseSetPreferredLocation, kToDevice1);
    memory.Advise(kAdviseSetAccessedBy, kToDevice1);
    write(memory, there);
    software::AccessFromHost(memory + kPage, 1, true);
    write(memory + kPage, there);
    CHECK(memory.At(1) == 2 * kPage && ActivityAt(1).remote_bytes == 0 && ActivityAt(1).faults == 2);
  }
  {
    // Read-mostly memory is copied rather than mapped, and a write from elsewhere ends the copies.
    Managed memory(kPage);
    software::AccessFromHost(memory, kPage, true);
    memory.Advise(kAdviseSetReadMostly);
    memory.Advise(kAdviseSetAccessedBy, kToDevice1);
    memory.Advise(kAdviseSetPreferredLocation, kToHost);
    Reader(1).Read(memory, 1, there);
    there.Synchronize();
    CHECK(memory.At(1) == kPage && memory.At(kHost) == kPage && ActivityAt(1).remote_bytes == 0);
    write(memory, stream);
    CHECK(memory.At(0) == kPage && memory.At(1) == 0 && memory.At(kHost) == 0);
  }
}

TEST("pages begin at the host if a device has no room, and mapped pages count as used") {
  CHECK_OK(software::Configure(8 * kMiB, 0));
  {
    TestStream stream;
    const DevicePointer all = AllocateOn(0, 8 * kMiB);
    Managed memory(kPage);
    Write(memory, 8, stream);
    stream.Synchronize();
    CHECK(memory.At(kHost) == kPage && ActivityAt(0).remote_bytes == 8 && ActivityAt(0).faults == 1);
    CHECK_OK(driver.MemFree(all));
  }
  {
    TestStream stream;
    Managed memory(5 * kPage);
    memory.Advise(kAdviseSetPreferredLocation, kToDevice0);
    for (int page = 0; page < 4; ++page) Write(memory + page * kPage, 8, stream);
    stream.Synchronize();
    {
      OnDevice other(1);
      TestStream there;
      Write(memory, 8, there);
      there.Synchronize();
    }
    Write(memory + 4 * kPage, 8, stream);
    stream.Synchronize();
    CHECK(ResidentBytes(memory, kPage, 0) == kPage && ResidentBytes(memory + kPage, kPage, kHost) == kPage);
  }
  {
    // An eviction copies nothing if another place has the page too.
    TestStream stream;
    Managed memory(5 * kPage);
    software::AccessFromHost(memory, 5 * kPage, true);
    memory.Advise(kAdviseSetReadMostly);
    CHECK_OK(driver.MemPrefetchAsync(memory, 5 * kPage, kToDevice0, 0, stream));
    stream.Synchronize();
    CHECK(memory.At(0) == 4 * kPage && memory.At(kHost) == 5 * kPage);
    CHECK(ActivityAt(0).evictions == 1 && ActivityAt(0).evicted_bytes == 0 && ActivityAt(kHost).bytes_from_devices == 0);
  }
  CHECK_OK(software::Configure(kTotal, 0));
}

TEST("advice for a part of a page decides for accesses that begin there") {
  TestStream stream;
  Managed memory(2 * kPage);
  software::AccessFromHost(memory, 2 * kPage, true);
  CHECK_OK(driver.MemAdvise(memory + kPage, 4096, kAdviseSetAccessedBy, kToDevice0));
  Write(memory + kPage, 64, stream);
  stream.Synchronize();
  CHECK(memory.At(0) == 0);
  Write(memory + kPage + 4096, 64, stream);
  stream.Synchronize();
  CHECK(memory.At(0) == kPage);
}

TEST("a migration takes the time that was set, on the stream that needs it") {
  using Clock = std::chrono::steady_clock;
  TestStream stream;
  Managed memory(3 * kPage);
  software::AccessFromHost(memory, 3 * kPage, true);
  constexpr std::chrono::milliseconds kCost{50};
  software::SetMigrationCost(std::chrono::nanoseconds(kCost).count());
  Gate gate;
  gate.Close(stream);
  CHECK_OK(driver.MemPrefetchAsync(memory, 3 * kPage, kToDevice0, 0, stream));
  CHECK(memory.At(0) == 0);
  const auto start = Clock::now();
  gate.Open();
  stream.Synchronize();
  CHECK(memory.At(0) == 3 * kPage);
  CHECK(Clock::now() - start >= 3 * kCost);
  software::SetMigrationCost(0);
}

TEST("devices without concurrent managed access take no prefetch and no advice that names them") {
  TestStream stream;
  Managed memory(kPage);
  int value = -1;
  CHECK_OK(driver.DeviceGetAttribute(&value, kAttributeConcurrentManagedAccess, 0));
  CHECK(value == 1);
  software::SetConcurrentManagedAccess(false);
  CHECK_OK(driver.DeviceGetAttribute(&value, kAttributeConcurrentManagedAccess, 0));
  CHECK(value == 0);
  CHECK(driver.MemPrefetchAsync(memory, kPage, kToDevice0, 0, stream) == kErrorInvalidDevice);
  CHECK(driver.MemPrefetchAsync(memory, kPage, kToHost, 0, stream) == kErrorInvalidDevice);
  CHECK(driver.MemAdvise(memory, kPage, kAdviseSetPreferredLocation, kToDevice0) == kErrorInvalidDevice);
  CHECK_OK(driver.MemAdvise(memory, kPage, kAdviseSetPreferredLocation, kToHost));
  CHECK_OK(driver.MemAdvise(memory, kPage, kAdviseSetReadMostly, {}));
  PoolProperties properties = {};
  properties.alloc_type = kAllocationTypeManaged;
  Pool pool = nullptr;
  CHECK(driver.MemPoolCreate(&pool, &properties) == kErrorNotSupported);
  software::SetConcurrentManagedAccess(true);
  properties.max_size = kMiB;
  CHECK(driver.MemPoolCreate(&pool, &properties) == kErrorInvalidValue);
}

TEST("memory that pages occupy is there for allocations, while other work brings pages back") {
  CHECK_OK(software::Configure(16 * kMiB, 0));
  {
    TestStream pages;
    TestStream stream;
    Managed memory(32 * kMiB);
    TestPool pool(0);
    software::SetMigrationCost(std::chrono::nanoseconds(std::chrono::microseconds(500)).count());
    for (int round = 0; round < 100; ++round) {
      for (int page = 0; page < 16; ++page) Write(memory + page * kPage, 1, pages);
    }
    for (int round = 0; round < 10; ++round) {
      FreeAsync(pool.Allocate(8 * kMiB, stream), stream);
      stream.Synchronize();
      CHECK_OK(driver.MemPoolTrimTo(pool, 0));
    }
    software::SetMigrationCost(0);
    pages.Synchronize();
  }
  CHECK_OK(software::Configure(kTotal, 0));
}

TEST("pools of managed memory share the machine's memory with other managed memory") {
  TestStream stream;
  const std::uint64_t bytes = MachineMemory() / 3 * 2 / kPage * kPage;
  PoolProperties properties = {};
  properties.alloc_type = kAllocationTypeManaged;
  Pool pool = nullptr;
  CHECK_OK(driver.MemPoolCreate(&pool, &properties));
  DevicePointer first = 0;
  DevicePointer second = 0;
  CHECK_OK(driver.MemAllocFromPoolAsync(&first, bytes, pool, stream));
  CHECK(driver.MemAllocFromPoolAsync(&second, bytes, pool, stream) == kErrorOutOfMemory);
  CHECK(driver.MemAllocManaged(&second, bytes, kMemAttachGlobal) == kErrorOutOfMemory);
  FreeAsync(first, stream);
  stream.Synchronize();
  CHECK_OK(driver.MemPoolTrimTo(pool, 0));
  CHECK_OK(driver.MemAllocManaged(&second, bytes, kMemAttachGlobal));
  CHECK(driver.MemAllocFromPoolAsync(&first, bytes, pool, stream) == kErrorOutOfMemory);
  CHECK_OK(driver.MemFree(second));
  CHECK_OK(driver.MemPoolDestroy(pool));
}

TEST("a pool of pinned memory takes the machine's memory, and devices have access once it is given") {
  TestStream stream;
  PoolProperties properties = {};
  properties.alloc_type = kAllocationTypePinned;
  properties.location = {kLocationHostNuma, 1};
  Pool pool = nullptr;
  CHECK(driver.MemPoolCreate(&pool, &properties) == kErrorInvalidValue);
  properties.location = {kLocationHost, 0};
  properties.handle_types = kHandleTypePosixDescriptor;
  CHECK(driver.MemPoolCreate(&pool, &properties) == kErrorNotSupported);
  properties.handle_types = 0;
  CHECK_OK(driver.MemPoolCreate(&pool, &properties));
  CHECK(driver.DeviceSetMemPool(0, pool) == kErrorInvalidValue);
  const std::uint64_t free = FreeBytes();
  DevicePointer pointer = 0;
  CHECK_OK(driver.MemAllocFromPoolAsync(&pointer, 2 * kTotal, pool, stream));
  CHECK(FreeBytes() == free);
  unsigned type = 0;
  CHECK_OK(driver.PointerGetAttribute(&type, kPointerMemoryType, pointer));
  CHECK(type == kMemoryTypeHost);
  CHECK(driver.MemsetD8Async(pointer, 7, kPage, stream) == kErrorInvalidValue);
  AccessDescription access = {{kLocationDevice, 0}, kAccessReadWrite};
  CHECK_OK(driver.MemPoolSetAccess(pool, &access, 1));
  CHECK_OK(driver.MemsetD8Async(pointer, 7, kPage, stream));
  stream.Synchronize();
  CHECK(reinterpret_cast<unsigned char*>(pointer)[kPage - 1] == 7);
  access.flags = kAccessNone;
  CHECK_OK(driver.MemPoolSetAccess(pool, &access, 1));
  CHECK(driver.MemsetD8Async(pointer, 7, kPage, stream) == kErrorInvalidValue);
  CHECK(driver.MemFreeHost(reinterpret_cast<void*>(pointer)) == kErrorInvalidValue);
  FreeAsync(pointer, stream);
  CHECK_OK(driver.MemPoolDestroy(pool));
  properties.location = {kLocationHostNuma, 0};
  CHECK_OK(driver.MemPoolCreate(&pool, &properties));
  CHECK_OK(driver.MemPoolDestroy(pool));
}

TEST("a pool of managed memory hands out managed memory, which counts while it is at the device") {
  TestStream stream;
  PoolProperties properties = {};
  properties.alloc_type = kAllocationTypeManaged;
  Pool pool = nullptr;
  CHECK_OK(driver.MemPoolCreate(&pool, &properties));
  std::uint64_t threshold = ~std::uint64_t{0};
  CHECK_OK(driver.MemPoolSetAttribute(pool, kPoolReleaseThreshold, &threshold));
  const std::uint64_t free = FreeBytes();
  DevicePointer pointer = 0;
  CHECK_OK(driver.MemAllocFromPoolAsync(&pointer, 2 * kTotal, pool, stream));
  CHECK(FreeBytes() == free);
  unsigned is_managed = 0;
  CHECK_OK(driver.PointerGetAttribute(&is_managed, kPointerIsManaged, pointer));
  CHECK(is_managed == 1);
  Write(pointer, kPage, stream);
  CHECK_OK(driver.MemPrefetchAsync(pointer + kPage, kPage, kToDevice1, 0, stream));
  stream.Synchronize();
  CHECK(FreeBytes() == free - kPage && ResidentBytes(pointer, 4 * kPage, 1) == kPage);
  CHECK(reinterpret_cast<unsigned char*>(pointer)[kPage - 1] == 7);
  FreeAsync(pointer, stream);
  stream.Synchronize();
  CHECK(driver.MemPrefetchAsync(pointer, 2 * kTotal + kPage, kToDevice1, 0, stream) == kErrorInvalidValue);
  CHECK_OK(driver.MemPoolTrimTo(pool, 0));
  CHECK(FreeBytes() == free && ActivityAt(1).resident_bytes == 0);
  CHECK_OK(driver.MemPoolDestroy(pool));
  properties.location = {kLocationDevice, 7};
  CHECK(driver.MemPoolCreate(&pool, &properties) == kErrorInvalidValue);
}

}  // namespace cistern::test
