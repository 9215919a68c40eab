// Memory for any thread: an arena for each thread, over superblocks of a global arena.
//
//     thread 1: index  [ lane of stream a | lane of stream b ]      thread 2: index [ … ]
//                 │ superblocks                                          │
//                 └──────────────► global arena of the process ◄─────────┘
//
// A thread allocates from its own index, the one of assembly/ in C++ (suballocation/index_functions.h).
// Each index has a lock of its own, which only frees on other threads and threads that have run out of
// memory ever wait for. So memory that an idle thread holds can be returned without that thread.
//
// Order. A lane holds memory that was freed on one stream, and serves that stream without waiting. Each lane
// has a list of events, `before`: all of them come before the lane's memory may be used on another stream;
// those that are not `awaited` also before it may be used on its own. A free takes a number from one counter
// before it calls the driver, and a wait after it has. So an event of a stream covers the waits and frees of
// that stream with smaller numbers, in whatever order the driver was called, and no driver is called under a
// lock.
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
#include <unordered_map>
#include <vector>

#include "arenas/global_arena.h"
#include "cuda/driver_in_use.h"

namespace cistern::arenas {

// When an event is recorded for a free: at the free; on the legacy default stream when another stream wants the
// memory, and elsewhere at the free, since nobody announces the end of a stream; never.
enum class DeallocationEvents { kEager = 0, kDeferred = 1, kOff = 2 };

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

class ThreadArena;
struct Lane;
struct ArenaEvent;
struct EventUse;

class ThreadSafeArena final : public NativeTenant, public std::enable_shared_from_this<ThreadSafeArena> {
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
  friend class ThreadState;
  struct Place;
  struct Part;
  using Parts = std::map<ThreadArena*, Part>;

  explicit ThreadSafeArena(const ThreadSafeSettings& settings);

  Status RefuseCaptured(Stream stream);
  Status Identify(Stream stream, std::uint64_t* key);
  ThreadArena* OwnArena();
  ThreadArena* OwnerOf(std::uint64_t address) const;
  void EndThread(ThreadArena* arena) noexcept;

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
  Lane& LaneOf(ThreadArena& arena, std::uint64_t key);
  void FoldLanes(ThreadArena& arena);
  Status AwaitOwn(ThreadArena& arena, Lane& lane, Stream stream, std::unique_lock<std::mutex>& lock);
  Status RecordLate(ThreadArena& arena, Lane& lane, std::unique_lock<std::mutex>& lock);
  Status JoinEvents(Lane& common, std::unique_lock<std::mutex>& lock);
  Status AwaitAll(Stream stream, const std::vector<EventUse>& uses);
  template <typename Use>
  Status WithBlock(std::uint64_t address, std::uint64_t bytes, std::uint64_t* right_bytes, Use&& use);
  void FreeBlock(ThreadArena& arena, std::uint64_t address, std::uint64_t bytes, std::uint32_t block, const Lane& lane);
  void NoteFree(ThreadArena& arena, std::uint64_t address, std::uint64_t bytes);
  void NoteFrees(ThreadArena& arena, Lane& lane, std::uint64_t number, ArenaEvent* event);
  Status PartsOf(const std::vector<std::uint64_t>& addresses, const std::vector<std::uint64_t>& sizes, Wrong* wrong, Parts* parts) const;
  static std::vector<std::unique_lock<std::mutex>> Lock(Parts& parts);
  template <typename Use>
  Status UsePart(ThreadArena& arena, const Part& part, Use&& use, Wrong* wrong);
  Status FreeParts(Parts& parts, std::uint64_t key, ArenaEvent* event, Wrong* wrong);
  Status FreeOn(std::uint64_t address, std::uint64_t bytes, std::uint64_t key, ArenaEvent* event, std::uint64_t number,
                std::uint64_t* right_bytes);
  void NoteOrder(Lane& lane, std::uint64_t number, ArenaEvent* event);
  bool RecordsAtFree(Stream stream) const;
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
  Status AcquireEvent(ArenaEvent** event);
  void ReleaseUse(ArenaEvent* event);
  std::vector<ThreadArena*> Arenas();

  const ThreadSafeSettings settings_;
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
  std::vector<ArenaEvent*> idle_events_;
  std::vector<std::unique_ptr<ArenaEvent>> events_;
};

}  // namespace cistern::arenas

#endif  // CISTERN_ARENAS_THREAD_SAFE_ARENA_H_
