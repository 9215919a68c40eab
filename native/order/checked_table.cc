#include "order/checked_table.h"

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace cistern::order {
namespace {

// What a capture consists of, to be noted down at each launch: the edges of a graph are the order of each
// captured stream, and that of events.
struct CapturedWork {
  enum class Kind { kWork, kRecord, kWait, kGraph };
  struct Step {
    Kind kind;
    Stream stream;
    std::function<void(Stream)> note;  // of work, on the stream that stands for the captured one
    std::size_t recording = 0;         // the number of the one that this is, or that this waits for
    std::shared_ptr<const CapturedWork> graph = nullptr;
  };
  std::vector<Step> steps;
  std::map<Event, std::size_t> latest;  // recordings
  std::size_t recordings = 0;
  Stream origin = nullptr;
  std::map<Stream, std::uint64_t> ids;  // of the streams that joined
};
using LaunchNotes = std::shared_ptr<CapturedWork>;

// What is known of captures and graphs.
struct GraphBooks {
  std::mutex mutex;
  std::map<std::uint64_t, LaunchNotes> captures;  // by the driver's id
  std::map<Graph, LaunchNotes> graphs;
  std::map<GraphExec, LaunchNotes> execs;
  std::map<GraphNode, LaunchNotes> children;  // graphs that are nodes, until a captured stream goes on from them
};

// The table holds plain functions, so each table in front of another needs functions of its own.
struct Slot {
  const DriverTable* next = nullptr;
  OrderChecker* checker = nullptr;
  GraphBooks* graphs = nullptr;
  DriverTable table = {};
};
Slot slots[kMaxTables];
std::atomic<int> used_slots{0};
std::mutex slots_mutex;
thread_local std::vector<Position> positions_of_launch;

std::uint64_t AddressOf(const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer); }

template <int index>
struct Functions {
  static const DriverTable& Next() { return *slots[index].next; }
  static OrderChecker& Checker() { return *slots[index].checker; }

  template <typename Body>
  static void Keep(Body&& body) {
    KeepBooks(Checker(), body);
  }

  // A call that, if it succeeds, tells the host about everything that was submitted to a place when
  // the call was made.
  template <typename Locate, typename Call>
  static Status Reach(Locate&& locate, Call&& call) {
    Position position;
    Keep([&] { position = locate(); });
    const Status status = call();
    if (status == kSuccess) Keep([&] { Checker().HostReached(position); });
    return status;
  }

  // A call that is noted down afterwards if it succeeds.
  template <typename Note>
  static Status Noted(Status status, Note&& note) {
    if (status == kSuccess) Keep(note);
    return status;
  }

  static GraphBooks& Graphs() { return *slots[index].graphs; }

  // The id of the stream's capture; 0 if it is not captured.
  static std::uint64_t CaptureOf(Stream stream) {
    int status = kCaptureNone;
    std::uint64_t id = 0;
    if (Next().StreamGetCaptureInfo(stream, &status, &id, nullptr, nullptr, nullptr, nullptr) != kSuccess) return 0;
    return status == kCaptureActive ? id : 0;
  }

  // A call that is noted down afterwards if it succeeds: now, or, on a captured stream, in its capture.
  template <typename Note, typename Capture>
  static Status NotedOrCaptured(Status status, Stream stream, Note&& note, Capture&& add) {
    if (status != kSuccess) return status;
    const std::uint64_t capture = CaptureOf(stream);
    Keep([&] {
      if (capture == 0) return note(stream);
      const std::lock_guard<std::mutex> lock(Graphs().mutex);
      LaunchNotes& notes = Graphs().captures[capture];
      if (notes == nullptr) notes = std::make_shared<CapturedWork>();
      add(*notes);
    });
    return status;
  }

  // Work that is noted down now or at each launch.
  template <typename Note>
  static Status Queued(Status status, Stream stream, Note&& note) {
    return NotedOrCaptured(status, stream, note, [&](CapturedWork& work) {
      work.steps.push_back({CapturedWork::Kind::kWork, stream, note});
    });
  }

  static Status StreamEndCapture(Stream stream, Graph* graph) {
    const std::uint64_t capture = CaptureOf(stream);
    const Status status = Next().StreamEndCapture(stream, graph);
    Keep([&] {
      const std::lock_guard<std::mutex> lock(Graphs().mutex);
      const auto notes = Graphs().captures.find(capture);
      if (notes == Graphs().captures.end()) return;
      if (status == kSuccess) {
        notes->second->origin = stream;
        Graphs().graphs[*graph] = std::move(notes->second);
      }
      Graphs().captures.erase(notes);
    });
    return status;
  }

  // A node that is a graph counts as captured on the stream that goes on from it.
  static Status GraphAddChildGraphNode(GraphNode* node, Graph graph, const GraphNode* dependencies, std::size_t count, Graph child) {
    const std::lock_guard<std::mutex> lock(Graphs().mutex);
    return Noted(Next().GraphAddChildGraphNode(node, graph, dependencies, count, child), [=] {
      const auto notes = Graphs().graphs.find(child);
      if (notes != Graphs().graphs.end()) Graphs().children[*node] = notes->second;
    });
  }

  static Status StreamUpdateCaptureDependencies(Stream stream, GraphNode* dependencies, std::size_t count, unsigned flags) {
    const Status status = Next().StreamUpdateCaptureDependencies(stream, dependencies, count, flags);
    return NotedOrCaptured(
        status, stream, [](Stream) {},
        [=](CapturedWork& work) {
          for (std::size_t i = 0; i < count; ++i) {
            const auto child = Graphs().children.find(dependencies[i]);
            if (child == Graphs().children.end()) continue;
            work.steps.push_back({CapturedWork::Kind::kGraph, stream, nullptr, 0, std::move(child->second)});
            Graphs().children.erase(child);
          }
        });
  }

  // What a launch calls the events of its capture.
  static Event EventOf(std::size_t recording) {
    return reinterpret_cast<Event>(static_cast<std::uintptr_t>(std::uint64_t{1} << 63 | (recording + 1)));
  }

  // Each stream that joined runs beside the one of the launch, which stands for the origin. `recordings` have
  // been numbered in the launch so far.
  static void NoteLaunch(const CapturedWork& work, Stream stream, std::size_t* recordings) {
    std::map<Stream, Stream> branches;
    const std::size_t first = *recordings;
    *recordings += work.recordings + 1;
    for (const CapturedWork::Step& step : work.steps) {
      Stream on = stream;
      if (step.stream != work.origin) {
        Stream& branch = branches[step.stream];
        const auto id = work.ids.find(step.stream);
        if (branch == nullptr) branch = Checker().BeginBranch(id != work.ids.end() ? id->second : 0);
        if (branch == nullptr) break;
        on = branch;
      }
      if (step.kind == CapturedWork::Kind::kWork) step.note(on);
      if (step.kind == CapturedWork::Kind::kRecord) Checker().Recorded(EventOf(first + step.recording), on);
      if (step.kind == CapturedWork::Kind::kWait) Checker().Waits(on, EventOf(first + step.recording));
      if (step.kind == CapturedWork::Kind::kGraph) NoteLaunch(*step.graph, on, recordings);
    }
    // All of a graph comes before what follows it, also what has not joined: NVIDIA's driver does not insist on it for
    // nodes that were added to the graph itself.
    const Event end = EventOf(first + work.recordings);
    for (const auto& [joined, branch] : branches) {
      Checker().Recorded(end, branch);
      Checker().Waits(stream, end);
      Checker().EndBranch(branch);
    }
    for (std::size_t recording = 0; recording <= work.recordings; ++recording) Checker().TakeEvent(EventOf(first + recording));
  }

  static Status GraphDestroy(Graph graph) {
    const std::lock_guard<std::mutex> lock(Graphs().mutex);
    const Status status = Next().GraphDestroy(graph);
    if (status == kSuccess) Graphs().graphs.erase(graph);
    return status;
  }

  // The executable graph now does what the graph does. The mutex must be held.
  static void TakeOver(GraphExec exec, Graph graph) {
    const auto notes = Graphs().graphs.find(graph);
    if (notes == Graphs().graphs.end()) {
      Graphs().execs.erase(exec);
    } else {
      Graphs().execs[exec] = notes->second;
    }
  }

  static Status GraphInstantiateWithFlags(GraphExec* exec, Graph graph, unsigned long long flags) {
    const std::lock_guard<std::mutex> lock(Graphs().mutex);
    return Noted(Next().GraphInstantiateWithFlags(exec, graph, flags), [=] { TakeOver(*exec, graph); });
  }

  static Status GraphExecUpdate(GraphExec exec, Graph graph, GraphUpdateResult* result) {
    const std::lock_guard<std::mutex> lock(Graphs().mutex);
    return Noted(Next().GraphExecUpdate(exec, graph, result), [=] { TakeOver(exec, graph); });
  }

  // A launch comes after the last one of the same executable graph: as if that had recorded an event.
  static Event LaunchEvent(GraphExec exec) { return reinterpret_cast<Event>(exec); }

  static Status GraphExecDestroy(GraphExec exec) {
    const std::lock_guard<std::mutex> lock(Graphs().mutex);
    const Status status = Next().GraphExecDestroy(exec);
    if (status != kSuccess) return status;
    Graphs().execs.erase(exec);
    Keep([=] { Checker().TakeEvent(LaunchEvent(exec)); });
    return status;
  }

  static Status GraphLaunch(GraphExec exec, Stream stream) {
    const std::lock_guard<std::mutex> lock(Graphs().mutex);
    positions_of_launch.clear();
    return Noted(Next().GraphLaunch(exec, stream), [=] {
      Checker().Waits(stream, LaunchEvent(exec));
      Checker().Submitted(stream);
      const auto notes = Graphs().execs.find(exec);
      std::size_t recordings = 0;
      if (notes != Graphs().execs.end() && notes->second != nullptr) NoteLaunch(*notes->second, stream, &recordings);
      Checker().Recorded(LaunchEvent(exec), stream);
    });
  }

  // Noted down before the call, since another thread may get the same memory as soon as it is free.
  template <typename Call, typename Note>
  static Status Free(std::uint64_t address, Call&& call, Note&& note) {
    FreeInProgress freed;
    Keep([&] { freed = Checker().BeginFree(address); });
    const Status status = call();
    Keep([&] {
      if (status == kSuccess) {
        note(std::move(freed));
      } else {
        Checker().PutBack(std::move(freed));
      }
    });
    return status;
  }

  static Status CtxSynchronize() {
    return Reach([] { return Checker().PositionOfContext(); }, [] { return Next().CtxSynchronize(); });
  }

  static Status StreamDestroy(Stream stream) {
    Process process = kHost;
    Keep([&] { process = Checker().ForgetHandle(stream); });
    return Noted(Next().StreamDestroy(stream), [&] { Checker().EndStream(process); });
  }

  static Status StreamSynchronize(Stream stream) {
    return Reach([=] { return Checker().PositionOf(stream); }, [=] { return Next().StreamSynchronize(stream); });
  }

  static Status StreamQuery(Stream stream) {
    return Reach([=] { return Checker().PositionOf(stream); }, [=] { return Next().StreamQuery(stream); });
  }

  static Status StreamGetId(Stream stream, unsigned long long* id) {
    return Noted(Next().StreamGetId(stream, id), [=] { Checker().NameStream(stream, *id); });
  }

  static Status StreamWaitEvent(Stream stream, Event event, unsigned flags) {
    Keep([&] {
      if (CaptureOf(stream) == 0) Checker().Meet(stream);
    });
    return NotedOrCaptured(
        Next().StreamWaitEvent(stream, event, flags), stream, [=](Stream) { Checker().Waits(stream, event); },
        [=](CapturedWork& work) {
          const auto recorded = work.latest.find(event);
          if (recorded == work.latest.end()) return;
          work.ids.emplace(stream, Checker().KnownId(stream));
          work.steps.push_back({CapturedWork::Kind::kWait, stream, nullptr, recorded->second});
        });
  }

  static Status EventDestroy(Event event) {
    VectorClock clock;
    Keep([&] { clock = Checker().TakeEvent(event); });
    const Status status = Next().EventDestroy(event);
    if (status != kSuccess) Keep([&] { Checker().PutEventBack(event, std::move(clock)); });
    return status;
  }

  static Status EventRecord(Event event, Stream stream) {
    return NotedOrCaptured(
        Next().EventRecord(event, stream), stream, [=](Stream) { Checker().Recorded(event, stream); },
        [=](CapturedWork& work) {
          work.latest[event] = work.recordings;
          work.steps.push_back({CapturedWork::Kind::kRecord, stream, nullptr, work.recordings});
          work.recordings += 1;
        });
  }

  static Status EventQuery(Event event) {
    return Reach([=] { return Checker().PositionOf(event); }, [=] { return Next().EventQuery(event); });
  }

  static Status EventSynchronize(Event event) {
    return Reach([=] { return Checker().PositionOf(event); }, [=] { return Next().EventSynchronize(event); });
  }

  static Status LaunchHostFunc(Stream stream, HostFunction function, void* user_data) {
    const auto note = [](Stream on) { Checker().Submitted(on); };
    return NotedOrCaptured(Next().LaunchHostFunc(stream, function, user_data), stream, note, [=](CapturedWork& work) {
      work.steps.push_back({CapturedWork::Kind::kWork, stream, [note](Stream on) {
                              note(on);
                              positions_of_launch.push_back(Checker().PositionBeforeNext(on));
                            }});
    });
  }

  static Status StreamWaitValue32(Stream stream, DevicePointer address, std::uint32_t value, unsigned flags) {
    return Noted(Next().StreamWaitValue32(stream, address, value, flags), [=] { Checker().Submitted(stream); });
  }

  static Status MemAlloc(DevicePointer* pointer, std::size_t bytes) {
    return Noted(Next().MemAlloc(pointer, bytes), [=] { Checker().Allocated(*pointer, bytes); });
  }

  static Status MemAllocManaged(DevicePointer* pointer, std::size_t bytes, unsigned flags) {
    return Noted(Next().MemAllocManaged(pointer, bytes, flags), [=] { Checker().Allocated(*pointer, bytes); });
  }

  static Status MemHostAlloc(void** pointer, std::size_t bytes, unsigned flags) {
    return Noted(Next().MemHostAlloc(pointer, bytes, flags), [=] { Checker().Allocated(AddressOf(*pointer), bytes); });
  }

  // Neither a plain free nor an unmap is sure to wait for the work that uses the memory, so it tells
  // the host nothing.
  template <typename Call>
  static Status PlainFree(std::uint64_t address, Call&& free) {
    return Free(address, free, [](FreeInProgress freed) { Checker().Freed(std::move(freed)); });
  }

  static Status MemFree(DevicePointer pointer) {
    return PlainFree(pointer, [=] { return Next().MemFree(pointer); });
  }

  static Status MemFreeHost(void* pointer) {
    return PlainFree(AddressOf(pointer), [=] { return Next().MemFreeHost(pointer); });
  }

  static Status MemHostRegister(void* pointer, std::size_t bytes, unsigned flags) {
    return Noted(Next().MemHostRegister(pointer, bytes, flags), [=] { Checker().Allocated(AddressOf(pointer), bytes); });
  }

  static Status MemHostUnregister(void* pointer) {
    return PlainFree(AddressOf(pointer), [=] { return Next().MemHostUnregister(pointer); });
  }

  static Status MemAllocFromPoolAsync(DevicePointer* pointer, std::size_t bytes, Pool pool, Stream stream) {
    const Status status = Next().MemAllocFromPoolAsync(pointer, bytes, pool, stream);
    if (status != kSuccess) return status;
    return Queued(status, stream, [address = *pointer, bytes](Stream on) { Checker().AllocatedOn(on, address, bytes); });
  }

  static Status MemFreeAsync(DevicePointer pointer, Stream stream) {
    if (CaptureOf(stream) != 0) {
      return Queued(Next().MemFreeAsync(pointer, stream), stream, [=](Stream on) { Checker().FreedOn(on, Checker().BeginFree(pointer)); });
    }
    return Free(
        pointer, [=] { return Next().MemFreeAsync(pointer, stream); },
        [=](FreeInProgress freed) { Checker().FreedOn(stream, std::move(freed)); });
  }

  // Memory counts as allocated when it is mapped.
  static Status MemMap(DevicePointer address, std::size_t bytes, std::size_t offset, MemoryHandle memory, unsigned long long flags) {
    return Noted(Next().MemMap(address, bytes, offset, memory, flags), [=] { Checker().Allocated(address, bytes); });
  }

  static Status MemUnmap(DevicePointer address, std::size_t bytes) {
    return PlainFree(address, [=] { return Next().MemUnmap(address, bytes); });
  }

  static Status MemcpyAsync(DevicePointer destination, DevicePointer source, std::size_t bytes, Stream stream) {
    return Queued(Next().MemcpyAsync(destination, source, bytes, stream), stream,
                  [=](Stream on) { Checker().Copied(on, destination, source, bytes); });
  }

  static Status MemcpyPeerAsync(DevicePointer destination, Context destination_context, DevicePointer source, Context source_context,
                                std::size_t bytes, Stream stream) {
    return Noted(Next().MemcpyPeerAsync(destination, destination_context, source, source_context, bytes, stream),
                 [=] { Checker().Copied(stream, destination, source, bytes); });
  }

  // Its copies are in no order among each other; that of the list is one of those that they may have.
  static Status MemcpyBatchAsync(DevicePointer* destinations, DevicePointer* sources, std::size_t* sizes, std::size_t count,
                                 CopyAttributes* attributes, std::size_t* first_copies, std::size_t attribute_count, Stream stream) {
    return Noted(Next().MemcpyBatchAsync(destinations, sources, sizes, count, attributes, first_copies, attribute_count, stream), [=] {
      for (std::size_t i = 0; i < count; ++i) Checker().Copied(stream, destinations[i], sources[i], sizes[i]);
    });
  }

  static Status MemsetD8Async(DevicePointer destination, unsigned char value, std::size_t bytes, Stream stream) {
    return Queued(Next().MemsetD8Async(destination, value, bytes, stream), stream,
                  [=](Stream on) { Checker().Used(on, Action::kSet, Access::kWrite, destination, bytes); });
  }

  static Status MemsetD32Async(DevicePointer destination, unsigned value, std::size_t count, Stream stream) {
    return Queued(Next().MemsetD32Async(destination, value, count, stream), stream,
                  [=](Stream on) { Checker().Used(on, Action::kSet, Access::kWrite, destination, count * sizeof value); });
  }

  static void NoteTouch(Stream stream, Access access, std::uint64_t address, std::uint64_t bytes) {
    Queued(kSuccess, stream, [=](Stream on) { Checker().Used(on, Action::kTouch, access, address, bytes); });
  }

  static void Fill(Slot& slot, const DriverTable* next) {
    slot.next = next;
    slot.checker = new OrderChecker(next);  // never destroyed: other threads may be in its functions while the process ends
    slot.graphs = new GraphBooks;
    slot.table = *next;
#define CISTERN_REPLACE(member) slot.table.member = member;
    CISTERN_REPLACE(CtxSynchronize)
    CISTERN_REPLACE(StreamDestroy)
    CISTERN_REPLACE(StreamSynchronize)
    CISTERN_REPLACE(StreamQuery)
    CISTERN_REPLACE(StreamGetId)
    CISTERN_REPLACE(StreamWaitEvent)
    CISTERN_REPLACE(EventDestroy)
    CISTERN_REPLACE(EventRecord)
    CISTERN_REPLACE(EventQuery)
    CISTERN_REPLACE(EventSynchronize)
    CISTERN_REPLACE(LaunchHostFunc)
    CISTERN_REPLACE(StreamWaitValue32)
    CISTERN_REPLACE(StreamEndCapture)
    CISTERN_REPLACE(StreamUpdateCaptureDependencies)
    CISTERN_REPLACE(GraphAddChildGraphNode)
    CISTERN_REPLACE(GraphDestroy)
    CISTERN_REPLACE(GraphInstantiateWithFlags)
    CISTERN_REPLACE(GraphExecUpdate)
    CISTERN_REPLACE(GraphExecDestroy)
    CISTERN_REPLACE(GraphLaunch)
    CISTERN_REPLACE(MemAlloc)
    CISTERN_REPLACE(MemAllocManaged)
    CISTERN_REPLACE(MemHostAlloc)
    CISTERN_REPLACE(MemFree)
    CISTERN_REPLACE(MemFreeHost)
    CISTERN_REPLACE(MemHostRegister)
    CISTERN_REPLACE(MemHostUnregister)
    CISTERN_REPLACE(MemAllocFromPoolAsync)
    CISTERN_REPLACE(MemFreeAsync)
    CISTERN_REPLACE(MemMap)
    CISTERN_REPLACE(MemUnmap)
    CISTERN_REPLACE(MemcpyAsync)
    CISTERN_REPLACE(MemcpyPeerAsync)
    CISTERN_REPLACE(MemcpyBatchAsync)
    CISTERN_REPLACE(MemsetD8Async)
    CISTERN_REPLACE(MemsetD32Async)
#undef CISTERN_REPLACE
  }
};

constexpr void (*kFill[kMaxTables])(Slot&, const DriverTable*) = {Functions<0>::Fill, Functions<1>::Fill};
constexpr void (*kNoteTouch[kMaxTables])(Stream, Access, std::uint64_t, std::uint64_t) = {Functions<0>::NoteTouch, Functions<1>::NoteTouch};

}  // namespace

const DriverTable* CheckedTable(const DriverTable* next) {
  const std::lock_guard<std::mutex> lock(slots_mutex);
  const int used = used_slots.load();
  for (int index = 0; index < used; ++index) {
    if (slots[index].next == next) return &slots[index].table;
  }
  if (used == kMaxTables) return nullptr;
  kFill[used](slots[used], next);
  used_slots.store(used + 1);
  return &slots[used].table;
}

void NoteTouch(const DriverTable* checked_table, Stream stream, Access access, std::uint64_t address, std::uint64_t bytes) {
  const int used = used_slots.load();
  for (int index = 0; index < used; ++index) {
    if (&slots[index].table == checked_table) kNoteTouch[index](stream, access, address, bytes);
  }
}

std::vector<Position> TakePositionsOfLaunch() { return std::exchange(positions_of_launch, {}); }

OrderChecker* CheckerOf(const DriverTable* table) {
  const int used = used_slots.load();
  for (int index = 0; index < used; ++index) {
    if (&slots[index].table == table) return slots[index].checker;
  }
  return nullptr;
}

}  // namespace cistern::order
