// Arenas of threads on a host whose memory runs out: whichever request for their books is refused, the call that
// needed it is refused too and changes nothing, and no device memory is lost.
#include "host_memory.h"

#include <deque>
#include <optional>
#include <thread>
#include <vector>

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
int live_events = 0;

const DriverTable& CountingEvents() {
  static const DriverTable table = [] {
    DriverTable counting = driver;
    counting.EventCreate = [](Event* event, unsigned flags) {
      const Status status = driver.EventCreate(event, flags);
      live_events += status == kSuccess ? 1 : 0;
      return status;
    };
    counting.EventDestroy = [](Event event) {
      const Status status = driver.EventDestroy(event);
      live_events -= status == kSuccess ? 1 : 0;
      return status;
    };
    return counting;
  }();
  return table;
}

// A program of one thread, in which a request for host memory is refused.
class Program {
 public:
  explicit Program(DeallocationEvents events)
      : global_(kSuperblocks * kSuperblock, CountingEvents()),
        resource_(global_, events, CountingEvents()),
        arena_(resource_.arena.lock()) {}

  void Play() {
    TestStream a, b, c;
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
    const std::vector<Block> others = AllocateMany({2 * kSuperblock, 300}, a);
    Free(large, c);
    FreeMany(others, b);
    {
      const HostMemoryScope scope;
      arena_->GiveBack(true);
    }
    Free(Allocate(256, a, kClaimant), a);
    AllowHostMemory();
    CHECK(Statistics().live_allocations == 0);
    arena_->GiveBack(true);
    CHECK(global_.UsedBytes() == 0);
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
    for (const auto refused : {Refused::kOne, Refused::kAllAfter})
      RefuseEach(refused, [&] {
        Program(events).Play();
        CHECK(live_events == 0);
      });
  }
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
      {
        const HostMemoryScope scope;
        resource.Release();
      }
      AllowHostMemory();
      std::vector<EndedArena> left;
      {
        arenas::GlobalArenas& arenas = AllArenas();
        const std::lock_guard<std::mutex> lock(arenas.mutex);
        const auto found = arenas.by_number.find(global.number);
        if (found != arenas.by_number.end() && found->second->tenants.empty()) EndArena(arenas, global.number, &left);
      }
      // An environment that ends does this.
      for (const EndedArena& each : left) FreeEndedArena(each);
      CHECK(ended_arenas == ended + 1);
    });
  }
}

}  // namespace cistern::test
