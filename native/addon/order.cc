#include "addon/order.h"

#include <algorithm>
#include <mutex>
#include <vector>

#include "addon/address_space.h"
#include "addon/bindings.h"
#include "addon/memory.h"
#include "cuda/asleep_table.h"
#include "platform/lasting.h"

namespace cistern {
namespace {

// The mutex guards everything; no driver is called while it is held.
struct OrderCheck {
  std::mutex mutex;
  std::vector<Environment*> environments;  // those with a backend
  std::vector<std::pair<DriverInUse*, const DriverTable*>> others;
  int askers = 0;  // environments whose JavaScript has turned the check on
  std::uint64_t last_thread = 0;
};

OrderCheck& TheCheck() {
  static Lasting<OrderCheck> check;
  return *check;
}

// What calls go through now.
const DriverTable* TableOf(const OrderCheck& check, const DriverTable* backend) {
  if (IsAsleep(backend)) return AsleepTable();
  return check.askers > 0 ? order::CheckedTable(backend) : backend;
}

void ExchangeAll(const OrderCheck& check) {
  for (Environment* environment : check.environments) environment->driver = TableOf(check, environment->backend);
  for (const auto& [driver, backend] : check.others) *driver = TableOf(check, backend);
}

// From here on the calls are checked.
void CheckCalls(const OrderCheck& check, DriverInUse& driver, const DriverTable* backend) {
  order::CheckerOf(order::CheckedTable(backend))->Start();
  driver = TableOf(check, backend);
}

void EndCheck(const OrderCheck& check) {
  ExchangeAll(check);
  for (const Environment* environment : check.environments) order::CheckerOf(order::CheckedTable(environment->backend))->Stop();
}

// The environment turns the check off.
void StopAsking(OrderCheck& check, Environment& environment) {
  environment.order_cells.Reset();
  if (order::OrderChecker* checker = OrderCheckerOf(environment)) checker->DisownReports(order::submitter.thread);
  order::submitter = {};
  check.askers -= 1;
  if (check.askers == 0) EndCheck(check);
}

// Existing allocations of the environment are watched, too. Other threads change their own
// environments' books at any time, so environments that did not turn the check on are left out.
void AdoptAllocations(Environment& environment) {
  order::OrderChecker* checker = OrderCheckerOf(environment);
  if (checker == nullptr) return;
  order::KeepBooks(*checker, [&] {
    environment.allocations.ForEach([checker](const Allocation& allocation) {
      // A pool's handle has the top bit clear; pools hold device memory.
      const bool is_plain = (allocation.owner & kPlainOwnerFlag) != 0;
      const MemoryKind kind = is_plain ? static_cast<MemoryKind>(allocation.owner >> 32 & 0x7fffffff) : MemoryKind::kDevice;
      if (kind == MemoryKind::kHost) return;  // the driver does not know it
      checker->Adopt(allocation.address, allocation.bytes);
    });
    environment.address_spaces.ForEach([checker](std::uint64_t, const std::shared_ptr<AddressSpace>& space) {
      space->ForEachPiece([&](std::uint64_t begin, std::uint64_t end) { checker->Adopt(begin, end - begin); });
    });
  });
}

constexpr std::size_t kCellsOfSide = 6;
constexpr std::size_t kCellsOfReport = 3 + 2 * kCellsOfSide;

void WriteSide(const order::Operation& side, double* cells) {
  const bool is_own = side.thread != 0 && side.thread == order::submitter.thread;
  cells[0] = static_cast<double>(side.action);
  cells[1] = static_cast<double>(side.access);
  cells[2] = side.process == order::kHost ? -1 : static_cast<double>(side.stream_id);
  cells[3] = static_cast<double>(side.begin);
  cells[4] = static_cast<double>(side.bytes);
  cells[5] = is_own ? static_cast<double>(side.number) : 0;
}

struct Range {
  StreamEntry* stream;
  std::uint64_t address;
  std::uint64_t bytes;
};

Status ReadRange(Environment& environment, const Napi::CallbackInfo& info, Range* range) {
  if (!ReadInteger(info[0], &range->address) || !ReadInteger(info[1], &range->bytes)) return kInvalidArgument;
  if (range->bytes > kMaxSafeInteger - range->address) return kInvalidRange;
  return FindStream(environment, info[2], &range->stream);
}

// Calls note(checker) with the stream's context current, while stream order is checked.
template <typename Note>
Status WithChecker(Environment& environment, const StreamEntry& stream, Note&& note) {
  order::OrderChecker* checker = OrderCheckerOf(environment);
  if (checker == nullptr) return kSuccess;
  const RelaxedContextScope context(environment, stream.device);
  if (context.status() == kSuccess) order::KeepBooks(*checker, [&] { note(*checker); });
  return context.status();
}

}  // namespace

void JoinOrderCheck(DriverInUse& driver, const DriverTable* backend) {
  OrderCheck& check = TheCheck();
  const std::lock_guard<std::mutex> lock(check.mutex);
  check.others.emplace_back(&driver, backend);
  driver = TableOf(check, backend);
  if (check.askers > 0) CheckCalls(check, driver, backend);
}

void LeaveOrderCheck(const DriverInUse& driver) {
  OrderCheck& check = TheCheck();
  const std::lock_guard<std::mutex> lock(check.mutex);
  check.others.erase(std::remove_if(check.others.begin(), check.others.end(), [&](const auto& each) { return each.first == &driver; }),
                     check.others.end());
}

void JoinOrderCheck(Environment& environment) {
  OrderCheck& check = TheCheck();
  const std::lock_guard<std::mutex> lock(check.mutex);
  check.environments.push_back(&environment);
  environment.driver = TableOf(check, environment.backend);
  if (check.askers > 0) CheckCalls(check, environment.driver, environment.backend);
}

void ExchangeTables() {
  const OrderCheck& check = TheCheck();
  const std::lock_guard<std::mutex> lock(TheCheck().mutex);
  ExchangeAll(check);
}

void LeaveOrderCheck(Environment& environment) {
  OrderCheck& check = TheCheck();
  const std::lock_guard<std::mutex> lock(check.mutex);
  if (!environment.order_cells.IsEmpty()) StopAsking(check, environment);
  check.environments.erase(std::remove(check.environments.begin(), check.environments.end(), &environment), check.environments.end());
}

Status BeginOrderCheck(Environment& environment, const Napi::CallbackInfo& info) {
  Napi::Float64Array cells;
  if (!ReadArray(info[0], &cells) || cells.ElementLength() < 2) return kInvalidArgument;
  OrderCheck& check = TheCheck();
  const std::lock_guard<std::mutex> lock(check.mutex);
  if (!environment.order_cells.IsEmpty()) StopAsking(check, environment);
  environment.order_cells = Napi::Persistent(cells);
  check.last_thread += 1;
  order::submitter = {check.last_thread, cells.Data()};
  check.askers += 1;
  if (check.askers == 1) {
    for (Environment* each : check.environments) CheckCalls(check, each->driver, each->backend);
    for (const auto& [driver, backend] : check.others) CheckCalls(check, *driver, backend);
  }
  AdoptAllocations(environment);
  return kSuccess;
}

Status EndOrderCheck(Environment& environment, const Napi::CallbackInfo&) {
  OrderCheck& check = TheCheck();
  const std::lock_guard<std::mutex> lock(check.mutex);
  if (!environment.order_cells.IsEmpty()) StopAsking(check, environment);
  return kSuccess;
}

Status TakeOrderReports(Environment& environment, const Napi::CallbackInfo& info) {
  Napi::Float64Array array;
  if (!ReadArray(info[0], &array) || array.ElementLength() < kCellsOfReport) return kInvalidArgument;
  environment.Out(1, 0);
  environment.Out(2, 0);
  order::OrderChecker* checker = OrderCheckerOf(environment);
  if (checker == nullptr) return kSuccess;
  std::uint64_t dropped;
  const std::vector<order::Report> reports =
      checker->TakeReports(order::submitter.thread, array.ElementLength() / kCellsOfReport, &dropped);
  double* cells = array.Data();
  for (const order::Report& report : reports) {
    cells[0] = static_cast<double>(report.kind);
    cells[1] = static_cast<double>(report.begin);
    cells[2] = static_cast<double>(report.end - report.begin);
    WriteSide(*report.earlier, cells + 3);
    WriteSide(*report.later, cells + 3 + kCellsOfSide);
    cells += kCellsOfReport;
  }
  environment.Out(1, static_cast<double>(reports.size()));
  environment.Out(2, static_cast<double>(dropped));
  return kSuccess;
}

Status Touch(Environment& environment, const Napi::CallbackInfo& info) {
  Range range;
  bool is_write;
  if (!ReadBoolean(info[3], &is_write)) return kInvalidArgument;
  const Status status = ReadRange(environment, info, &range);
  if (status != kSuccess) return status;
  return WithChecker(environment, *range.stream, [&](order::OrderChecker&) {
    const order::Access access = is_write ? order::Access::kWrite : order::Access::kRead;
    order::NoteTouch(environment.driver, range.stream->stream, access, range.address, range.bytes);
  });
}

Status DeclareAllocation(Environment& environment, const Napi::CallbackInfo& info) {
  Range range;
  const Status status = ReadRange(environment, info, &range);
  if (status != kSuccess) return status;
  return WithChecker(environment, *range.stream,
                     [&](order::OrderChecker& checker) { checker.DeclareAllocation(range.stream->stream, range.address, range.bytes); });
}

Status DeclareFree(Environment& environment, const Napi::CallbackInfo& info) {
  Range range;
  const Status status = ReadRange(environment, info, &range);
  if (status != kSuccess) return status;
  return WithChecker(environment, *range.stream,
                     [&](order::OrderChecker& checker) { checker.DeclareFree(range.stream->stream, range.address, range.bytes); });
}

}  // namespace cistern
