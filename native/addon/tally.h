// A number that several threads change at the same time, with its peak.
#ifndef CISTERN_ADDON_TALLY_H_
#define CISTERN_ADDON_TALLY_H_

#include <atomic>
#include <cstdint>

namespace cistern {

// A test gives another type of number, to change it between two steps of a function.
template <typename Number>
struct TallyOf {
  Number current{0};
  Number peak{0};
  Number total{0};

  // `now` was the current value at some moment.
  void Note(std::int64_t now) {
    std::int64_t highest = peak;
    while (now > highest && !peak.compare_exchange_weak(highest, now)) {
    }
  }
  void Add(std::int64_t amount) {
    Note(current += amount);
    total += amount;
  }
  // False, and nothing has changed, if the current value would exceed a limit.
  bool AddWithin(std::int64_t limit, std::int64_t amount) {
    std::int64_t now = current;
    do {
      if (amount > limit - now) return false;
    } while (!current.compare_exchange_weak(now, now + amount));
    Note(now + amount);
    total += amount;
    return true;
  }
};

using Tally = TallyOf<std::atomic<std::int64_t>>;

}  // namespace cistern

#endif  // CISTERN_ADDON_TALLY_H_
