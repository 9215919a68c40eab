// What the order checker reports, and who submits what it reports on.
#ifndef CISTERN_ORDER_REPORT_H_
#define CISTERN_ORDER_REPORT_H_

#include <cstdint>
#include <memory>

#include "order/vector_clock.h"

namespace cistern::order {

// The numbers are known to src/driver/order-checker.ts.
enum class Action { kCopy = 0, kSet = 1, kTouch = 2, kAllocate = 3, kFree = 4 };
enum class Access { kNone = 0, kRead = 1, kWrite = 2 };

struct Operation {
  Action action;
  Access access;
  Process process;          // kHost: not in any stream's order
  std::uint64_t count;      // which one of the process it is
  std::uint64_t stream_id;  // the driver's
  std::uint64_t begin;
  std::uint64_t bytes;
  std::uint64_t thread;  // who submitted it, and under which number; see Submitter
  std::uint64_t number;
};
using OperationPointer = std::shared_ptr<const Operation>;

// The numbers are known to src/driver/order-checker.ts.
enum class ReportKind {
  kUnordered = 0,            // two uses, at least one of them a write
  kUseAfterFree = 1,         // a use that was submitted after the free
  kFreedWhileInUse = 2,      // a free that is not ordered after a use
  kReuseWithoutWait = 3,     // a declared allocation that is not ordered after a use or free of what was there before
  kUseBeforeAllocation = 4,  // a use or free that is not ordered after the allocation
};

struct Report {
  ReportKind kind;
  std::uint64_t begin;  // of what both sides have in common
  std::uint64_t end;
  OperationPointer earlier;
  OperationPointer later;
  std::uint64_t thread;  // whose the report is: at first, that of `later`
};

// Who submits what this thread submits. Zero where nobody said.
struct Submitter {
  std::uint64_t thread = 0;
  // [0] is the number of the operation that is being submitted, written by JavaScript; [1] counts the reports that this thread caused.
  double* cells = nullptr;
};
inline thread_local Submitter submitter;

}  // namespace cistern::order

#endif  // CISTERN_ORDER_REPORT_H_
