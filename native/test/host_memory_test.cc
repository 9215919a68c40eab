// Arenas of threads on a host whose memory runs out: whichever request for their books is refused, the call that
// needed it is refused too and changes nothing, and no device memory is lost.
#include "host_memory.h"

#include <atomic>
#include <deque>
#include <functional>
#include <future>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "platform/memory_file.h"
#include "thread_safe_fixture.h"

namespace cistern::test {
namespace {

constexpr std::uint64_t kClaimant = 4711;
constexpr std::size_t kSuperblocks = 16;

struct Block {
  std::uint64_t address = 0;
  std::uint64_t bytes = 0;
};

// The events of the driver that live.
std::atomic<int> live_events{0};
// Called once, on this thread, before an event is recorded.
thread_local std::function<void()> before_record;

// The streams whose work what a stream is given from now on comes after, and the same of what has been recorded last.
struct Order {
  std::mutex mutex;
  std::map<Stream, std::set<Stream>> of_streams;
  std::map<Event, std::set<Stream>> of_events;
};
Order order_of_driver;

// No stream of an earlier program is left. With all of theirs, the sets would take gigabytes.
void ForgetOrder() {
  const std::lock_guard<std::mutex> lock(order_of_driver.mutex);
  order_of_driver.of_streams.clear();
  order_of_driver.of_events.clear();
}

bool ComesAfter(Stream stream, Stream earlier) {
  const std::lock_guard<std::mutex> lock(order_of_driver.mutex);
  return order_of_driver.of_streams[stream].count(earlier) != 0;
}

const DriverTable& WatchedEvents() {
  static const DriverTable table = [] {
    DriverTable watched = driver;
    watched.EventRecord = [](Event event, Stream stream) {
      if (const auto call = std::exchange(before_record, nullptr)) call();
      const HostMemoryScope scope(false);
      const std::lock_guard<std::mutex> lock(order_of_driver.mutex);
      std::set<Stream>& recorded = order_of_driver.of_events[event] = order_of_driver.of_streams[stream];
      recorded.insert(stream);
      return driver.EventRecord(event, stream);
    };
    watched.StreamWaitEvent = [](Stream stream, Event event, unsigned flags) {
      const HostMemoryScope scope(false);
      const std::lock_guard<std::mutex> lock(order_of_driver.mutex);
      std::set<Stream>& earlier = order_of_driver.of_streams[stream];
      earlier.insert(order_of_driver.of_events[event].begin(), order_of_driver.of_events[event].end());
      return driver.StreamWaitEvent(stream, event, flags);
    };
    watched.EventCreate = [](Event* event, unsigned flags) {
      const Status status = driver.EventCreate(event, flags);
      live_events += status == kSuccess ? 1 : 0;
      return status;
    };
    watched.EventDestroy = [](Event event) {
      const Status status = driver.EventDestroy(event);
      live_events -= status == kSuccess ? 1 : 0;
      return status;
    };
    return watched;
  }();
  return table;
}

// A program of one thread, in which a request for host memory is refused.
class Program {
 public:
  explicit Program(DeallocationEvents events)
      : global_(kSuperblocks * kSuperblock, WatchedEvents()), resource_(global_, events, WatchedEvents()), arena_(resource_.arena.lock()) {
    ForgetOrder();
  }

  // Returns how many events of the driver it needed.
  int Play() {
    TestStream a, b, c;
    FreeOn(a);
    const Block first = Allocate(1000, a, kClaimant);
    const Block legacy = Allocate(3000, LegacyStream());
    const std::vector<Block> many = AllocateMany({300, 400, 0, 500, 2 * kSuperblock, 600}, a);
    Free(first, b);
    Free(legacy, LegacyStream());
    const Block taken = Allocate(900, c);
    Do([&] {
      std::uint64_t right_bytes;
      return arena_->Claim(taken.address, taken.bytes, kClaimant, &right_bytes);
    });
    FreeMany(many, c);
    Do([&] { return arena_->DeallocateClaimed(taken.address, taken.bytes, kClaimant) ? kSuccess : kHostOutOfMemory; });
    live_ -= 1;
    live_bytes_ -= taken.bytes;
    // So many lanes that they are folded.
    std::deque<TestStream> streams;
    for (int i = 0; i < 70; ++i) {
      streams.emplace_back();
      Free(Allocate(256, streams.back()), streams.back());
    }
    // An event that is idle, and a lane without room for it.
    for (int i = 0; i < 2; ++i) Free(Allocate(256, b), b);
    // All of it, and more than is left whole.
    const Block large = Allocate((kSuperblocks - 4) * kSuperblock, b);
    FreeOn(a);
    const std::vector<Block> others = AllocateMany({2 * kSuperblock, 300}, a);
    Free(large, c);
    FreeMany(others, b);
    // So that what is given back is a part of what was taken at once.
    const Block kept = Allocate(kSuperblock, c);
    {
      const HostMemoryScope scope;
      arena_->GiveBack(true);
    }
    global_.Validate();
    Free(kept, c);
    Free(Allocate(256, a, kClaimant), a);
    AllowHostMemory();
    CHECK(Statistics().live_allocations == 0);
    arena_->GiveBack(true);
    global_.Validate();
    CHECK(global_.UsedBytes() == 0);
    return live_events;
  }

 private:
  arenas::ThreadSafeStatistics Statistics() const { return arena_->Statistics(); }

  // A call that may be refused once, and then has changed nothing.
  template <typename Call>
  void Do(Call&& call) {
    Status status;
    {
      const HostMemoryScope scope;
      status = call();
    }
    if (status == kSuccess) return;
    global_.Validate();
    CHECK(HasRefusedHostMemory());
    CHECK(status == kHostOutOfMemory || status == kErrorOutOfMemory);
    CHECK(Statistics().live_allocations == live_);
    CHECK(Statistics().live_bytes == live_bytes_);
    AllowHostMemory();
    CHECK_OK(call());
  }

  Block Allocate(std::uint64_t bytes, Stream stream, std::uint64_t claimant = arenas::kNobody) {
    Block block{0, bytes};
    Do([&] { return arena_->Allocate(bytes, 256, stream, &block.address, claimant); });
    live_ += 1;
    live_bytes_ += bytes;
    return block;
  }

  std::vector<Block> AllocateMany(const std::vector<std::uint64_t>& sizes, Stream stream) {
    std::vector<std::uint64_t> addresses;
    std::size_t done;
    Do([&] { return arena_->AllocateMany(sizes, stream, &addresses, &done, kClaimant); });
    std::vector<Block> blocks;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      if (sizes[i] == 0) continue;
      blocks.push_back({addresses[i], sizes[i]});
      live_ += 1;
      live_bytes_ += sizes[i];
    }
    return blocks;
  }

  void Free(const Block& block, Stream stream) {
    Do([&] {
      std::uint64_t right_bytes;
      return arena_->Deallocate(block.address, block.bytes, stream, &right_bytes);
    });
    live_ -= 1;
    live_bytes_ -= block.bytes;
  }

  // What an allocation of many gives back if it is refused then needs no event that it would not need otherwise.
  void FreeOn(Stream stream) { Free(Allocate(256, stream), stream); }

  void FreeMany(const std::vector<Block>& blocks, Stream stream) {
    std::vector<std::uint64_t> addresses, sizes;
    for (const Block& each : blocks) {
      addresses.push_back(each.address);
      sizes.push_back(each.bytes);
    }
    Do([&] {
      ThreadSafeArena::Wrong wrong;
      return arena_->DeallocateMany(addresses, sizes, stream, &wrong);
    });
    for (const Block& each : blocks) {
      live_ -= 1;
      live_bytes_ -= each.bytes;
    }
  }

  Global global_;
  Resource resource_;
  const std::shared_ptr<ThreadSafeArena> arena_;
  std::uint64_t live_ = 0;
  std::uint64_t live_bytes_ = 0;
};

// Refuses each request in turn, until the body makes no more.
template <typename Body>
void RefuseEach(Refused refused, Body&& body) {
  for (int nth = 1;; ++nth) {
    const int failures = failure_count;
    RefuseHostMemory(nth, refused);
    body();
    AllowHostMemory();
    if (failure_count != failures) {
      std::printf("    with request %d refused%s\n", nth, refused == Refused::kOne ? "" : ", and all after it");
      return;
    }
    if (!HasRefusedHostMemory()) return;
  }
}

}  // namespace

TEST("a thread-safe arena loses no memory if the host refuses memory for its books") {
  for (const auto events : {DeallocationEvents::kEager, DeallocationEvents::kDeferred, DeallocationEvents::kOff}) {
    const int most_events = Program(events).Play();
    for (const auto refused : {Refused::kOne, Refused::kAllAfter}) {
      RefuseEach(refused, [&] {
        CHECK(Program(events).Play() <= most_events);
        CHECK(live_events == 0);
      });
    }
  }
}

// Makes a call of a resource, again if it was refused.
template <typename Call>
void UntilDone(Call&& call) {
  std::int32_t result;
  {
    const HostMemoryScope scope;
    result = call();
  }
  if (result == CISTERN_OK) return;
  CHECK(HasRefusedHostMemory());
  AllowHostMemory();
  CHECK(call() == CISTERN_OK);
}

TEST("superblocks that others had are not lost if the host refuses memory for the first event of a resource") {
  for (const auto refused : {Refused::kOne, Refused::kAllAfter}) {
    RefuseEach(refused, [&] {
      Global global(kSuperblock);
      Resource before(global), resource(global);
      TestStream old, stream;
      before.Free(before.Allocate(kSuperblock, old), kSuperblock, old);
      before.arena.lock()->GiveBack(false);
      DevicePointer block = 0;
      UntilDone([&] { return resource.TryAllocate(kSuperblock, stream, &block); });
      global.Validate();
      AllowHostMemory();
      resource.Free(block, kSuperblock, stream);
    });
  }
}

TEST("what changes lanes on a host without memory comes after the work on it") {
  for (const auto events : {DeallocationEvents::kEager, DeallocationEvents::kDeferred}) {
    for (const auto refused : {Refused::kOne, Refused::kAllAfter}) {
      // So many lanes that they are folded, or two whose memory is joined.
      for (const std::size_t count : {70, 2}) {
        RefuseEach(refused, [&] {
          Global global(4 * kSuperblock);
          Resource resource(global, events, WatchedEvents());
          TestStream stream, next;
          std::deque<TestStream> streams(count);
          std::vector<DevicePointer> blocks;
          const std::uint64_t bytes = count == 2 ? 2 * kSuperblock : 256;
          for (const TestStream& each : streams) blocks.push_back(resource.Allocate(bytes, each));
          ForgetOrder();
          for (std::size_t i = 0; i < count; ++i) UntilDone([&] { return resource.TryFree(blocks[i], bytes, streams[i]); });
          DevicePointer all;
          UntilDone([&] { return resource.TryAllocate(4 * kSuperblock, stream, &all); });
          for (const TestStream& each : streams) CHECK(ComesAfter(stream, each));
          // By way of the global arena, and on another stream than the one that takes it from there.
          resource.Free(all, 4 * kSuperblock, stream);
          resource.arena.lock()->GiveBack(false);
          DevicePointer half, rest;
          UntilDone([&] { return resource.TryAllocate(2 * kSuperblock + 256, streams[0], &half); });
          UntilDone([&] { return resource.TryAllocate(256, next, &rest); });
          CHECK(ComesAfter(next, stream));
          AllowHostMemory();
          resource.Free(half, 2 * kSuperblock + 256, streams[0]);
          resource.Free(rest, 256, next);
        });
      }
    }
  }
}

TEST("an event whose last user is a thread without host memory is used again") {
  Global global(3 * kSuperblock);
  Resource resource(global, DeallocationEvents::kEager, WatchedEvents());
  TestStream stream, other, third;
  std::vector<DevicePointer> superblocks;
  for (int i = 0; i < 3; ++i) superblocks.push_back(resource.Allocate(kSuperblock, stream));
  resource.Free(superblocks[0], kSuperblock, stream);
  resource.Free(superblocks[2], kSuperblock, stream);
  std::promise<void> reached, passed;
  std::thread giving_back([&] {
    OnDevice device(0);
    before_record = [&] {
      reached.set_value();
      passed.get_future().wait();
      RefuseHostMemory(1, Refused::kAllAfter);
    };
    const HostMemoryScope scope;
    resource.arena.lock()->GiveBack(false);
    AllowHostMemory();
  });
  reached.get_future().wait();
  // Joins what both streams have, and frees it after their events.
  resource.Free(superblocks[1], kSuperblock, other);
  const DevicePointer both = resource.Allocate(2 * kSuperblock, stream);
  resource.Free(both, 2 * kSuperblock, stream);
  passed.set_value();
  giving_back.join();
  const int most_events = live_events;
  std::vector<DevicePointer> blocks;
  for (int i = 0; i < 3; ++i) blocks.push_back(resource.Allocate(256, stream));
  resource.Free(blocks[0], 256, stream);
  resource.Free(blocks[1], 256, other);
  resource.Free(blocks[2], 256, third);
  CHECK(live_events == most_events);
}

// Requests of a thread are refused until its destructors have run: made before what they end.
thread_local std::optional<HostMemoryScope> until_end;

TEST("a thread ends, and frees are given back, on a host without memory") {
  for (const auto events : {DeallocationEvents::kEager, DeallocationEvents::kDeferred, DeallocationEvents::kOff}) {
    Global global(kSuperblocks * kSuperblock);
    Resource resource(global, events);
    TestStream stream, other;
    const DevicePointer kept = resource.Allocate(1000, stream);
    std::thread([&] {
      OnDevice device(0);
      until_end.emplace();
      resource.Free(resource.Allocate(2 * kSuperblock, stream), 2 * kSuperblock, stream);
      resource.Free(kept, 1000, other);
      RefuseHostMemory(1, Refused::kAllAfter);
    }).join();
    std::thread([&] {
      OnDevice device(0);
      const HostMemoryScope scope;
      RefuseHostMemory(1, Refused::kAllAfter);
      resource.arena.lock()->GiveBack(true);
    }).join();
    CHECK(resource.Statistics().live_allocations == 0);
    resource.arena.lock()->GiveBack(true);
    CHECK(global.UsedBytes() == 0);
  }
}

TEST("a thread-safe arena ends on a host without memory, and what is left of its block is known") {
  for (const auto refused : {Refused::kOne, Refused::kAllAfter}) {
    RefuseEach(refused, [] {
      const int ended = ended_arenas;
      Global global(kSuperblocks * kSuperblock);
      Resource resource(global);
      TestStream stream;
      resource.Free(resource.Allocate(1000, stream), 1000, stream);
      global.Close();
      // As the addon does, which needs host memory for its list.
      AllArenas().leave = [](const EndedArena& each) { FreeEndedArena(*std::make_unique<EndedArena>(each)); };
      {
        const HostMemoryScope scope;
        resource.Release();
      }
      AllowHostMemory();
      {
        // An environment does this before it frees what others have left.
        arenas::GlobalArenas& arenas = AllArenas();
        const std::lock_guard<std::mutex> lock(arenas.mutex);
        const auto found = arenas.by_number.find(global.number);
        CHECK(found == arenas.by_number.end() || (arenas.any_ended && found->second->IsWithoutTenant()));
        if (found != arenas.by_number.end()) LeaveArena(arenas, global.number);
      }
      CHECK(ended_arenas == ended + 1);
    });
  }
}

TEST("the thread of a stream asks for no host memory") {
  if (!kHasMemoryFiles) return;
  TestStream stream;
  TestEvent shared(kEventDisableTiming | kEventInterprocess);
  std::uint64_t free_before, free_after, total;
  CHECK_OK(driver.MemGetInfo(&free_before, &total));
  // Neighbours, all of whose pages are shared.
  DevicePointer neighbours[3];
  for (DevicePointer& each : neighbours) {
    IpcMemoryHandle handle;
    CHECK_OK(driver.MemAlloc(&each, kMiB));
    CHECK_OK(driver.IpcGetMemHandle(&handle, each));
  }
  Gate gate;
  gate.Close(stream);
  const auto refuse = [](void*) {
    until_end.emplace();
    RefuseHostMemory(1, Refused::kAllAfter);
  };
  CHECK_OK(driver.LaunchHostFunc(stream, refuse, nullptr));
  for (int i = 0; i < 3; ++i) CHECK_OK(driver.EventRecord(shared, stream));
  FreeAsync(neighbours[1], stream);
  FreeAsync(neighbours[0], stream);
  FreeAsync(neighbours[2], stream);
  static bool has_refused;
  has_refused = true;
  const auto allow = [](void*) {
    has_refused = HasRefusedHostMemory();
    until_end.reset();
  };
  CHECK_OK(driver.LaunchHostFunc(stream, allow, nullptr));
  gate.Open();
  stream.Synchronize();
  // Pages that cannot be told apart without memory stay shared.
  CHECK(has_refused);
  CHECK_OK(driver.MemGetInfo(&free_after, &total));
  CHECK(free_after == free_before);
}

}  // namespace cistern::test
