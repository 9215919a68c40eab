#include "order/order_checker.h"

#include <algorithm>
#include <atomic>
#include <iterator>
#include <utility>

namespace cistern::order {
namespace {

constexpr std::size_t kFirstTidy = 4096;
// Beyond these the oldest is forgotten as if the host knew of it: something may go unreported, but
// nothing is reported wrongly.
constexpr std::size_t kMaxEndedStreams = 4096;
constexpr std::size_t kMaxGraves = 16384;
constexpr std::size_t kMaxReads = 256;
constexpr std::size_t kMaxReports = 1024;

constexpr std::uint64_t kLegacyHandle = 1;
constexpr std::uint64_t kLastDefaultHandle = 2;
constexpr std::uint64_t kBranchFlag = std::uint64_t{1} << 63;

template <typename Handle>
std::uint64_t Bits(Handle handle) {
  return reinterpret_cast<std::uintptr_t>(handle);
}

ReportKind KindOfReuse(const Operation& earlier) {
  return earlier.action == Action::kAllocate ? ReportKind::kUseBeforeAllocation : ReportKind::kReuseWithoutWait;
}

std::uint64_t ThisThread() {
  static std::atomic<std::uint64_t> last{0};
  thread_local const std::uint64_t number = ++last;
  return number;
}

}  // namespace

// The conflicts of one operation: one report for each earlier operation, however many cells they
// share.
class OrderChecker::Findings {
 public:
  void Add(ReportKind kind, std::uint64_t begin, std::uint64_t end, const OperationPointer& earlier) {
    for (Report& report : reports_) {
      if (report.kind != kind || report.earlier != earlier) continue;
      report.begin = std::min(report.begin, begin);
      report.end = std::max(report.end, end);
      return;
    }
    reports_.push_back({kind, begin, end, earlier, nullptr, 0});
  }

  void Publish(OrderChecker& checker, const OperationPointer& later) {
    for (Report& report : reports_) {
      if (submitter.cells != nullptr) submitter.cells[1] += 1;
      if (checker.reports_.size() >= kMaxReports) {
        checker.dropped_reports_ += 1;
        continue;
      }
      report.later = later;
      report.thread = later->thread;
      checker.reports_.push_back(std::move(report));
    }
  }

 private:
  std::vector<Report> reports_;
};

void OrderChecker::Start() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (is_running_) return;
  is_running_ = true;
  tidy_at_ = kFirstTidy;
}

void OrderChecker::Stop() {
  const std::lock_guard<std::mutex> lock(mutex_);
  is_running_ = false;
  streams_.clear();
  by_handle_.clear();
  by_id_.clear();
  ended_.clear();
  events_.clear();
  allocations_.clear();
  shadow_.Clear();
  graves_.clear();
  reports_.clear();
  dropped_reports_ = 0;
}

// Streams

OrderChecker::StreamBooks* OrderChecker::Find(Stream stream) {
  const std::uint64_t handle = Bits(stream);
  if (handle > kLastDefaultHandle) {
    const auto known = by_handle_.find(handle);
    if (known != by_handle_.end()) return &streams_.at(known->second);
    if ((handle & kBranchFlag) != 0) return nullptr;
  }
  if (handle <= kLastDefaultHandle) {
    const auto known = by_id_.find(IdentityOf(handle, 0));
    if (known != by_id_.end()) return &streams_.at(known->second);
  }
  // The driver would refuse the next question, and end the capture.
  int capture = kCaptureNone;
  if (next_->StreamIsCapturing(stream, &capture) == kSuccess && capture != kCaptureNone) return nullptr;
  unsigned long long id = 0;
  if (next_->StreamGetId(stream, &id) != kSuccess) return nullptr;
  const Identity identity = IdentityOf(handle, id);
  const auto known = by_id_.find(identity);
  if (known == by_id_.end()) return &Add(handle, identity, id, stream);
  StreamBooks& books = streams_.at(known->second);
  if (handle > kLastDefaultHandle) {
    by_handle_[handle] = known->second;
    books.handle = handle;
  }
  return &books;
}

// In each context the handle of a default stream stands for another stream, and for one of the
// two also in each thread.
OrderChecker::Identity OrderChecker::IdentityOf(std::uint64_t handle, std::uint64_t id) const {
  if (handle > kLastDefaultHandle) return {id, nullptr, 0};
  Context context = nullptr;
  next_->CtxGetCurrent(&context);
  const bool is_per_thread = handle == Bits(PerThreadStream());
  return {is_per_thread ? handle : kLegacyHandle, context, is_per_thread ? ThisThread() : 0};
}

OrderChecker::StreamBooks& OrderChecker::Add(std::uint64_t handle, const Identity& identity, std::uint64_t id, Stream stream) {
  const Process process = ++last_process_;
  StreamBooks& books = streams_[process];
  books.process = process;
  books.handle = handle;
  books.id = id;
  books.identity = identity;
  next_->CtxGetCurrent(&books.context);
  unsigned flags = kStreamDefault;
  next_->StreamGetFlags(stream, &flags);
  books.is_legacy = handle <= kLegacyHandle;
  books.is_blocking = !books.is_legacy && (flags & kStreamNonBlocking) == 0;
  by_id_[identity] = process;
  if (handle > kLastDefaultHandle) by_handle_[handle] = process;
  return books;
}

void OrderChecker::Forget(Process process) {
  const auto found = streams_.find(process);
  if (found == streams_.end()) return;
  const StreamBooks& books = found->second;
  const auto by_handle = by_handle_.find(books.handle);
  if (by_handle != by_handle_.end() && by_handle->second == process) by_handle_.erase(by_handle);
  const auto by_id = by_id_.find(books.identity);
  if (by_id != by_id_.end() && by_id->second == process) by_id_.erase(by_id);
  streams_.erase(found);
}

void OrderChecker::End(StreamBooks& stream) {
  if (stream.is_ended) return;
  stream.is_ended = true;
  ended_.push_back(stream.process);
  if (IsSpent(stream)) Forget(stream.process);
  while (ended_.size() > kMaxEndedStreams) {
    Forget(ended_.front());
    ended_.pop_front();
  }
}

void OrderChecker::NameStream(Stream stream, std::uint64_t id) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const std::uint64_t handle = Bits(stream);
  if (!is_running_ || handle <= kLastDefaultHandle) return;
  const auto known = by_handle_.find(handle);
  if (known == by_handle_.end() || streams_.at(known->second).id == id) return;
  // Somebody else destroyed it, and its handle was given to another stream.
  StreamBooks& before = streams_.at(known->second);
  by_handle_.erase(known);
  End(before);
}

Process OrderChecker::ForgetHandle(Stream stream) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto known = by_handle_.find(Bits(stream));
  if (known == by_handle_.end()) return kHost;
  const Process process = known->second;
  by_handle_.erase(known);
  return process;
}

void OrderChecker::EndStream(Process process) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = streams_.find(process);
  if (found != streams_.end()) End(found->second);
}

Stream OrderChecker::BeginBranch(std::uint64_t id) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!is_running_) return nullptr;
  const Process process = ++last_process_;
  StreamBooks& books = streams_[process];
  books.process = process;
  books.handle = kBranchFlag | process;
  books.id = id;
  by_handle_[books.handle] = process;
  return reinterpret_cast<Stream>(static_cast<std::uintptr_t>(books.handle));
}

void OrderChecker::EndBranch(Stream branch) { EndStream(ForgetHandle(branch)); }

void OrderChecker::Meet(Stream stream) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (is_running_) Find(stream);
}

std::uint64_t OrderChecker::KnownId(Stream stream) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto known = by_handle_.find(Bits(stream));
  return known != by_handle_.end() ? streams_.at(known->second).id : 0;
}

// Order

bool OrderChecker::IsKnownToHost(Process process, std::uint64_t count) const {
  if (process == kHost) return true;
  const auto found = streams_.find(process);
  return found == streams_.end() || count <= found->second.known_count;
}

bool OrderChecker::IsBefore(const OperationPointer& earlier, const StreamBooks* stream) const {
  if (earlier == nullptr || IsKnownToHost(earlier->process, earlier->count)) return true;
  return stream != nullptr && earlier->count <= stream->clock.Get(earlier->process);
}

void OrderChecker::Join(VectorClock& clock, const VectorClock& other) const {
  clock.Join(other);
  clock.RemoveIf([this](const VectorClock::Entry& entry) { return IsKnownToHost(entry.process, entry.count); });
}

// The rules are those of the CUDA documentation; native/software/legacy_order.h has them as waits.
void OrderChecker::JoinLegacy(const StreamBooks& stream, VectorClock& clock) const {
  if (!stream.is_legacy && !stream.is_blocking) return;
  for (const auto& [process, other] : streams_) {
    const bool precedes = stream.is_legacy ? other.is_blocking : other.is_legacy;
    if (precedes && other.context == stream.context) Join(clock, other.clock);
  }
}

// Whether forgetting it changes nothing.
bool OrderChecker::IsSpent(StreamBooks& stream) const {
  if (stream.known_count != stream.count) return false;
  Join(stream.clock, {});
  return stream.clock.entries().empty();
}

Position OrderChecker::PositionOf(Stream stream) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const StreamBooks* books = is_running_ ? Find(stream) : nullptr;
  if (books == nullptr) return {};
  Position position = books->clock;
  // Waiting for the legacy stream means waiting for the blocking ones, but not the other way round.
  if (books->is_legacy) JoinLegacy(*books, position);
  return position;
}

Position OrderChecker::PositionBeforeNext(Stream stream) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const StreamBooks* books = is_running_ ? Find(stream) : nullptr;
  if (books == nullptr) return {};
  Position position = books->clock;
  JoinLegacy(*books, position);
  return position;
}

Position OrderChecker::PositionOf(Event event) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = events_.find(Bits(event));
  return found != events_.end() ? found->second : Position();
}

Position OrderChecker::PositionOfContext() {
  const std::lock_guard<std::mutex> lock(mutex_);
  Context context = nullptr;
  if (!is_running_ || next_->CtxGetCurrent(&context) != kSuccess) return {};
  Position position;
  for (const auto& [process, stream] : streams_) {
    if (stream.context == context) Join(position, stream.clock);
  }
  return position;
}

void OrderChecker::HostReached(const Position& position) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (is_running_) Reach(position);
}

void OrderChecker::Reach(const Position& position) {
  for (const VectorClock::Entry& entry : position.entries()) {
    const auto found = streams_.find(entry.process);
    if (found == streams_.end()) continue;
    found->second.known_count = std::max(found->second.known_count, entry.count);
  }
  for (const VectorClock::Entry& entry : position.entries()) {
    const auto found = streams_.find(entry.process);
    if (found != streams_.end() && found->second.is_ended && IsSpent(found->second)) Forget(entry.process);
  }
}

void OrderChecker::Submitted(Stream stream) {
  const std::lock_guard<std::mutex> lock(mutex_);
  StreamBooks* books = is_running_ ? Find(stream) : nullptr;
  if (books != nullptr) JoinLegacy(*books, books->clock);
}

void OrderChecker::Recorded(Event event, Stream stream) {
  const std::lock_guard<std::mutex> lock(mutex_);
  StreamBooks* books = is_running_ ? Find(stream) : nullptr;
  if (books == nullptr) return;
  JoinLegacy(*books, books->clock);
  events_[Bits(event)] = books->clock;
}

void OrderChecker::Waits(Stream stream, Event event) {
  const std::lock_guard<std::mutex> lock(mutex_);
  StreamBooks* books = is_running_ ? Find(stream) : nullptr;
  const auto recorded = events_.find(Bits(event));
  if (books != nullptr && recorded != events_.end()) Join(books->clock, recorded->second);
}

VectorClock OrderChecker::TakeEvent(Event event) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = events_.find(Bits(event));
  if (found == events_.end()) return {};
  VectorClock clock = std::move(found->second);
  events_.erase(found);
  return clock;
}

void OrderChecker::PutEventBack(Event event, VectorClock clock) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (is_running_ && !clock.entries().empty()) events_[Bits(event)] = std::move(clock);
}

// Memory

OperationPointer OrderChecker::Describe(const StreamBooks* stream, Action action, Access access, std::uint64_t begin,
                                        std::uint64_t bytes) const {
  Operation operation{action, access, kHost, 0, 0, begin, bytes, submitter.thread, 0};
  if (submitter.cells != nullptr) operation.number = static_cast<std::uint64_t>(submitter.cells[0]);
  if (stream != nullptr) {
    operation.process = stream->process;
    operation.count = stream->count;
    operation.stream_id = stream->id;
  }
  return std::make_shared<const Operation>(operation);
}

OperationPointer OrderChecker::Submit(StreamBooks* stream, Action action, Access access, std::uint64_t begin, std::uint64_t bytes) {
  if (stream != nullptr) {
    JoinLegacy(*stream, stream->clock);
    stream->count += 1;
    stream->clock.Raise(stream->process, stream->count);
  }
  return Describe(stream, action, access, begin, bytes);
}

void OrderChecker::Watch(std::uint64_t begin, std::uint64_t bytes, OperationPointer allocated) {
  const std::uint64_t end = begin + bytes;
  // Somebody else freed whatever is still noted there.
  auto stale = allocations_.lower_bound(begin);
  if (stale != allocations_.begin() && std::prev(stale)->second > begin) --stale;
  while (stale != allocations_.end() && stale->first < end) {
    shadow_.Erase(stale->first, stale->second);
    stale = allocations_.erase(stale);
  }
  allocations_[begin] = end;
  Cell cell;
  if (allocated != nullptr) cell.before_allocation.push_back(allocated);
  cell.allocated = std::move(allocated);
  shadow_.Replace(begin, end, std::move(cell));
  Tidy();
}

void OrderChecker::Allocated(std::uint64_t address, std::uint64_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (is_running_) Watch(address, bytes, nullptr);
}

void OrderChecker::AllocatedOn(Stream stream, std::uint64_t address, std::uint64_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  StreamBooks* books = is_running_ ? Find(stream) : nullptr;
  if (!is_running_) return;
  OperationPointer allocated;
  if (books != nullptr) allocated = Submit(books, Action::kAllocate, Access::kNone, address, bytes);
  Watch(address, bytes, std::move(allocated));
}

void OrderChecker::Adopt(std::uint64_t address, std::uint64_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (is_running_ && allocations_.find(address) == allocations_.end()) Watch(address, bytes, nullptr);
}

FreeInProgress OrderChecker::BeginFree(std::uint64_t address) {
  const std::lock_guard<std::mutex> lock(mutex_);
  FreeInProgress freed;
  const auto found = allocations_.find(address);
  if (found == allocations_.end()) return freed;
  freed.begin = address;
  freed.end = found->second;
  freed.cells = shadow_.Take(freed.begin, freed.end);
  allocations_.erase(found);
  return freed;
}

void OrderChecker::PutBack(FreeInProgress freed) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!is_running_ || freed.end == 0) return;
  allocations_[freed.begin] = freed.end;
  shadow_.PutBack(std::move(freed.cells));
}

void OrderChecker::Freed(FreeInProgress freed) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (is_running_) FinishFree(nullptr, freed);
}

void OrderChecker::FreedOn(Stream stream, FreeInProgress freed) {
  const std::lock_guard<std::mutex> lock(mutex_);
  StreamBooks* books = is_running_ ? Find(stream) : nullptr;
  if (books != nullptr) FinishFree(books, freed);
}

void OrderChecker::FinishFree(StreamBooks* stream, const FreeInProgress& freed) {
  if (freed.end == 0) return;
  const OperationPointer free = Submit(stream, Action::kFree, Access::kNone, freed.begin, freed.end - freed.begin);
  Findings findings;
  for (const auto& [begin, cell] : freed.cells) CheckFree(stream, begin, cell, free, false, findings);
  findings.Publish(*this, free);
  Bury(freed.begin, freed.end, free);
  Tidy();
}

// The latest operation that is not ordered before is sufficient: earlier ones are ordered before
// it, or were reported.
void OrderChecker::CheckFree(const StreamBooks* stream, std::uint64_t begin, const Cell& cell, const OperationPointer& free,
                             bool is_declared, Findings& findings) const {
  if (cell.freed != nullptr) {
    if (!IsBefore(cell.freed, stream)) findings.Add(ReportKind::kFreedWhileInUse, begin, cell.end, cell.freed);
    return;
  }
  bool is_in_use = false;
  for (const OperationPointer& read : cell.reads) {
    if (IsBefore(read, stream)) continue;
    findings.Add(ReportKind::kFreedWhileInUse, begin, cell.end, read);
    is_in_use = true;
  }
  if (is_in_use) return;
  if (!IsBefore(cell.written, stream)) {
    findings.Add(ReportKind::kFreedWhileInUse, begin, cell.end, cell.written);
  } else if (is_declared && cell.allocated != nullptr && cell.allocated->begin == free->begin && cell.allocated->bytes == free->bytes) {
    if (!IsBefore(cell.allocated, stream)) findings.Add(ReportKind::kUseBeforeAllocation, begin, cell.end, cell.allocated);
  } else {
    // What was declared allocated may have been freed since, in the order of an event. A block of the driver's has its own
    // allocation here until a part of it, or all of it, is declared allocated.
    for (const OperationPointer& each : cell.before_allocation) {
      if (!IsBefore(each, stream)) findings.Add(KindOfReuse(*each), begin, cell.end, each);
    }
  }
}

void OrderChecker::Bury(std::uint64_t begin, std::uint64_t end, const OperationPointer& freed) {
  // Another thread may have got the memory since.
  auto next = allocations_.lower_bound(begin);
  if (next != allocations_.begin() && std::prev(next)->second > begin) --next;
  if (next != allocations_.end() && next->first < end) return;
  Cell grave;
  grave.is_grave = true;
  grave.freed = freed;
  shadow_.Replace(begin, end, std::move(grave));
  graves_.emplace_back(begin, end);
  if (graves_.size() <= kMaxGraves) return;
  const auto [oldest_begin, oldest_end] = graves_.front();
  graves_.pop_front();
  std::vector<std::pair<std::uint64_t, std::uint64_t>> graves;
  shadow_.ForEach(oldest_begin, oldest_end, [&graves](std::uint64_t at, const Cell& cell) {
    if (cell.is_grave) graves.emplace_back(at, cell.end);
  });
  for (const auto& [at, grave_end] : graves) shadow_.Erase(at, grave_end);
}

void OrderChecker::Copied(Stream stream, std::uint64_t destination, std::uint64_t source, std::uint64_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  StreamBooks* books = is_running_ && bytes != 0 ? Find(stream) : nullptr;
  if (books == nullptr) return;
  const OperationPointer read = Submit(books, Action::kCopy, Access::kRead, source, bytes);
  Use(*books, read);
  Use(*books, Describe(books, Action::kCopy, Access::kWrite, destination, bytes));
  Tidy();
}

void OrderChecker::Used(Stream stream, Action action, Access access, std::uint64_t address, std::uint64_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  StreamBooks* books = is_running_ && bytes != 0 ? Find(stream) : nullptr;
  if (books == nullptr) return;
  Use(*books, Submit(books, action, access, address, bytes));
  Tidy();
}

void OrderChecker::Use(const StreamBooks& stream, const OperationPointer& use) {
  const bool is_write = use->access == Access::kWrite;
  Findings findings;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> graves;
  shadow_.ForEach(use->begin, use->begin + use->bytes, [&](std::uint64_t begin, Cell& cell) {
    if (cell.is_grave) {
      // The driver accepted the address as memory, so after a plain free it belongs to somebody
      // else by now.
      const bool is_live_again = use->action != Action::kTouch && cell.freed->process == kHost;
      if (!is_live_again) findings.Add(ReportKind::kUseAfterFree, begin, cell.end, cell.freed);
      graves.emplace_back(begin, cell.end);
      return;
    }
    if (cell.freed != nullptr) {
      findings.Add(ReportKind::kUseAfterFree, begin, cell.end, cell.freed);
      cell.freed = nullptr;
      cell.allocated = nullptr;
    }
    cell.before_allocation.clear();
    // As in CheckFree, the latest is sufficient.
    bool is_in_conflict = false;
    if (is_write) {
      for (const OperationPointer& read : cell.reads) {
        if (IsBefore(read, &stream)) continue;
        findings.Add(ReportKind::kUnordered, begin, cell.end, read);
        is_in_conflict = true;
      }
    }
    if (!is_in_conflict && !IsBefore(cell.written, &stream)) {
      findings.Add(ReportKind::kUnordered, begin, cell.end, cell.written);
      is_in_conflict = true;
    }
    if (!is_in_conflict && !IsBefore(cell.allocated, &stream)) {
      findings.Add(ReportKind::kUseBeforeAllocation, begin, cell.end, cell.allocated);
      is_in_conflict = true;
    }
    if (is_write) {
      cell.written = use;
      cell.reads.clear();
    } else {
      cell.reads.erase(
          std::remove_if(cell.reads.begin(), cell.reads.end(), [&](const OperationPointer& read) { return IsBefore(read, &stream); }),
          cell.reads.end());
      if (cell.reads.size() >= kMaxReads) cell.reads.erase(cell.reads.begin());
      cell.reads.push_back(use);
    }
    // One fault, one report: later operations are compared with this use instead.
    if (is_in_conflict && !is_write) cell.written = nullptr;
    if (is_in_conflict) cell.allocated = nullptr;
  });
  for (const auto& [begin, end] : graves) shadow_.Erase(begin, end);
  findings.Publish(*this, use);
}

void OrderChecker::DeclareAllocation(Stream stream, std::uint64_t address, std::uint64_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  StreamBooks* books = is_running_ && bytes != 0 ? Find(stream) : nullptr;
  if (books == nullptr) return;
  const OperationPointer allocation = Submit(books, Action::kAllocate, Access::kNone, address, bytes);
  Findings findings;
  shadow_.ForEach(address, address + bytes, [&](std::uint64_t begin, Cell& cell) {
    if (cell.is_grave) return;
    std::vector<OperationPointer> before = cell.Latest();
    bool is_in_conflict = false;
    for (const OperationPointer& each : before) {
      // A write before an unordered read is ordered before that read, or was reported.
      if (IsBefore(each, books) || (is_in_conflict && each == cell.written)) continue;
      findings.Add(KindOfReuse(*each), begin, cell.end, each);
      is_in_conflict = true;
    }
    // One fault, one report.
    if (is_in_conflict) before.clear();
    cell.before_allocation = std::move(before);
    cell.allocated = allocation;
    cell.freed = nullptr;
    cell.written = nullptr;
    cell.reads.clear();
  });
  findings.Publish(*this, allocation);
  Tidy();
}

void OrderChecker::DeclareFree(Stream stream, std::uint64_t address, std::uint64_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  StreamBooks* books = is_running_ && bytes != 0 ? Find(stream) : nullptr;
  if (books == nullptr) return;
  const OperationPointer free = Submit(books, Action::kFree, Access::kNone, address, bytes);
  Findings findings;
  shadow_.ForEach(address, address + bytes, [&](std::uint64_t begin, Cell& cell) {
    if (cell.is_grave) return;
    CheckFree(books, begin, cell, free, true, findings);
    cell.allocated = nullptr;
    cell.before_allocation.clear();
    cell.freed = free;
    cell.written = nullptr;
    cell.reads.clear();
  });
  findings.Publish(*this, free);
  Tidy();
}

// Drops what the host knows, whenever the books have doubled since the last time.
void OrderChecker::Tidy() {
  if (shadow_.size() + streams_.size() <= tidy_at_) return;
  const auto is_known = [this](const OperationPointer& operation) { return IsBefore(operation, nullptr); };
  shadow_.ForEach(0, ~std::uint64_t{0}, [&](std::uint64_t, Cell& cell) {
    if (is_known(cell.allocated)) cell.allocated = nullptr;
    if (is_known(cell.written)) cell.written = nullptr;
    for (std::vector<OperationPointer>* operations : {&cell.before_allocation, &cell.reads}) {
      operations->erase(std::remove_if(operations->begin(), operations->end(), is_known), operations->end());
    }
  });
  std::vector<Process> known;
  for (auto& [process, stream] : streams_) {
    if (IsSpent(stream)) known.push_back(process);
  }
  for (const Process process : known) Forget(process);
  tidy_at_ = std::max(kFirstTidy, 2 * (shadow_.size() + streams_.size()));
}

// Reports

std::vector<Report> OrderChecker::TakeReports(std::uint64_t thread, std::size_t limit, std::uint64_t* dropped) {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::vector<Report> taken;
  for (auto report = reports_.begin(); report != reports_.end() && taken.size() < limit;) {
    if (report->thread != thread && report->thread != 0) {
      ++report;
      continue;
    }
    taken.push_back(std::move(*report));
    report = reports_.erase(report);
  }
  *dropped = std::exchange(dropped_reports_, 0);
  return taken;
}

void OrderChecker::DisownReports(std::uint64_t thread) {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (Report& report : reports_) {
    if (report.thread == thread) report.thread = 0;
  }
}

OrderChecker::Size OrderChecker::size() {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::size_t entries = 0;
  for (const auto& [process, stream] : streams_) entries += stream.clock.entries().size();
  for (const auto& [event, clock] : events_) entries += clock.entries().size();
  std::size_t reads = 0;
  shadow_.ForEach(0, ~std::uint64_t{0}, [&reads](std::uint64_t, const Cell& cell) { reads += cell.reads.size(); });
  return {streams_.size(), shadow_.size(), reads, events_.size(), entries};
}

}  // namespace cistern::order
