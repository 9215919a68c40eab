// A driver table that calls another one and reports the calls to an order checker.
//
// So the same code checks whatever is behind the table, CUDA or the software device, and it sees
// the calls that are really made, including cistern's own.
#ifndef CISTERN_ORDER_CHECKED_TABLE_H_
#define CISTERN_ORDER_CHECKED_TABLE_H_

#include <new>
#include <vector>

#include "cuda/driver_table.h"
#include "order/order_checker.h"

namespace cistern::order {

// Graphs. What is captured is used where the graph is launched, so it is noted down at each launch: what was
// captured on the first stream as work of the stream of the launch, and what was captured on each stream that
// joined as work of a stream of its own, which the events of the capture order. So a missing edge between two
// nodes is found.

// The table in front of `next`. There is one for each of the first kMaxTables tables that are
// requested, until the process ends; null for any other.
inline constexpr int kMaxTables = 2;
const DriverTable* CheckedTable(const DriverTable* next);

// The checker of a checked table; null for a plain table.
OrderChecker* CheckerOf(const DriverTable* table);

// A use that no call shows, such as that of another library's kernel: now, or, on a captured stream, at
// each launch of the graph.
void NoteTouch(const DriverTable* checked_table, Stream stream, Access access, std::uint64_t address, std::uint64_t bytes);

// What comes before each host function of the graph that this thread has launched last through a checked table,
// in the order of their capture.
std::vector<Position> TakePositionsOfLaunch();

// Runs code that updates the books. If there is no memory for them, they are abandoned, because
// checking must not make the program fail.
template <typename Body>
void KeepBooks(OrderChecker& checker, Body&& body) noexcept {
  try {
    body();
  } catch (const std::bad_alloc&) {
    checker.Stop();
  }
}

}  // namespace cistern::order

#endif  // CISTERN_ORDER_CHECKED_TABLE_H_
