// The order checker: vector clocks, shadow memory, and the reports about calls to the software
// device's table.
#include <thread>

#include "fixture.h"
#include "order/checked_table.h"

namespace cistern::test {
namespace {

using order::Access;
using order::Action;
using order::Report;
using order::ReportKind;
using order::VectorClock;

const DriverTable& Checked() {
  static const DriverTable* table = order::CheckedTable(&driver);
  return *table;
}
order::OrderChecker& Checker() { return *order::CheckerOf(&Checked()); }

// Plain memory, allocated and freed through the checked table.
class Memory {
 public:
  explicit Memory(std::size_t bytes = 4096) { CHECK_OK(Checked().MemAlloc(&pointer_, bytes)); }
  ~Memory() {
    if (pointer_ == 0) return;
    CHECK_OK(Checked().CtxSynchronize());
    Free();
  }
  Memory(const Memory&) = delete;
  operator DevicePointer() const { return pointer_; }
  void Free() {
    CHECK_OK(Checked().MemFree(pointer_));
    pointer_ = 0;
  }

 private:
  DevicePointer pointer_ = 0;
};

class Checking {
 public:
  Checking() {
    Checker().Start();
    CHECK_OK(Checked().MemAlloc(&fresh_, kMiB));
    begin_ = fresh_;
  }
  ~Checking() {
    CHECK(Reports().empty());
    Checker().Stop();
    CHECK_OK(Checked().MemFree(begin_));
  }
  // 4096 bytes that nobody has used, freed at the end: a free would wait for stalled streams.
  DevicePointer Fresh() {
    fresh_ += 4096;
    return fresh_ - 4096;
  }
  std::vector<Report> Reports() {
    std::uint64_t dropped;
    return Checker().TakeReports(0, 10000, &dropped);
  }
  // One report of a kind, between two streams (null: the host).
  bool ReportsOne(ReportKind kind, Stream earlier, Stream later) {
    const std::vector<Report> reports = Reports();
    if (reports.size() != 1 || reports[0].kind != kind) return false;
    return IdOf(earlier) == reports[0].earlier->stream_id && IdOf(later) == reports[0].later->stream_id;
  }
  static std::uint64_t IdOf(Stream stream) {
    unsigned long long id = 0;
    if (stream != nullptr) CHECK_OK(driver.StreamGetId(stream, &id));
    return id;
  }

 private:
  DevicePointer begin_ = 0;
  DevicePointer fresh_ = 0;
};

// Nothing is really written, so that a thread sanitizer has nothing to report about what is
// deliberately out of order.
void Touch(DevicePointer pointer, std::size_t bytes, Access access, Stream stream) {
  Checker().Used(stream, Action::kTouch, access, pointer, bytes);
}
void Write(DevicePointer pointer, std::size_t bytes, Stream stream) { Touch(pointer, bytes, Access::kWrite, stream); }
void Wait(Stream waiting, Stream recorded) {
  TestEvent event;
  CHECK_OK(Checked().EventRecord(event, recorded));
  CHECK_OK(Checked().StreamWaitEvent(waiting, event, 0));
}

// Two writes of the same memory, on two streams, with the body's calls in between.
template <typename Body>
bool IsOrderedBy(Checking& checking, Stream a, Stream b, Body&& body) {
  const DevicePointer memory = checking.Fresh();
  Write(memory, 4096, a);
  body();
  Write(memory, 4096, b);
  return checking.Reports().empty();
}

}  // namespace

TEST("a vector clock is the least upper bound of the clocks that it was joined with") {
  VectorClock a;
  VectorClock b;
  a.Raise(3, 5);
  a.Raise(1, 2);
  a.Raise(3, 4);
  b.Raise(2, 7);
  b.Raise(3, 9);
  CHECK(a.Get(1) == 2 && a.Get(3) == 5 && a.Get(2) == 0);
  a.Join(b);
  CHECK(a.Get(1) == 2 && a.Get(2) == 7 && a.Get(3) == 9);
  CHECK(a.entries().size() == 3 && b.entries().size() == 2);
  a.RemoveIf([](const VectorClock::Entry& entry) { return entry.process == 2; });
  CHECK(a.Get(2) == 0 && a.entries().size() == 2);
  b.Join({});
  CHECK(b.Get(2) == 7);
}

TEST("a shadow splits cells where ranges end, and merges equal ones") {
  order::Shadow shadow;
  shadow.Replace(0, 100, {});
  const auto mark = std::make_shared<const order::Operation>(order::Operation{});
  shadow.ForEach(20, 40, [&](std::uint64_t, order::Cell& cell) { cell.written = mark; });
  CHECK(shadow.size() == 3);
  shadow.ForEach(40, 60, [&](std::uint64_t, order::Cell& cell) { cell.written = mark; });
  CHECK(shadow.size() == 3);
  std::uint64_t sum = 0;
  shadow.ForEach(0, 100, [&](std::uint64_t begin, order::Cell& cell) {
    if (cell.written == mark) sum += cell.end - begin;
    cell.written = nullptr;
  });
  CHECK(sum == 40 && shadow.size() == 1);
  shadow.Erase(10, 20);
  CHECK(shadow.size() == 2);
  order::Shadow::Cells taken = shadow.Take(0, 15);
  CHECK(taken.size() == 1 && taken.begin()->second.end == 10 && shadow.size() == 1);
  shadow.PutBack(std::move(taken));
  CHECK(shadow.size() == 2);
}

TEST("two writes on two streams without a wait are reported, with both sides") {
  Checking checking;
  TestStream a;
  TestStream b;
  Memory memory;
  CHECK_OK(Checked().MemsetD8Async(memory, 1, 1000, a));
  Write(memory + 500, 1000, b);
  const std::vector<Report> reports = checking.Reports();
  CHECK(reports.size() == 1);
  if (reports.size() != 1) return;
  const Report& report = reports[0];
  CHECK(report.kind == ReportKind::kUnordered);
  CHECK(report.begin == memory + 500 && report.end == memory + 1000);
  CHECK(report.earlier->action == Action::kSet && report.earlier->access == Access::kWrite);
  CHECK(report.earlier->begin == memory && report.earlier->bytes == 1000);
  CHECK(report.later->action == Action::kTouch && report.later->begin == memory + 500);
  CHECK(report.earlier->stream_id == checking.IdOf(a) && report.later->stream_id == checking.IdOf(b));
}

TEST("copies and sets are noted with the memory that they read and write") {
  Checking checking;
  TestStream a;
  TestStream b;
  const DevicePointer from = checking.Fresh();
  const DevicePointer to = checking.Fresh();
  CHECK_OK(Checked().MemsetD32Async(from, 1, 16, a));
  CHECK_OK(Checked().MemcpyAsync(to, from, 16, a));
  Write(from + 64, 1, b);
  Write(to + 16, 1, b);
  CHECK(checking.Reports().empty());
  Touch(from + 63, 1, Access::kRead, b);
  CHECK(checking.ReportsOne(ReportKind::kUnordered, a, b));
  Touch(to + 15, 1, Access::kRead, b);
  CHECK(checking.ReportsOne(ReportKind::kUnordered, a, b));
  Write(from, 16, b);
  const std::vector<Report> reports = checking.Reports();
  CHECK(reports.size() == 1 && reports[0].earlier->action == Action::kCopy && reports[0].earlier->access == Access::kRead);
}

TEST("each copy of a batch is noted with the memory that it reads and writes") {
  Checking checking;
  TestStream a;
  TestStream b;
  DevicePointer from[] = {checking.Fresh(), checking.Fresh()};
  DevicePointer to[] = {checking.Fresh(), checking.Fresh()};
  std::size_t sizes[] = {16, 32};
  CopyAttributes attributes = {kSourceOrderStream, {kLocationNone, 0}, {kLocationNone, 0}, 0};
  std::size_t first_copy = 0;
  for (DevicePointer each : from) CHECK_OK(Checked().MemsetD8Async(each, 1, 64, a));
  CHECK_OK(Checked().MemcpyBatchAsync(to, from, sizes, 2, &attributes, &first_copy, 1, a));
  Write(to[0] + 16, 1, b);
  Write(to[1] + 32, 1, b);
  CHECK(checking.Reports().empty());
  Touch(to[0] + 15, 1, Access::kRead, b);
  CHECK(checking.ReportsOne(ReportKind::kUnordered, a, b));
  Touch(to[1] + 31, 1, Access::kRead, b);
  CHECK(checking.ReportsOne(ReportKind::kUnordered, a, b));
  Touch(from[1], 1, Access::kWrite, b);
  CHECK(checking.Reports().size() == 1);
}

TEST("reads conflict with writes, not with reads, and one fault gives one report") {
  Checking checking;
  TestStream a;
  TestStream b;
  TestStream c;
  TestStream d;
  Memory memory;
  Memory other;
  Touch(memory, 64, Access::kRead, a);
  Touch(memory, 64, Access::kRead, b);
  CHECK(checking.Reports().empty());
  Write(memory, 64, c);
  CHECK(checking.Reports().size() == 2);
  Wait(d, c);
  Write(memory, 64, d);
  Wait(c, d);
  CHECK(checking.Reports().empty());
  Write(memory, 64, c);
  CHECK_OK(Checked().MemcpyAsync(other, memory, 64, c));
  CHECK(checking.Reports().empty());
  Touch(memory, 64, Access::kRead, a);
  CHECK(checking.ReportsOne(ReportKind::kUnordered, c, a));
  Touch(memory, 64, Access::kRead, a);
  Write(other, 64, a);
  CHECK(checking.ReportsOne(ReportKind::kUnordered, c, a));
}

TEST("operations that wait for a stream, or learn that it is done, are ordered after it") {
  Checking checking;
  TestStream a;
  TestStream b;
  TestEvent event;
  CHECK(!IsOrderedBy(checking, a, b, [] {}));
  CHECK(IsOrderedBy(checking, a, a, [] {}));
  CHECK(IsOrderedBy(checking, a, b, [&] { Wait(b, a); }));
  CHECK(!IsOrderedBy(checking, a, b, [&] { Wait(a, b); }));
  CHECK(IsOrderedBy(checking, a, b, [&] { CHECK_OK(Checked().StreamSynchronize(a)); }));
  CHECK(!IsOrderedBy(checking, a, b, [&] { CHECK_OK(Checked().StreamSynchronize(b)); }));
  CHECK(IsOrderedBy(checking, a, b, [&] { CHECK_OK(Checked().CtxSynchronize()); }));
  CHECK(IsOrderedBy(checking, a, b, [&] {
    while (Checked().StreamQuery(a) != kSuccess) SleepMilliseconds(1);
  }));
  CHECK(IsOrderedBy(checking, a, b, [&] {
    CHECK_OK(Checked().EventRecord(event, a));
    CHECK_OK(Checked().EventSynchronize(event));
  }));
  CHECK(IsOrderedBy(checking, a, b, [&] {
    CHECK_OK(Checked().EventRecord(event, a));
    while (Checked().EventQuery(event) != kSuccess) SleepMilliseconds(1);
  }));
  CHECK(!IsOrderedBy(checking, a, b, [&] { CHECK_OK(Checked().EventSynchronize(event)); }));
  // The driver may wait in a free, and need not.
  CHECK(!IsOrderedBy(checking, a, b, [] { Memory().Free(); }));
  CHECK(!IsOrderedBy(checking, a, b, [] {
    void* pinned = nullptr;
    CHECK_OK(Checked().MemHostAlloc(&pinned, 64, 0));
    CHECK_OK(Checked().MemFreeHost(pinned));
  }));
  CHECK(!IsOrderedBy(checking, a, b, [] {
    alignas(4096) static char memory[4096];
    CHECK_OK(Checked().MemHostRegister(memory, sizeof memory, 0));
    CHECK_OK(Checked().MemHostUnregister(memory));
  }));
}

TEST("a failing query or wait, and an event with a new handle, order nothing") {
  Checking checking;
  TestStream a;
  TestStream b;
  TestEvent event;
  Gate gate;
  CHECK(!IsOrderedBy(checking, a, b, [&] {
    gate.Close(a);
    CHECK_OK(Checked().EventRecord(event, a));
    CHECK(Checked().StreamQuery(a) == kErrorNotReady);
    CHECK(Checked().EventQuery(event) == kErrorNotReady);
    CHECK(Checked().StreamWaitEvent(b, event, 77) != kSuccess);
  }));
  gate.Open();
  Event destroyed = nullptr;
  CHECK_OK(Checked().EventCreate(&destroyed, kEventDisableTiming));
  CHECK(!IsOrderedBy(checking, a, b, [&] {
    CHECK_OK(Checked().EventRecord(destroyed, a));
    CHECK_OK(Checked().EventDestroy(destroyed));
    CHECK(Checker().size().events == 1);
  }));
}

TEST("a wait is for the latest recording when it was called, and carries on through other streams") {
  Checking checking;
  TestStream a;
  TestStream b;
  TestStream c;
  TestEvent early;
  CHECK_OK(Checked().EventRecord(early, b));
  CHECK(IsOrderedBy(checking, a, c, [&] {
    Wait(b, a);
    Wait(c, b);
  }));
  // As once in RMM's pool: the event that c waits for was recorded before b itself waited
  // (rapidsai/rmm#2489).
  CHECK(!IsOrderedBy(checking, a, c, [&] {
    CHECK_OK(Checked().EventRecord(early, b));
    Wait(b, a);
    CHECK_OK(Checked().StreamWaitEvent(c, early, 0));
  }));
}

TEST("the legacy default stream is ordered with blocking streams, and not with the others") {
  Checking checking;
  TestStream blocking(kStreamDefault);
  TestStream other(kStreamDefault);
  TestStream apart(kStreamNonBlocking);
  Memory unrelated;
  CHECK(IsOrderedBy(checking, blocking, nullptr, [] {}));
  CHECK(IsOrderedBy(checking, LegacyStream(), blocking, [] {}));
  CHECK(IsOrderedBy(checking, PerThreadStream(), LegacyStream(), [] {}));
  CHECK(!IsOrderedBy(checking, apart, nullptr, [] {}));
  CHECK(!IsOrderedBy(checking, LegacyStream(), apart, [] {}));
  CHECK(!IsOrderedBy(checking, blocking, other, [] {}));
  CHECK(IsOrderedBy(checking, blocking, other, [&] { Write(unrelated, 1, nullptr); }));
  TestEvent event;
  CHECK(IsOrderedBy(checking, blocking, apart, [&] { Wait(apart, nullptr); }));
  CHECK(IsOrderedBy(checking, LegacyStream(), apart, [&] { Wait(apart, blocking); }));
  CHECK(IsOrderedBy(checking, blocking, apart, [&] { CHECK_OK(Checked().StreamSynchronize(nullptr)); }));
  // Nothing on the blocking stream waits for the legacy one yet.
  Gate gate;
  gate.Close(nullptr);
  CHECK(!IsOrderedBy(checking, LegacyStream(), apart, [&] { CHECK_OK(Checked().StreamSynchronize(blocking)); }));
  // A failing query submits nothing, so it orders nothing.
  CHECK(!IsOrderedBy(checking, blocking, other, [&] { CHECK(Checked().StreamQuery(nullptr) == kErrorNotReady); }));
  CHECK(IsOrderedBy(checking, blocking, other, [&] {
    CHECK_OK(Checked().LaunchHostFunc(
        nullptr, [](void*) {}, nullptr));
  }));
  gate.Open();
}

TEST("the host knows what comes before a host function once it is informed") {
  Checking checking;
  TestStream a;
  TestStream b;
  CHECK(!IsOrderedBy(checking, a, b, [&] { Checker().PositionBeforeNext(a); }));
  CHECK(IsOrderedBy(checking, a, b, [&] { Checker().HostReached(Checker().PositionBeforeNext(a)); }));
  Memory memory;
  const order::Position before = Checker().PositionBeforeNext(a);
  Write(memory, 64, a);
  Checker().HostReached(before);
  Write(memory, 64, b);
  CHECK(checking.ReportsOne(ReportKind::kUnordered, a, b));
}

TEST("a synchronization covers what was submitted when it was called, not when it returns") {
  Checking checking;
  TestStream a;
  TestStream b;
  const DevicePointer memory = checking.Fresh();
  Gate gate;
  gate.Close(a);
  std::thread waiting([&] {
    OnDevice device(0);
    CHECK_OK(Checked().StreamSynchronize(a));
  });
  SleepMilliseconds(20);
  Write(memory, 64, a);
  gate.Open();
  waiting.join();
  Write(memory, 64, b);
  CHECK(checking.ReportsOne(ReportKind::kUnordered, a, b));
}

TEST("memory of a pool lives from the place of its allocation in stream order to that of its free") {
  Checking checking;
  TestStream a;
  TestStream b;
  TestPool pool;
  DevicePointer memory = 0;
  const auto allocate = [&] { CHECK_OK(Checked().MemAllocFromPoolAsync(&memory, 4096, pool, a)); };
  allocate();
  Write(memory, 64, a);
  Write(memory + 64, 64, b);
  CHECK(checking.ReportsOne(ReportKind::kUseBeforeAllocation, a, b));
  CHECK_OK(Checked().MemFreeAsync(memory, a));
  CHECK(checking.ReportsOne(ReportKind::kFreedWhileInUse, b, a));
  Touch(memory, 64, Access::kRead, a);
  CHECK(checking.ReportsOne(ReportKind::kUseAfterFree, a, a));
  Touch(memory, 64, Access::kRead, a);
  CHECK(checking.Reports().empty());
  allocate();
  CHECK_OK(Checked().MemFreeAsync(memory, b));
  CHECK(checking.ReportsOne(ReportKind::kUseBeforeAllocation, a, b));
  allocate();
  Wait(b, a);
  Write(memory, 64, b);
  Wait(a, b);
  CHECK_OK(Checked().MemFreeAsync(memory, a));
}

TEST("a free that the driver refuses leaves the state unchanged") {
  Checking checking;
  TestStream a;
  TestStream b;
  Memory memory;
  Write(memory, 64, a);
  CHECK(Checked().MemFreeAsync(memory, reinterpret_cast<Stream>(std::uintptr_t{0xDEAD000})) != kSuccess);
  CHECK(Checked().MemFree(memory + 256) != kSuccess);
  Write(memory, 64, b);
  CHECK(checking.ReportsOne(ReportKind::kUnordered, a, b));
}

TEST("a touch of freed plain memory is a use after free") {
  Checking checking;
  TestStream a;
  Memory memory;
  DevicePointer memory_of_others = 0;
  const DevicePointer pointer = memory;
  memory.Free();
  Touch(pointer + 100, 8, Access::kWrite, a);
  CHECK(checking.ReportsOne(ReportKind::kUseAfterFree, nullptr, a));
  // Allocated past the checker, by another library: memory that the driver accepts is live.
  Memory second;
  const DevicePointer reused = second;
  second.Free();
  CHECK_OK(driver.MemAlloc(&memory_of_others, 4096));
  CHECK(memory_of_others == reused);
  CHECK_OK(Checked().MemsetD8Async(reused, 1, 64, a));
  Touch(reused, 64, Access::kWrite, a);
  CHECK(checking.Reports().empty());
  CHECK_OK(driver.MemFree(memory_of_others));
}

TEST("declared parts of an allocation have lives of their own") {
  Checking checking;
  TestStream a;
  TestStream b;
  TestPool pool;
  Memory chunk(1 << 16);
  order::OrderChecker& checker = Checker();
  checker.DeclareAllocation(a, chunk, 256);
  Touch(chunk, 256, Access::kWrite, a);
  checker.DeclareFree(a, chunk, 256);
  CHECK(checking.Reports().empty());
  checker.DeclareAllocation(b, chunk, 128);
  CHECK(checking.ReportsOne(ReportKind::kReuseWithoutWait, a, b));
  Touch(chunk, 128, Access::kWrite, b);
  Touch(chunk + 128, 64, Access::kRead, b);
  CHECK(checking.ReportsOne(ReportKind::kUseAfterFree, a, b));
  checker.DeclareFree(a, chunk, 128);
  CHECK(checking.ReportsOne(ReportKind::kFreedWhileInUse, b, a));
  Wait(b, a);
  checker.DeclareAllocation(b, chunk, 128);
  checker.DeclareFree(b, chunk, 128);
  // Two layers may both declare.
  checker.DeclareAllocation(b, chunk + 4096, 256);
  checker.DeclareAllocation(b, chunk + 4096, 256);
  checker.DeclareFree(b, chunk + 4096, 256);
  checker.DeclareFree(b, chunk + 4096, 256);
  // A part that is left in use, and was never declared free.
  checker.DeclareAllocation(b, chunk + 8192, 256);
  Touch(chunk + 8192, 256, Access::kRead, b);
  checker.DeclareAllocation(a, chunk + 8192, 256);
  CHECK(checking.ReportsOne(ReportKind::kReuseWithoutWait, b, a));
  // A part of memory that is fresh on another stream (part of rapidsai/rmm#2507).
  DevicePointer fresh = 0;
  CHECK_OK(Checked().MemAllocFromPoolAsync(&fresh, 4096, pool, a));
  checker.DeclareAllocation(b, fresh, 256);
  CHECK(checking.ReportsOne(ReportKind::kUseBeforeAllocation, a, b));
  checker.DeclareFree(b, fresh, 256);
  CHECK_OK(Checked().MemFreeAsync(fresh, a));
  CHECK(checking.ReportsOne(ReportKind::kFreedWhileInUse, b, a));
  // Memory that was freed as a whole has no owner, even if a part of it is declared afterwards.
  checker.DeclareAllocation(a, fresh, 256);
  Touch(fresh, 8, Access::kRead, a);
  CHECK(checking.ReportsOne(ReportKind::kUseAfterFree, a, a));
  // Memory that is not watched.
  checker.DeclareAllocation(a, 4096, 256);
  checker.DeclareFree(b, 4096, 256);
  Touch(4096, 256, Access::kWrite, a);
}

TEST("memory that nobody used is compared with its previous owner, not with its last allocation") {
  Checking checking;
  TestStream a;
  TestStream b;
  TestStream c;
  TestPool pool;
  DevicePointer chunk = 0;
  order::OrderChecker& checker = Checker();
  CHECK_OK(Checked().MemAllocFromPoolAsync(&chunk, 1 << 16, pool, a));
  Wait(b, a);
  // Freed in the order of an event from before the allocation; this free is not declared.
  checker.DeclareAllocation(a, chunk, 256);
  checker.DeclareAllocation(b, chunk, 256);
  CHECK(checking.Reports().empty());
  Touch(chunk, 256, Access::kWrite, b);
  CHECK(checking.Reports().empty());
  // However often that is done, the last use stays.
  Wait(a, b);
  checker.DeclareFree(b, chunk, 256);
  Wait(a, b);
  checker.DeclareAllocation(a, chunk, 256);
  checker.DeclareAllocation(a, chunk, 128);
  checker.DeclareAllocation(c, chunk, 128);
  CHECK(checking.ReportsOne(ReportKind::kReuseWithoutWait, b, c));
  // A use must come after the allocation nevertheless.
  Touch(chunk + 128, 8, Access::kRead, b);
  CHECK(checking.ReportsOne(ReportKind::kUseBeforeAllocation, a, b));
  // The same holds for a larger part that is freed around it.
  checker.DeclareAllocation(b, chunk + 8192, 4096);
  Wait(a, b);
  checker.DeclareAllocation(a, chunk + 8192, 256);
  checker.DeclareFree(b, chunk + 8192, 4096);
  CHECK(checking.Reports().empty());
  // The driver gets back memory that nobody used, ordered after the driver's own allocation.
  checker.DeclareAllocation(a, chunk + 4096, 256);
  Wait(b, c);
  CHECK_OK(Checked().MemFreeAsync(chunk, b));
  CHECK(checking.Reports().empty());
  CHECK_OK(Checked().MemAllocFromPoolAsync(&chunk, 4096, pool, a));
  checker.DeclareAllocation(a, chunk, 4096);
  CHECK_OK(Checked().MemFreeAsync(chunk, c));
  CHECK(checking.ReportsOne(ReportKind::kUseBeforeAllocation, a, c));
  // Also if all of a block is declared allocated, and its free is not declared.
  CHECK_OK(Checked().MemAllocFromPoolAsync(&chunk, 4096, pool, a));
  Wait(b, a);
  checker.DeclareAllocation(b, chunk, 4096);
  CHECK_OK(Checked().MemFreeAsync(chunk, a));
  CHECK(checking.Reports().empty());
}

TEST("nothing is compared with what happened before the check began, or after it ended") {
  TestStream a;
  TestStream b;
  TestEvent event;
  Memory before;
  {
    Checking checking;
    Write(before, 64, a);
    Write(before, 64, b);
    Memory memory;
    CHECK_OK(Checked().EventRecord(event, a));
    Write(memory, 64, a);
  }
  Memory between;
  Write(between, 64, a);
  Checking checking;
  CHECK(Checker().size().streams == 0 && Checker().size().cells == 1 && Checker().size().events == 0);
  Write(between, 64, b);
  CHECK_OK(Checked().StreamWaitEvent(b, event, 0));
}

TEST("a stream is distinguished from the next one with its handle") {
  static unsigned long long id;
  static DriverTable next = driver;
  next.StreamGetId = [](Stream, unsigned long long* answer) {
    *answer = id;
    return Status{kSuccess};
  };
  TestStream stream;
  order::OrderChecker checker(&next);
  checker.Start();
  checker.Allocated(4096, 4096);
  const auto use = [&] { checker.Used(stream, Action::kTouch, Access::kWrite, 4096, 64); };
  const auto ids = [&] {
    std::uint64_t dropped;
    const std::vector<Report> reports = checker.TakeReports(0, 10, &dropped);
    return reports.size() == 1 ? reports[0].earlier->stream_id * 1000 + reports[0].later->stream_id : reports.size();
  };
  id = 100;
  use();
  checker.NameStream(stream, id);
  use();
  CHECK(ids() == 0);
  // Destroyed and created again by somebody else; code that takes a stream over asks the driver for
  // its id.
  id = 200;
  checker.NameStream(stream, id);
  use();
  CHECK(ids() == 100200);
  // Destroyed and created again through the table.
  checker.EndStream(checker.ForgetHandle(stream));
  id = 300;
  use();
  CHECK(ids() == 200300);
}

TEST("reports go to the thread that caused them, or to any thread if that has not identified itself") {
  Checking checking;
  TestStream a;
  TestStream b;
  Memory memory;
  double cells[2] = {41, 0};
  std::uint64_t dropped = 0;
  order::submitter = {7, cells};
  Write(memory, 64, a);
  cells[0] = 42;
  Write(memory, 64, b);
  order::submitter = {};
  CHECK(cells[1] == 1);
  CHECK(Checker().TakeReports(8, 10, &dropped).empty());
  const std::vector<Report> reports = Checker().TakeReports(7, 10, &dropped);
  CHECK(reports.size() == 1 && reports[0].earlier->number == 41 && reports[0].later->number == 42);
  order::submitter = {7, cells};
  Write(memory, 64, a);
  order::submitter = {};
  CHECK(Checker().TakeReports(8, 10, &dropped).empty());
  Checker().DisownReports(7);
  CHECK(Checker().TakeReports(8, 10, &dropped).size() == 1);
  for (int i = 0; i < 1500; ++i) Write(memory, 64, i % 2 == 0 ? b : a);
  CHECK(checking.Reports().size() == 1024);
  for (int i = 0; i < 1026; ++i) Write(memory, 64, i % 2 == 0 ? b : a);
  CHECK(Checker().TakeReports(0, 10000, &dropped).size() == 1024);
  CHECK(dropped == 2);
}

TEST("the books do not grow in a program that waits for its streams") {
  Checking checking;
  Memory memory(1 << 20);
  TestPool pool;
  for (int round = 0; round < 3000; ++round) {
    Stream stream = nullptr;
    Event event = nullptr;
    CHECK_OK(Checked().StreamCreateWithPriority(&stream, kStreamNonBlocking, 0));
    CHECK_OK(Checked().EventCreate(&event, kEventDisableTiming));
    for (int part = 0; part < 4; ++part) {
      const std::uint64_t offset = static_cast<std::uint64_t>(round * 4 + part) * 64 % (1 << 20);
      Touch(memory + offset, 32, Access::kWrite, stream);
    }
    DevicePointer pooled = 0;
    CHECK_OK(Checked().MemAllocFromPoolAsync(&pooled, 4096, pool, stream));
    CHECK_OK(Checked().MemFreeAsync(pooled, stream));
    CHECK_OK(Checked().EventRecord(event, stream));
    const bool ends_first = round % 2 == 0;
    if (ends_first) CHECK_OK(Checked().StreamDestroy(stream));
    CHECK_OK(Checked().EventSynchronize(event));
    CHECK_OK(Checked().EventDestroy(event));
    if (!ends_first) CHECK_OK(Checked().StreamDestroy(stream));
  }
  CHECK(Checker().size().streams == 0);
  // Streams whose end nobody announces.
  for (int round = 0; round < 6000; ++round) {
    TestStream stream;
    Touch(memory, 32, Access::kWrite, stream);
    CHECK_OK(Checked().StreamSynchronize(stream));
  }
  const order::OrderChecker::Size size = Checker().size();
  CHECK(size.streams < 4200 && size.events == 0 && size.cells < 4200 && size.clock_entries < 4200);
}

TEST("a read replaces those that it is ordered after") {
  Checking checking;
  TestStream a;
  TestStream b;
  Memory memory;
  for (int round = 0; round < 10; ++round) {
    Touch(memory, 64, Access::kRead, a);
    Touch(memory, 64, Access::kRead, b);
  }
  CHECK(Checker().size().reads == 2);
  Wait(b, a);
  Touch(memory, 64, Access::kRead, b);
  CHECK(Checker().size().reads == 1);
}

TEST("the books do not grow without bound if nobody ever waits") {
  Checking checking;
  Memory memory;
  for (int round = 0; round < 12000; ++round) {
    Stream stream = nullptr;
    CHECK_OK(Checked().StreamCreateWithPriority(&stream, kStreamNonBlocking, 0));
    Touch(memory, 64, Access::kRead, stream);
    CHECK_OK(Checked().StreamDestroy(stream));
  }
  const order::OrderChecker::Size size = Checker().size();
  CHECK(size.streams <= 4097 && size.cells < 10);
}

TEST("several threads may report to the checker") {
  Checking checking;
  TestPool pool;
  std::vector<std::thread> threads;
  for (int index = 0; index < 3; ++index) {
    threads.emplace_back([&] {
      OnDevice device(0);
      TestStream a;
      TestStream b;
      for (int round = 0; round < 200; ++round) {
        DevicePointer pointer = 0;
        CHECK_OK(Checked().MemAllocFromPoolAsync(&pointer, 4096, pool, a));
        Write(pointer, 4096, a);
        Wait(b, a);
        Write(pointer, 4096, b);
        CHECK_OK(Checked().MemFreeAsync(pointer, b));
        if (round % 50 == 0) CHECK_OK(Checked().StreamSynchronize(b));
        Memory plain(1 << 12);
        Write(plain, 64, PerThreadStream());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// Graphs

TEST("captured work counts where its graph is launched, and not where it was captured") {
  Checking checking;
  TestStream capturing;
  TestStream writer;
  TestStream launching;
  const DevicePointer memory = checking.Fresh();
  Write(memory, 4096, writer);
  Graph graph = nullptr;
  GraphExec exec = nullptr;
  CHECK_OK(Checked().StreamBeginCapture(capturing, kCaptureModeRelaxed));
  CHECK_OK(Checked().MemsetD8Async(memory, 1, 4096, capturing));
  order::NoteTouch(&Checked(), capturing, Access::kWrite, memory, 4096);
  CHECK_OK(Checked().StreamEndCapture(capturing, &graph));
  CHECK_OK(Checked().GraphInstantiateWithFlags(&exec, graph, 0));
  CHECK_OK(Checked().GraphDestroy(graph));
  CHECK(checking.Reports().empty());
  CHECK_OK(Checked().GraphLaunch(exec, launching));
  CHECK(checking.ReportsOne(ReportKind::kUnordered, writer, launching));
  CHECK_OK(Checked().GraphExecDestroy(exec));
  CHECK_OK(Checked().CtxSynchronize());
}

TEST("launches of one executable graph are ordered, on whatever streams; those of two are not") {
  Checking checking;
  TestStream a;
  TestStream b;
  const DevicePointer memory = checking.Fresh();
  Graph graph = nullptr;
  CHECK_OK(Checked().StreamBeginCapture(a, kCaptureModeRelaxed));
  order::NoteTouch(&Checked(), a, Access::kWrite, memory, 4096);
  CHECK_OK(Checked().StreamEndCapture(a, &graph));
  GraphExec execs[2];
  for (GraphExec& exec : execs) CHECK_OK(Checked().GraphInstantiateWithFlags(&exec, graph, 0));
  CHECK_OK(Checked().GraphLaunch(execs[0], a));
  CHECK_OK(Checked().GraphLaunch(execs[0], b));
  CHECK(checking.Reports().empty());
  CHECK_OK(Checked().GraphLaunch(execs[1], a));
  CHECK(checking.ReportsOne(ReportKind::kUnordered, b, a));
  for (GraphExec exec : execs) CHECK_OK(Checked().GraphExecDestroy(exec));
  CHECK_OK(Checked().GraphDestroy(graph));
  CHECK_OK(Checked().CtxSynchronize());
}

// Captures work on a stream and on another that joins it. Without `forward`, the fork does not wait for the
// first write; without `back`, the last write does not wait for the fork.
GraphExec CaptureFork(Stream origin, Stream fork, DevicePointer memory, bool forward, bool back) {
  Event begun = nullptr;
  Event written = nullptr;
  Event done = nullptr;
  for (Event* event : {&begun, &written, &done}) CHECK_OK(Checked().EventCreate(event, kEventDisableTiming));
  CHECK_OK(Checked().StreamBeginCapture(origin, kCaptureModeGlobal));
  CHECK_OK(Checked().EventRecord(begun, origin));
  order::NoteTouch(&Checked(), origin, Access::kWrite, memory, 1024);
  CHECK_OK(Checked().EventRecord(written, origin));
  CHECK_OK(Checked().StreamWaitEvent(fork, forward ? written : begun, 0));
  CHECK_OK(Checked().MemsetD8Async(memory, 1, 512, fork));
  CHECK_OK(Checked().EventRecord(done, fork));
  if (back) CHECK_OK(Checked().StreamWaitEvent(origin, done, 0));
  CHECK_OK(Checked().MemsetD8Async(memory + 256, 2, 512, origin));
  if (!back) CHECK_OK(Checked().StreamWaitEvent(origin, done, 0));
  Graph graph = nullptr;
  GraphExec exec = nullptr;
  CHECK_OK(Checked().StreamEndCapture(origin, &graph));
  CHECK_OK(Checked().GraphInstantiateWithFlags(&exec, graph, 0));
  CHECK_OK(Checked().GraphDestroy(graph));
  for (Event event : {begun, written, done}) CHECK_OK(Checked().EventDestroy(event));
  return exec;
}

TEST("nodes of a graph are ordered by its edges, not by the order of their capture") {
  Checking checking;
  TestStream origin;
  TestStream fork;
  TestStream launching;
  const DevicePointer memory = checking.Fresh();
  for (const bool forward : {true, false}) {
    for (const bool back : {true, false}) {
      if (!forward && !back) continue;
      const GraphExec exec = CaptureFork(origin, fork, memory, forward, back);
      CHECK(checking.Reports().empty());
      for (int launch = 0; launch < 2; ++launch) {
        CHECK_OK(Checked().GraphLaunch(exec, launching));
        if (!forward) CHECK(checking.ReportsOne(ReportKind::kUnordered, launching, fork));
        if (!back) CHECK(checking.ReportsOne(ReportKind::kUnordered, fork, launching));
        CHECK(checking.Reports().empty());
      }
      CHECK_OK(Checked().GraphExecDestroy(exec));
      CHECK_OK(Checked().CtxSynchronize());
    }
  }
}

TEST("work around a launch is ordered with all of its branches") {
  Checking checking;
  TestStream origin;
  TestStream fork;
  TestStream launching;
  TestStream other;
  const DevicePointer memory = checking.Fresh();
  const GraphExec exec = CaptureFork(origin, fork, memory, true, true);
  Write(memory, 1024, launching);
  CHECK_OK(Checked().GraphLaunch(exec, launching));
  Write(memory, 1024, launching);
  CHECK(checking.Reports().empty());
  CHECK_OK(Checked().GraphLaunch(exec, launching));
  // Of the branch alone.
  Write(memory, 128, other);
  CHECK(checking.ReportsOne(ReportKind::kUnordered, fork, other));
  CHECK_OK(Checked().GraphExecDestroy(exec));
  CHECK_OK(Checked().CtxSynchronize());
}

TEST("branches of launches are forgotten once the host knows of them") {
  Checking checking;
  TestStream origin;
  TestStream fork;
  const DevicePointer memory = checking.Fresh();
  const GraphExec exec = CaptureFork(origin, fork, memory, true, true);
  order::OrderChecker& checker = *order::CheckerOf(&Checked());
  std::size_t streams = 0;
  for (int launch = 0; launch < 100; ++launch) {
    CHECK_OK(Checked().GraphLaunch(exec, origin));
    CHECK_OK(Checked().StreamSynchronize(origin));
    if (launch == 10) streams = checker.size().streams;
  }
  CHECK(checker.size().streams == streams);
  CHECK(checker.size().events <= 4);
  CHECK_OK(Checked().GraphExecDestroy(exec));
}

TEST("memory that a graph allocates is watched where the graph is launched") {
  Checking checking;
  TestStream origin;
  TestStream fork;
  TestStream launching;
  TestStream other;
  Pool pool = nullptr;
  CHECK_OK(driver.DeviceGetDefaultMemPool(&pool, 0));
  for (const bool is_joined : {true, false}) {
    DevicePointer memory = 0;
    Event allocated = nullptr;
    Event done = nullptr;
    Event begun = nullptr;
    for (Event* event : {&allocated, &done, &begun}) CHECK_OK(Checked().EventCreate(event, kEventDisableTiming));
    CHECK_OK(Checked().StreamBeginCapture(origin, kCaptureModeRelaxed));
    CHECK_OK(Checked().EventRecord(begun, origin));
    CHECK_OK(Checked().MemAllocFromPoolAsync(&memory, 4096, pool, origin));
    CHECK_OK(Checked().EventRecord(allocated, origin));
    CHECK_OK(Checked().StreamWaitEvent(fork, is_joined ? allocated : begun, 0));
    CHECK_OK(Checked().MemsetD8Async(memory, 1, 64, fork));
    CHECK_OK(Checked().EventRecord(done, fork));
    CHECK_OK(Checked().StreamWaitEvent(origin, done, 0));
    CHECK_OK(Checked().MemFreeAsync(memory, origin));
    Graph graph = nullptr;
    GraphExec exec = nullptr;
    CHECK_OK(Checked().StreamEndCapture(origin, &graph));
    CHECK_OK(Checked().GraphInstantiateWithFlags(&exec, graph, 0));
    for (int launch = 0; launch < 2; ++launch) {
      CHECK_OK(Checked().GraphLaunch(exec, launching));
      if (!is_joined) CHECK(checking.ReportsOne(ReportKind::kUseBeforeAllocation, launching, fork));
      CHECK(checking.Reports().empty());
    }
    order::NoteTouch(&Checked(), other, Access::kRead, memory, 64);
    CHECK(checking.ReportsOne(ReportKind::kUseAfterFree, launching, other));
    CHECK_OK(Checked().GraphExecDestroy(exec));
    CHECK_OK(Checked().GraphDestroy(graph));
    for (Event event : {allocated, done, begun}) CHECK_OK(Checked().EventDestroy(event));
    CHECK_OK(Checked().CtxSynchronize());
  }
}

}  // namespace cistern::test
