// Compares every use of memory with the uses before it: is it ordered after those that it conflicts
// with?
//
// Each stream is a process with a vector clock, which says how many operations of each other stream
// come before its next submission. All host threads together are one more process, which comes
// before everything that is submitted. So a use (stream, count) comes before a new operation on
// stream s if and only if
//
//     count <= known to the host of `stream`   or   count <= clock of s for `stream`
//
// Edges: an event takes its stream's clock at the recording, and a wait joins that into the waiting
// stream's clock. At each submission the clock of the legacy default stream is joined with those of
// the blocking streams, and theirs with its. Every call that tells the host that a stream has
// reached a place (a synchronization, a successful query, a plain free) raises the host's knowledge
// to the clock of that place. Clock entries and uses that the host knows of carry no information
// and are dropped, so the books do not grow with the length of a program that ever waits for its
// streams.
//
// It is deliberately one step short of exact: the host is one process, so threads that do not
// synchronize still count as ordered. Nothing that is in order is reported, and a missing wait
// between streams is reported whichever threads use them.
//
// It knows no driver's internals: CheckedTable (checked_table.h) reports which calls were made and
// succeeded.
#ifndef CISTERN_ORDER_ORDER_CHECKER_H_
#define CISTERN_ORDER_ORDER_CHECKER_H_

#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "cuda/driver_table.h"
#include "order/report.h"
#include "order/shadow.h"
#include "order/vector_clock.h"

namespace cistern::order {

// A place in the order of streams, which the host may learn of.
using Position = VectorClock;

// What is removed from the books while the driver frees it.
struct FreeInProgress {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;  // zero: not a watched allocation
  Shadow::Cells cells;
};

// Safe to call from any thread. Does nothing while it is stopped. The context of a default stream
// must be current.
class OrderChecker {
 public:
  // Asks this table for the identity of streams.
  explicit OrderChecker(const DriverTable* next) : next_(next) {}
  OrderChecker(const OrderChecker&) = delete;
  OrderChecker& operator=(const OrderChecker&) = delete;

  // Everything before Start counts as ordered before everything after. Does nothing if it is
  // running.
  void Start();
  void Stop();

  // The position at which everything has run that a wait for this would wait for: for a stream, an
  // event, the current context.
  Position PositionOf(Stream stream);
  Position PositionOf(Event event);
  Position PositionOfContext();
  // The position at which everything has run that comes before the stream's next submission.
  Position PositionBeforeNext(Stream stream);
  void HostReached(const Position& position);

  // The driver says which stream a handle stands for now.
  void NameStream(Stream stream, std::uint64_t id);
  // Call before a stream is destroyed, since another one may get its handle immediately.
  Process ForgetHandle(Stream stream);
  void EndStream(Process process);

  // A branch of a graph that is launched: a stream of its own, which begins without order and stands for a
  // captured one, whose id reports show. Null while nothing is checked. A handle like this is no driver's.
  Stream BeginBranch(std::uint64_t id);
  void EndBranch(Stream branch);
  // Learns a stream's id, since captured ones cannot be asked.
  void Meet(Stream stream);
  // 0 if it is not known.
  std::uint64_t KnownId(Stream stream);

  // Work that uses no memory.
  void Submitted(Stream stream);
  void Recorded(Event event, Stream stream);
  void Waits(Stream stream, Event event);
  // Call before an event is destroyed, for the same reason.
  VectorClock TakeEvent(Event event);
  void PutEventBack(Event event, VectorClock clock);

  void Allocated(std::uint64_t address, std::uint64_t bytes);
  void AllocatedOn(Stream stream, std::uint64_t address, std::uint64_t bytes);
  // Existing memory: watched from here on, unless it is already.
  void Adopt(std::uint64_t address, std::uint64_t bytes);
  // Call before memory is freed, since another thread may get it immediately. Ends with Freed or,
  // if the driver refuses, with PutBack.
  FreeInProgress BeginFree(std::uint64_t address);
  void Freed(FreeInProgress freed);
  void FreedOn(Stream stream, FreeInProgress freed);
  void PutBack(FreeInProgress freed);

  void Copied(Stream stream, std::uint64_t destination, std::uint64_t source, std::uint64_t bytes);
  void Used(Stream stream, Action action, Access access, std::uint64_t address, std::uint64_t bytes);

  // Memory that the caller cuts out of an allocation. From here on it belongs to the stream until
  // it is declared free.
  void DeclareAllocation(Stream stream, std::uint64_t address, std::uint64_t bytes);
  void DeclareFree(Stream stream, std::uint64_t address, std::uint64_t bytes);

  // Takes up to `limit` reports caused by a thread, or by threads that have not identified
  // themselves. `dropped` is the number of reports since the last call that there was no room for.
  std::vector<Report> TakeReports(std::uint64_t thread, std::size_t limit, std::uint64_t* dropped);
  // Leaves the reports of an ending thread to the others.
  void DisownReports(std::uint64_t thread);

  // How much it remembers, for tests.
  struct Size {
    std::size_t streams, cells, reads, events, clock_entries;
  };
  Size size();

 private:
  // Distinguishes streams: by the driver's id and, since default streams may have the same id in
  // each context and thread, by these as well.
  using Identity = std::tuple<std::uint64_t, Context, std::uint64_t>;
  struct StreamBooks {
    Process process = 0;
    std::uint64_t handle = 0;
    std::uint64_t id = 0;
    Identity identity;
    Context context = nullptr;
    bool is_legacy = false;
    bool is_blocking = false;
    bool is_ended = false;
    std::uint64_t count = 0;        // operations submitted
    std::uint64_t known_count = 0;  // of these, the number that the host knows to have run
    VectorClock clock;              // without what the host knows
  };
  class Findings;

  StreamBooks* Find(Stream stream);
  Identity IdentityOf(std::uint64_t handle, std::uint64_t id) const;
  StreamBooks& Add(std::uint64_t handle, const Identity& identity, std::uint64_t id, Stream stream);
  void Forget(Process process);
  void End(StreamBooks& stream);
  bool IsKnownToHost(Process process, std::uint64_t count) const;
  // `stream` is null for the host.
  bool IsBefore(const OperationPointer& earlier, const StreamBooks* stream) const;
  void Join(VectorClock& clock, const VectorClock& other) const;
  // Joins what the legacy default stream's rules put before the next operation of a stream.
  void JoinLegacy(const StreamBooks& stream, VectorClock& clock) const;
  bool IsSpent(StreamBooks& stream) const;
  void Reach(const Position& position);

  OperationPointer Submit(StreamBooks* stream, Action action, Access access, std::uint64_t begin, std::uint64_t bytes);
  OperationPointer Describe(const StreamBooks* stream, Action action, Access access, std::uint64_t begin, std::uint64_t bytes) const;
  void Use(const StreamBooks& stream, const OperationPointer& use);
  void Watch(std::uint64_t begin, std::uint64_t bytes, OperationPointer allocated);
  void FinishFree(StreamBooks* stream, const FreeInProgress& freed);
  void CheckFree(const StreamBooks* stream, std::uint64_t begin, const Cell& cell, const OperationPointer& free, bool is_declared,
                 Findings& findings) const;
  void Bury(std::uint64_t begin, std::uint64_t end, const OperationPointer& freed);
  void Tidy();

  const DriverTable* const next_;
  std::mutex mutex_;
  bool is_running_ = false;
  Process last_process_ = kHost;
  std::unordered_map<Process, StreamBooks> streams_;
  std::unordered_map<std::uint64_t, Process> by_handle_;
  std::map<Identity, Process> by_id_;
  std::deque<Process> ended_;  // oldest first; forgotten ones may be among them
  std::unordered_map<std::uint64_t, VectorClock> events_;
  std::map<std::uint64_t, std::uint64_t> allocations_;  // beginning and end
  Shadow shadow_;
  std::deque<std::pair<std::uint64_t, std::uint64_t>> graves_;  // oldest first; reused ones may be among them
  std::size_t tidy_at_ = 0;
  std::deque<Report> reports_;
  std::uint64_t dropped_reports_ = 0;
};

}  // namespace cistern::order

#endif  // CISTERN_ORDER_ORDER_CHECKER_H_
