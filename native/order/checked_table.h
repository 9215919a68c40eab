// A driver table that calls another one and tells an order checker of what it did.
//
// So whatever is behind the table is checked by the same code, CUDA as well as the software device, and by the calls that are really made,
// those that cistern makes for itself included.
#ifndef CISTERN_ORDER_CHECKED_TABLE_H_
#define CISTERN_ORDER_CHECKED_TABLE_H_

#include <new>

#include "cuda/driver_table.h"
#include "order/order_checker.h"

namespace cistern::order {

// The table in front of `next`. There is one for each of the first kMaxTables tables that are asked for, until the process ends; null for
// any other.
inline constexpr int kMaxTables = 2;
const DriverTable* CheckedTable(const DriverTable* next);

// Who keeps the books of a checked table; null where the table is none.
OrderChecker* CheckerOf(const DriverTable* table);

// Runs what keeps books. They are given up where there is no memory for them: the program must not fail for being checked.
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
