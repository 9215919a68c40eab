// Memory for any thread: an arena for each thread, over superblocks of a global arena.
//
//     thread 1: index  [ lane of stream a | lane of stream b ]      thread 2: index [ … ]
//                 │ superblocks                                          │
//                 └──────────────► global arena of the process ◄─────────┘
//
// A thread allocates from its own index (thread_arena.h), in the order that lane_order.h has. Each index has a lock of its own,
// which only frees on other threads and threads that have run out of memory ever wait for. So memory that an idle thread
// holds can be returned without that thread.
//
// The next new thread takes over everything that an ended thread leaves behind.
//
// Invariant: a superblock of the arena is a segment (or a part of one) of exactly one index, the one that
// `owners_` names.
#ifndef CISTERN_ARENAS_THREAD_SAFE_ARENA_H_
#define CISTERN_ARENAS_THREAD_SAFE_ARENA_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "arenas/arena_events.h"
#include "arenas/global_arena.h"
#include "arenas/lane_order.h"
#include "arenas/thread_arena.h"
#include "arenas/thread_state.h"
#include "cuda/driver_in_use.h"

namespace cistern::arenas {

struct ThreadSafeStatistics {
  std::uint64_t live_bytes = 0;  // as asked for
  std::uint64_t live_allocations = 0;
  std::uint64_t reserved_bytes = 0;  // in superblocks
  std::uint64_t peak_reserved_bytes = 0;
  std::uint64_t threads = 0;  // that have an index, or had
};

struct ThreadSafeSettings {
  std::uint64_t arena = 0;  // the number of the global arena
  std::uint64_t id = 0;     // of this tenant: different for every tenant of the process
  Context context = nullptr;
  DeallocationEvents events = DeallocationEvents::kEager;
  // Waits for the device, unless the wait might not end; the context is current. Used under kOff.
  std::function<Status(const DriverTable*)> await_device;
};

class ThreadSafeArena final : public NativeTenant, public ThreadUser {
 public:
  // The global arena must be open, and stay so during the call.
  // `end` deletes it, after its last user.
  static Status Open(const ThreadSafeSettings& settings, const DriverTable* table, void (*end)(ThreadSafeArena*),
                     std::shared_ptr<ThreadSafeArena>* opened);
  // Returns free memory. Live allocations are treated like those of an ended environment.
  ~ThreadSafeArena() override;

  // All of these: any thread. They return a status and throw nothing.

  // Zero bytes give address 0. `alignment`: a power of two up to a superblock. With a claimant, as Claim.
  Status Allocate(std::uint64_t bytes, std::uint64_t alignment, Stream stream, std::uint64_t* address,
                  std::uint64_t claimant = kNobody) noexcept;
  // Many, as if one after the other, all or none. `done`: how many there were before the one that was refused.
  Status AllocateMany(const std::vector<std::uint64_t>& sizes, Stream stream, std::vector<std::uint64_t>* addresses, std::size_t* done,
                      std::uint64_t claimant = kNobody) noexcept;
  // `right_bytes`, with kWrongSize: what was asked for.
  Status Deallocate(std::uint64_t address, std::uint64_t bytes, Stream stream, std::uint64_t* right_bytes) noexcept;
  // One of many that is not allocated, has another size, or comes twice.
  struct Wrong {
    std::size_t place = 0;
    std::uint64_t right_bytes = 0;  // what was asked for, if it is allocated
  };
  // Many, all or none, with one event. There are as many sizes as addresses. `wrong`, with kForeignPointer and kWrongSize.
  Status DeallocateMany(const std::vector<std::uint64_t>& addresses, const std::vector<std::uint64_t>& sizes, Stream stream,
                        Wrong* wrong) noexcept;
  // kSuccess for what DeallocateMany would free.
  Status CheckMany(const std::vector<std::uint64_t>& addresses, const std::vector<std::uint64_t>& sizes, Wrong* wrong) noexcept;
  // Waits on this thread for what a stream has queued.
  Status Synchronize(Stream stream) noexcept;
  // An environment has the memory, which is freed after the environment's end unless somebody frees it before.
  // kForeignPointer or kWrongSize for what Deallocate would not free.
  Status Claim(std::uint64_t address, std::uint64_t bytes, std::uint64_t claimant, std::uint64_t* right_bytes) noexcept;
  // What a claimant has.
  struct Claimed {
    std::uint64_t address, bytes;
  };
  std::vector<Claimed> ClaimsOf(std::uint64_t claimant);
  bool HasClaims(std::uint64_t claimant) noexcept;
  // Frees the memory that a claimant still has there, after a wait for the device. False without host memory for that.
  bool DeallocateClaimed(std::uint64_t address, std::uint64_t bytes, std::uint64_t claimant) noexcept;
  // kForeignPointer, kWrongSize, or kSuccess for what Deallocate would free.
  Status Check(std::uint64_t address, std::uint64_t bytes, std::uint64_t* right_bytes) noexcept;
  void GiveBack(bool may_wait) noexcept override;
  ThreadSafeStatistics Statistics() noexcept;
  // Of the reserved bytes.
  void ResetPeak() noexcept;

  std::uint64_t superblock_bytes() const { return superblock_bytes_; }
  std::uint64_t id() const { return settings_.id; }
  Context context() const { return settings_.context; }
  const DriverTable* backend() const { return backend_; }
  int device() const { return device_; }

  // Exchanged while stream order is checked.
  DriverInUse driver;

 private:
  // What a request asks for, and where.
  struct Place {
    std::uint64_t key;
    Stream stream;
    std::uint64_t bytes;
    std::uint64_t units;
    std::uint64_t alignment;
    std::uint64_t claimant;
    bool cuts_large_blocks = false;
    std::uint64_t slack() const { return units * kUnitBytes - bytes; }
  };
  struct Part;
  using Parts = std::map<ThreadArena*, Part>;

  explicit ThreadSafeArena(const ThreadSafeSettings& settings);

  ThreadArena* OwnArena();
  ThreadArena* OwnerOf(std::uint64_t address) const;
  void EndThread(const ThreadState& state) noexcept override;

  bool CanHave(std::uint64_t bytes) const;
  Status AllocateFrom(ThreadArena& arena, const Place& place, std::uint64_t* address);
  Status AllocateEach(ThreadArena& arena, Place place, const std::vector<std::uint64_t>& sizes, std::vector<std::uint64_t>* addresses,
                      std::size_t* done);
  Status TryMany(ThreadArena& arena, const Place& place, const std::vector<std::uint64_t>& sizes, std::vector<std::uint64_t>* addresses,
                 std::size_t* done);
  void UndoMany(ThreadArena& arena, Lane& lane, const Place& place, const std::vector<std::uint64_t>& sizes,
                const std::vector<std::uint64_t>& addresses, std::size_t done);
  Status TryAllocate(ThreadArena& arena, const Place& place, std::uint64_t* address);
  Status Cut(ThreadArena& arena, const Lane& lane, const Place& place, std::uint64_t* address);
  Status TakeFromOthers(ThreadArena& arena, const Place& place, std::unique_lock<std::mutex>& lock, std::uint64_t* address);
  Status JoinLanes(ThreadArena& arena, const Place& place, std::unique_lock<std::mutex>& lock, std::uint64_t* address);
  Status Grow(ThreadArena& arena, const Place& place, std::uint64_t* address);
  template <typename Use>
  Status WithBlock(std::uint64_t address, std::uint64_t bytes, std::uint64_t* right_bytes, Use&& use);
  Status PartsOf(const std::vector<std::uint64_t>& addresses, const std::vector<std::uint64_t>& sizes, Wrong* wrong, Parts* parts) const;
  static std::vector<std::unique_lock<std::mutex>> Lock(Parts& parts);
  template <typename Use>
  Status UsePart(ThreadArena& arena, const Part& part, Use&& use, Wrong* wrong);
  Status FreeParts(Parts& parts, std::uint64_t key, ArenaEvent* event, Wrong* wrong);
  Status FreeOn(std::uint64_t address, std::uint64_t bytes, std::uint64_t key, ArenaEvent* event, std::uint64_t number,
                std::uint64_t* right_bytes);
  void Gather(ThreadArena& arena, std::unique_lock<std::mutex>& lock);
  void SetOwner(std::uint64_t address, std::uint64_t bytes, ThreadArena* owner);
  void GiveBackFrom(ThreadArena& arena);
  bool GiveBackOnce(ThreadArena& arena);
  Status FreeSuperblocks(std::uint64_t address, std::uint64_t bytes, const std::vector<EventUse>& before);
  Status AwaitDevice();
  bool HasHeld();
  void AskEnvironments();
  bool HasWholeSuperblocks(ThreadArena& arena, const Place& place);
  bool OthersHaveMemory(const ThreadArena& arena) const;
  std::uint64_t FreedBytes() const;
  bool AwaitFrees(std::uint64_t freed_bytes);
  std::vector<ThreadArena*> Arenas();

  const ThreadSafeSettings settings_;
  ArenaEvents events_;
  LaneOrder order_;
  const DriverTable* backend_ = nullptr;
  int device_ = 0;
  std::uint64_t base_ = 0;
  std::uint64_t bytes_ = 0;
  std::uint64_t superblock_bytes_ = 0;
  int superblock_shift_ = 0;
  std::atomic<bool> is_short_{false};            // it has run out of memory, of which others had some
  Stream trimming_ = nullptr;                    // a stream that only GiveBack uses, so that the program's do not wait for each other
  std::atomic<ThreadArena*>* owners_ = nullptr;  // by superblock

  std::mutex mutex_;  // of the rest; taken after that of an index
  std::vector<std::unique_ptr<ThreadArena>> arenas_;
  std::vector<ThreadArena*> without_thread_;
};

}  // namespace cistern::arenas

#endif  // CISTERN_ARENAS_THREAD_SAFE_ARENA_H_
