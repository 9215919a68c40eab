// What a thread keeps of each arena that it uses, and how an arena learns that one of its threads ends.
#ifndef CISTERN_ARENAS_THREAD_STATE_H_
#define CISTERN_ARENAS_THREAD_STATE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace cistern::arenas {

class ThreadArena;
struct ArenaEvent;
class ThreadState;

// An arena, as its threads see it.
class ThreadUser : public std::enable_shared_from_this<ThreadUser> {
 public:
  // `number`: different for every one of the process.
  explicit ThreadUser(std::uint64_t number) : number_(number) {}
  virtual ~ThreadUser() = default;
  std::uint64_t number() const { return number_; }
  // On the thread that ends.
  virtual void EndThread(const ThreadState& state) noexcept = 0;

 private:
  const std::uint64_t number_;
};

inline constexpr std::size_t kMostEventsOfThread = 64;

class ThreadState {
 public:
  // Null if this thread has none, or has ended. Asks for no memory.
  static ThreadState* Known(const ThreadUser& user);
  // The one of this thread, which may be new. Null if the thread has ended. May throw std::bad_alloc.
  static ThreadState* Find(ThreadUser& user);

  std::uint64_t number = 0;
  std::weak_ptr<ThreadUser> user;
  ThreadArena* own = nullptr;
  std::vector<ArenaEvent*> events;  // idle ones, up to kMostEventsOfThread
};

}  // namespace cistern::arenas

#endif  // CISTERN_ARENAS_THREAD_STATE_H_
