// Numbers that threads count together.
#include "addon/tally.h"

#include <utility>

#include "check.h"

namespace cistern::test {
namespace {

// A number to which another thread adds just before it is compared and swapped.
class Interrupted : public std::atomic<std::int64_t> {
 public:
  using atomic::atomic;
  bool compare_exchange_weak(std::int64_t& expected, std::int64_t desired) {
    *this += std::exchange(interruption, 0);
    return atomic::compare_exchange_weak(expected, desired);
  }
  std::int64_t interruption = 0;
};

}  // namespace

TEST("a peak is noted although another thread notes a lower one meanwhile") {
  TallyOf<Interrupted> tally;
  tally.peak.interruption = 3;
  tally.Add(5);
  CHECK(tally.peak == 5);
  tally.peak.interruption = 10;
  tally.Add(1);
  CHECK(tally.peak == 15);
  CHECK(tally.current == 6);
  CHECK(tally.total == 6);
}

TEST("what fits within a limit is added although another thread adds meanwhile") {
  TallyOf<Interrupted> tally;
  tally.current.interruption = 3;
  CHECK(tally.AddWithin(10, 7));
  CHECK(tally.current == 10);
  CHECK(tally.peak == 10);
  CHECK(tally.total == 7);
}

TEST("a limit is not exceeded if another thread reaches it meanwhile") {
  TallyOf<Interrupted> tally;
  tally.current.interruption = 4;
  CHECK(!tally.AddWithin(10, 7));
  CHECK(tally.current == 4);
  CHECK(tally.peak == 0);
  CHECK(tally.total == 0);
}

}  // namespace cistern::test
