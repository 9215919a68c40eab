// The reports of the order checker, and the identity of submitting threads.
#ifndef CISTERN_ORDER_REPORT_H_
#define CISTERN_ORDER_REPORT_H_

#include <cstdint>
#include <memory>

#include "order/vector_clock.h"

namespace cistern::order {

// src/driver/order-checker.ts has the same numbers.
enum class Action { kCopy = 0, kSet = 1, kTouch = 2, kAllocate = 3, kFree = 4 };
enum class Access { kNone = 0, kRead = 1, kWrite = 2 };

struct Operation {
  Action action;
  Access access;
  Process process;          // kHost: not in any stream's order
  std::uint64_t count;      // its number within the process
  std::uint64_t stream_id;  // the driver's
  std::uint64_t begin;
  std::uint64_t bytes;
  std::uint64_t thread;  // the submitting thread, and the number of the operation there; see Submitter
  std::uint64_t number;
};
using OperationPointer = std::shared_ptr<const Operation>;

// src/driver/order-checker.ts has the same numbers.
enum class ReportKind {
  kUnordered = 0,            // two uses, at least one of them a write
  kUseAfterFree = 1,         // a use that was submitted after the free
  kFreedWhileInUse = 2,      // a free that is not ordered after a use
  kReuseWithoutWait = 3,     // a declared allocation that is not ordered after a use or free of the previous contents
  kUseBeforeAllocation = 4,  // a use or free that is not ordered after the allocation
};

struct Report {
  ReportKind kind;
  std::uint64_t begin;  // of the bytes that both sides have in common
  std::uint64_t end;
  OperationPointer earlier;
  OperationPointer later;
  std::uint64_t thread;  // the thread that gets the report: initially that of `later`
};

// The identity under which this thread submits. Zero if it has none.
struct Submitter {
  std::uint64_t thread = 0;
  // [0] is the number of the operation being submitted, written by JavaScript; [1] counts the
  // reports that this thread caused.
  double* cells = nullptr;
};
inline thread_local Submitter submitter;

}  // namespace cistern::order

#endif  // CISTERN_ORDER_REPORT_H_
