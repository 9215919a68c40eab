// How far each stream is known to have run, as seen from one place: a process (a stream) and the
// number of its operations that come before.
//
// Sparse and sorted by process: a program has few streams at a time, and those that the host knows
// completely are left out (see order_checker.h), so a clock stays short however many streams there
// were.
#ifndef CISTERN_ORDER_VECTOR_CLOCK_H_
#define CISTERN_ORDER_VECTOR_CLOCK_H_

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

namespace cistern::order {

// A number for each stream, never reused. 0 is the host.
using Process = std::uint64_t;
inline constexpr Process kHost = 0;

class VectorClock {
 public:
  struct Entry {
    Process process;
    std::uint64_t count;
  };

  // The number of operations of the process that came before.
  std::uint64_t Get(Process process) const {
    const auto found = std::lower_bound(entries_.begin(), entries_.end(), process, IsBelow);
    return found != entries_.end() && found->process == process ? found->count : 0;
  }

  void Raise(Process process, std::uint64_t count) {
    const auto found = std::lower_bound(entries_.begin(), entries_.end(), process, IsBelow);
    if (found == entries_.end() || found->process != process) {
      entries_.insert(found, {process, count});
    } else {
      found->count = std::max(found->count, count);
    }
  }

  // Afterwards everything that came before the other place also comes before this one.
  void Join(const VectorClock& other) {
    std::vector<Entry> joined;
    joined.reserve(entries_.size() + other.entries_.size());
    auto own = entries_.begin();
    for (const Entry& entry : other.entries_) {
      while (own != entries_.end() && own->process < entry.process) joined.push_back(*own++);
      if (own != entries_.end() && own->process == entry.process) {
        joined.push_back({entry.process, std::max(own++->count, entry.count)});
      } else {
        joined.push_back(entry);
      }
    }
    joined.insert(joined.end(), own, entries_.end());
    entries_ = std::move(joined);
  }

  template <typename Predicate>
  void RemoveIf(Predicate&& predicate) {
    entries_.erase(std::remove_if(entries_.begin(), entries_.end(), predicate), entries_.end());
  }

  const std::vector<Entry>& entries() const { return entries_; }

 private:
  static bool IsBelow(const Entry& entry, Process process) { return entry.process < process; }

  std::vector<Entry> entries_;
};

}  // namespace cistern::order

#endif  // CISTERN_ORDER_VECTOR_CLOCK_H_
