// Checks stream order (native/order/) for the environments of this process, either for all of them
// or for none.
//
// The checker stands between an environment and its driver, so it sees most of what it needs. These
// functions report the rest: the streams whose progress the host learnt of other than by its own
// driver calls.
#ifndef CISTERN_ADDON_ORDER_H_
#define CISTERN_ADDON_ORDER_H_

#include <cstdint>
#include <vector>

#include "addon/environment.h"
#include "order/checked_table.h"

namespace cistern {

// For the calls of whoever is no environment, through a table of its own.
void JoinOrderCheck(DriverInUse& driver, const DriverTable* backend);
void LeaveOrderCheck(const DriverInUse& driver);

// The process has fallen asleep, or is awake again (cuda/asleep_table.h).
void ExchangeTables();

// Called when an environment has opened its backend.
void JoinOrderCheck(Environment& environment);
// Called when an environment ends. Calls no driver.
void LeaveOrderCheck(Environment& environment);

// Null while the check is off.
inline order::OrderChecker* OrderCheckerOf(const Environment& environment) {
  const DriverTable* table = environment.driver;
  return table == environment.backend ? nullptr : order::CheckerOf(table);
}

// The next four are for what JavaScript learns later, in its own time: a promise, a host function.
// A program cannot rely on the driver's progress before it has learnt of it.

inline order::Position PositionOf(const Environment& environment, Event event) {
  order::OrderChecker* checker = OrderCheckerOf(environment);
  return checker != nullptr ? checker->PositionOf(event) : order::Position();
}

inline order::Position PositionBeforeNext(const Environment& environment, Stream stream) {
  order::OrderChecker* checker = OrderCheckerOf(environment);
  return checker != nullptr ? checker->PositionBeforeNext(stream) : order::Position();
}

// Those of the host functions of a graph that was just launched.
inline std::vector<order::Position> TakePositionsOfLaunch(const Environment& environment) {
  return OrderCheckerOf(environment) != nullptr ? order::TakePositionsOfLaunch() : std::vector<order::Position>();
}

inline void NoteHostReached(const Environment& environment, const order::Position& position) {
  order::OrderChecker* checker = OrderCheckerOf(environment);
  if (checker != nullptr) checker->HostReached(position);
}

// A copy that a native host function makes in stream order.
inline void NoteHostCopy(const Environment& environment, Stream stream, std::uint64_t destination, std::uint64_t source,
                         std::uint64_t bytes) {
  order::OrderChecker* checker = OrderCheckerOf(environment);
  if (checker != nullptr) order::KeepBooks(*checker, [&] { checker->Copied(stream, destination, source, bytes); });
}

}  // namespace cistern

#endif  // CISTERN_ADDON_ORDER_H_
