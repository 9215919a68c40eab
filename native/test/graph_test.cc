// Captures and graphs: for each rule of docs/design/031-graphs.md, what is allowed leaves the capture
// valid, and what is not gives its error.
#include <cstdio>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "fixture.h"

namespace cistern::test {
namespace {

constexpr int kModes[] = {kCaptureModeGlobal, kCaptureModeThreadLocal, kCaptureModeRelaxed};

void Increment(void* counter) { static_cast<std::atomic<int>*>(counter)->fetch_add(1); }

int StatusOf(Stream stream) {
  int status = -1;
  CHECK_OK(driver.StreamIsCapturing(stream, &status));
  return status;
}

void Begin(Stream stream, int mode = kCaptureModeRelaxed) { CHECK_OK(driver.StreamBeginCapture(stream, mode)); }

class TestGraph {
 public:
  TestGraph() = default;
  explicit TestGraph(Graph graph) : graph_(graph) {}
  ~TestGraph() { Destroy(); }
  TestGraph(const TestGraph&) = delete;
  operator Graph() const { return graph_; }
  Graph* address() { return &graph_; }
  void Destroy() {
    if (graph_ != nullptr) CHECK_OK(driver.GraphDestroy(graph_));
    graph_ = nullptr;
  }
  std::vector<int> Types() const {
    std::size_t count = 0;
    CHECK_OK(driver.GraphGetNodes(graph_, nullptr, &count));
    std::vector<GraphNode> nodes(count);
    CHECK_OK(driver.GraphGetNodes(graph_, nodes.data(), &count));
    std::vector<int> types;
    for (GraphNode node : nodes) CHECK_OK(driver.GraphNodeGetType(node, &types.emplace_back()));
    return types;
  }

 private:
  Graph graph_ = nullptr;
};

Graph End(Stream stream) {
  Graph graph = nullptr;
  CHECK_OK(driver.StreamEndCapture(stream, &graph));
  return graph;
}

// Ends a capture that must be invalid.
void EndInvalid(Stream stream) {
  CHECK(StatusOf(stream) == kCaptureInvalidated);
  Graph graph = reinterpret_cast<Graph>(1);
  CHECK(driver.StreamEndCapture(stream, &graph) == kErrorCaptureInvalidated);
  CHECK(graph == nullptr);
  CHECK(StatusOf(stream) == kCaptureNone);
}

void EndValid(Stream stream) {
  CHECK(StatusOf(stream) == kCaptureActive);
  const TestGraph graph(End(stream));
  CHECK(graph != nullptr);
}

class TestExec {
 public:
  explicit TestExec(Graph graph, unsigned long long flags = 0) { CHECK_OK(driver.GraphInstantiateWithFlags(&exec_, graph, flags)); }
  ~TestExec() { Destroy(); }
  TestExec(const TestExec&) = delete;
  operator GraphExec() const { return exec_; }
  void Destroy() {
    if (exec_ != nullptr) CHECK_OK(driver.GraphExecDestroy(exec_));
    exec_ = nullptr;
  }
  void Launch(Stream stream) const { CHECK_OK(driver.GraphLaunch(exec_, stream)); }

 private:
  GraphExec exec_ = nullptr;
};

class ThreadMode {
 public:
  explicit ThreadMode(int mode) : mode_(mode) { CHECK_OK(driver.ThreadExchangeStreamCaptureMode(&mode_)); }
  ~ThreadMode() { CHECK_OK(driver.ThreadExchangeStreamCaptureMode(&mode_)); }
  ThreadMode(const ThreadMode&) = delete;
  int before() const { return mode_; }

 private:
  int mode_;
};

template <typename Body>
void OnThread(Body&& body) {
  std::thread([&] {
    const OnDevice device(0);
    body();
  }).join();
}

std::uint64_t FreeBytes() {
  std::size_t free = 0;
  std::size_t total = 0;
  CHECK_OK(driver.MemGetInfo(&free, &total));
  return free;
}

DevicePointer AllocatePlain(std::uint64_t bytes) {
  DevicePointer pointer = 0;
  CHECK_OK(driver.MemAlloc(&pointer, bytes));
  return pointer;
}

void Fork(Event event, Stream from, Stream to) {
  CHECK_OK(driver.EventRecord(event, from));
  CHECK_OK(driver.StreamWaitEvent(to, event, 0));
}

// What the next node of a captured stream depends on.
struct Frontier {
  explicit Frontier(Stream stream) {
    int status = -1;
    CHECK_OK(driver.StreamGetCaptureInfo(stream, &status, nullptr, &graph, &nodes, nullptr, &count));
    CHECK(status == kCaptureActive);
  }
  Graph graph = nullptr;
  const GraphNode* nodes = nullptr;
  std::size_t count = 0;
};

// Makes a graph the next node of a captured stream.
GraphNode AddChild(Stream stream, Graph child) {
  const Frontier frontier(stream);
  GraphNode node = nullptr;
  CHECK_OK(driver.GraphAddChildGraphNode(&node, frontier.graph, frontier.nodes, frontier.count, child));
  CHECK_OK(driver.StreamUpdateCaptureDependencies(stream, &node, 1, kSetDependencies));
  return node;
}

std::string PictureOf(Graph graph) {
  const std::string path = "/tmp/cistern-graph-test.dot";
  CHECK_OK(driver.GraphDebugDotPrint(graph, path.c_str(), 0));
  std::FILE* file = std::fopen(path.c_str(), "r");
  std::string text(4096, '\0');
  text.resize(std::fread(text.data(), 1, text.size(), file));
  std::fclose(file);
  std::remove(path.c_str());
  return text;
}

std::size_t CountIn(const std::string& text, const std::string& word) {
  std::size_t count = 0;
  for (std::size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) ++count;
  return count;
}

template <typename Predicate>
bool Eventually(Predicate&& predicate) {
  for (int i = 0; i < 2000 && !predicate(); ++i) SleepMilliseconds(1);
  return predicate();
}

}  // namespace

TEST("captured work runs at each launch of its graph, and not before") {
  TestStream stream;
  Pinned<int> memory(2);
  memory[0] = 1;
  memory[1] = 0;
  std::atomic<int> runs{0};
  Begin(stream);
  CHECK_OK(driver.MemcpyAsync(memory.pointer() + 4, memory.pointer(), 4, stream));
  CHECK_OK(driver.MemsetD32Async(memory.pointer(), 5, 1, stream));
  CHECK_OK(driver.LaunchHostFunc(stream, Increment, &runs));
  TestGraph graph(End(stream));
  CHECK_OK(driver.StreamQuery(stream));
  CHECK(memory[0] == 1 && memory[1] == 0 && runs == 0);
  CHECK((graph.Types() == std::vector<int>{kNodeCopy, kNodeFill, kNodeHost}));
  TestExec exec(graph);
  exec.Launch(stream);
  stream.Synchronize();
  CHECK(memory[0] == 5 && memory[1] == 1 && runs == 1);
  exec.Launch(stream);
  exec.Launch(stream);
  stream.Synchronize();
  CHECK(memory[1] == 5 && runs == 3);
}

TEST("a launch comes after what is queued on its stream, and after earlier launches of the same exec") {
  TestStream capturing;
  TestStream a;
  TestStream others[6];
  std::atomic<int> runs{0};
  Begin(capturing);
  for (int i = 0; i < 3; ++i) CHECK_OK(driver.LaunchHostFunc(capturing, Increment, &runs));
  TestGraph graph(End(capturing));
  TestExec execs[] = {TestExec(graph), TestExec(graph), TestExec(graph), TestExec(graph), TestExec(graph), TestExec(graph)};
  TestExec other(graph);
  Gate gate;
  gate.Close(a);
  for (int i = 0; i < 6; ++i) {
    execs[i].Launch(a);
    execs[i].Launch(others[i]);
  }
  SleepMilliseconds(10);
  CHECK(runs == 0);
  other.Launch(capturing);
  capturing.Synchronize();
  CHECK(runs == 3);
  gate.Open();
  for (const TestStream& each : others) each.Synchronize();
  CHECK(runs == 39);
}

TEST("an empty capture makes an empty graph, which can be launched") {
  TestStream stream;
  Begin(stream);
  TestGraph graph(End(stream));
  CHECK(graph.Types().empty());
  TestExec(graph).Launch(stream);
  stream.Synchronize();
}

TEST("a capture begins on any stream but the legacy one, and not twice") {
  Graph graph = nullptr;
  CHECK(driver.StreamBeginCapture(nullptr, kCaptureModeRelaxed) == kErrorCaptureUnsupported);
  CHECK(driver.StreamBeginCapture(LegacyStream(), kCaptureModeRelaxed) == kErrorCaptureUnsupported);
  CHECK(driver.StreamEndCapture(LegacyStream(), &graph) == kErrorIllegalState);
  TestStream stream;
  CHECK(driver.StreamBeginCapture(stream, 3) == kErrorInvalidValue);
  CHECK(StatusOf(stream) == kCaptureNone);
  Begin(PerThreadStream());
  EndValid(PerThreadStream());
  Begin(stream);
  CHECK(driver.StreamBeginCapture(stream, kCaptureModeRelaxed) == kErrorIllegalState);
  EndValid(stream);
}

TEST("a capture ends on the stream where it began, and only there") {
  TestStream origin;
  TestStream fork;
  TestStream idle;
  TestEvent event;
  Graph graph = nullptr;
  Begin(origin);
  Fork(event, origin, fork);
  CHECK(driver.StreamEndCapture(idle, &graph) == kErrorIllegalState);
  CHECK(StatusOf(origin) == kCaptureActive && StatusOf(fork) == kCaptureActive);
  CHECK(driver.StreamEndCapture(fork, &graph) == kErrorCaptureUnmatched);
  CHECK(graph == nullptr && StatusOf(fork) == kCaptureInvalidated);
  EndInvalid(origin);
  CHECK(StatusOf(fork) == kCaptureNone);
}

TEST("only a relaxed capture may be ended by another thread") {
  TestStream stream;
  for (const int mode : kModes) {
    Begin(stream, mode);
    OnThread([&] {
      Graph graph = nullptr;
      const Status status = driver.StreamEndCapture(stream, &graph);
      CHECK(status == (mode == kCaptureModeRelaxed ? kSuccess : kErrorCaptureWrongThread));
      const TestGraph owner(graph);
    });
    CHECK(StatusOf(stream) == kCaptureNone);
    Graph graph = nullptr;
    CHECK(driver.StreamEndCapture(stream, &graph) == kErrorIllegalState && graph == nullptr);
  }
}

TEST("what a stream is cannot be asked while it is captured, whatever the mode") {
  TestStream stream;
  TestStream other;
  const std::function<Status(Stream)> questions[] = {
      [](Stream of) {
        unsigned long long id;
        return driver.StreamGetId(of, &id);
      },
      [](Stream of) {
        unsigned flags;
        return driver.StreamGetFlags(of, &flags);
      },
  };
  for (const auto& ask : questions) {
    for (const int mode : kModes) {
      const ThreadMode relaxed(kCaptureModeRelaxed);
      Begin(stream, mode);
      CHECK_OK(ask(other));
      CHECK(StatusOf(stream) == kCaptureActive);
      CHECK(ask(stream) == kErrorCaptureUnsupported);
      EndInvalid(stream);
      CHECK_OK(ask(stream));
    }
  }
}

TEST("a fork must have joined back when the capture ends") {
  TestStream origin;
  TestStream fork;
  TestEvent event;
  TestEvent join;
  std::atomic<int> runs{0};
  for (const bool joins : {false, true}) {
    Begin(origin);
    CHECK_OK(driver.LaunchHostFunc(origin, Increment, &runs));
    Fork(event, origin, fork);
    CHECK_OK(driver.LaunchHostFunc(fork, Increment, &runs));
    if (joins) Fork(join, fork, origin);
    Graph graph = nullptr;
    CHECK(driver.StreamEndCapture(origin, &graph) == (joins ? kSuccess : kErrorCaptureUnjoined));
    CHECK((graph != nullptr) == joins);
    CHECK(StatusOf(origin) == kCaptureNone && StatusOf(fork) == kCaptureNone);
    const TestGraph owner(graph);
  }
}

TEST("a fork without work of its own has joined back") {
  TestStream origin;
  TestStream fork;
  TestEvent event;
  std::atomic<int> runs{0};
  Begin(origin);
  CHECK_OK(driver.LaunchHostFunc(origin, Increment, &runs));
  Fork(event, origin, fork);
  CHECK(StatusOf(fork) == kCaptureActive);
  EndValid(origin);
}

TEST("a stream that is captured can be neither queried nor waited for, in any mode") {
  for (const int mode : kModes) {
    const ThreadMode relaxed(kCaptureModeRelaxed);
    TestStream stream;
    TestEvent event;
    Begin(stream, mode);
    CHECK(driver.StreamQuery(stream) == kErrorCaptureUnsupported);
    EndInvalid(stream);
    Begin(stream, mode);
    CHECK(driver.StreamSynchronize(stream) == kErrorCaptureUnsupported);
    EndInvalid(stream);
    TestStream fork;
    Begin(stream, mode);
    Fork(event, stream, fork);
    CHECK(driver.StreamQuery(fork) == kErrorCaptureUnsupported);
    EndInvalid(stream);
    CHECK_OK(driver.StreamQuery(stream));
  }
}

TEST("an event that was captured can be neither queried nor waited for on the host, until it is recorded outside") {
  for (const int mode : kModes) {
    const ThreadMode relaxed(kCaptureModeRelaxed);
    TestStream stream;
    TestEvent event;
    Begin(stream, mode);
    CHECK_OK(driver.EventRecord(event, stream));
    CHECK(StatusOf(stream) == kCaptureActive);
    CHECK(driver.EventQuery(event) == kErrorCapturedEvent);
    EndInvalid(stream);
    Begin(stream, mode);
    CHECK_OK(driver.EventRecord(event, stream));
    CHECK(driver.EventSynchronize(event) == kErrorCapturedEvent);
    EndInvalid(stream);
    TestStream other;
    CHECK(driver.EventQuery(event) == kErrorInvalidValue);
    CHECK(driver.StreamWaitEvent(other, event, 0) == kErrorInvalidValue);
    CHECK_OK(driver.StreamQuery(other));
    CHECK_OK(driver.EventRecord(event, stream));
    CHECK_OK(driver.EventSynchronize(event));
    CHECK_OK(driver.EventQuery(event));
  }
}

TEST("a timed event that was captured measures nothing") {
  TestStream stream;
  TestEvent start(kEventDefault);
  TestEvent end(kEventDefault);
  CHECK_OK(driver.EventRecord(start, stream));
  Begin(stream);
  CHECK_OK(driver.EventRecord(end, stream));
  EndValid(stream);
  float milliseconds;
  CHECK(driver.EventElapsedTime(&milliseconds, start, end) == kErrorCapturedEvent);
}

TEST("nobody can wait for a context of which a stream is captured; another context is no matter") {
  for (const int mode : kModes) {
    TestStream stream;
    Begin(stream, mode);
    OnThread([&] {
      OnDevice other(1);
      CHECK_OK(driver.CtxSynchronize());
    });
    CHECK(StatusOf(stream) == kCaptureActive);
    OnThread([&] {
      const ThreadMode relaxed(kCaptureModeRelaxed);
      CHECK(driver.CtxSynchronize() == kErrorCaptureUnsupported);
    });
    EndInvalid(stream);
    CHECK_OK(driver.CtxSynchronize());
  }
}

TEST("the legacy stream cannot be used while a blocking stream of its device is captured") {
  const ThreadMode relaxed(kCaptureModeRelaxed);
  TestEvent event;
  Pinned<int> memory(1);
  std::atomic<int> runs{0};
  const auto uses = {
      +[](const TestEvent& unused, DevicePointer, void*) { return unused == nullptr ? 0 : driver.StreamQuery(nullptr); },
      +[](const TestEvent&, DevicePointer, void*) { return driver.StreamSynchronize(nullptr); },
      +[](const TestEvent& each, DevicePointer, void*) { return driver.EventRecord(each, nullptr); },
      +[](const TestEvent& each, DevicePointer, void*) { return driver.StreamWaitEvent(nullptr, each, 0); },
      +[](const TestEvent&, DevicePointer pointer, void*) { return driver.MemsetD32Async(pointer, 0, 1, nullptr); },
      +[](const TestEvent&, DevicePointer, void* counter) { return driver.LaunchHostFunc(nullptr, Increment, counter); },
  };
  for (const auto use : uses) {
    TestStream blocking(kStreamDefault);
    TestStream independent;
    Begin(independent, kCaptureModeThreadLocal);
    CHECK_OK(use(event, memory.pointer(), &runs));
    CHECK(StatusOf(nullptr) == kCaptureNone);
    EndValid(independent);
    Begin(blocking, kCaptureModeThreadLocal);
    {
      OnDevice other(1);
      CHECK_OK(driver.StreamQuery(nullptr));
    }
    CHECK(StatusOf(blocking) == kCaptureActive);
    CHECK(use(event, memory.pointer(), &runs) == kErrorCaptureImplicit);
    EndInvalid(blocking);
    CHECK_OK(driver.EventRecord(event, independent));
    CHECK_OK(driver.StreamSynchronize(nullptr));
  }
  CHECK(runs == 1);
}

TEST("asking whether the legacy stream is captured harms no capture") {
  TestStream blocking(kStreamDefault);
  Begin(blocking);
  int status;
  CHECK(driver.StreamIsCapturing(nullptr, &status) == kErrorCaptureImplicit);
  CHECK(driver.StreamGetCaptureInfo(nullptr, &status, nullptr, nullptr, nullptr, nullptr, nullptr) == kErrorCaptureImplicit);
  EndValid(blocking);
  CHECK(StatusOf(nullptr) == kCaptureNone);
}

TEST("a stream joins a capture by waiting for an event of it, and its work comes after that") {
  TestStream origin;
  TestStream fork(kStreamDefault);
  TestEvent event;
  TestEvent join;
  Pinned<int> memory(2);
  memory[0] = memory[1] = 0;
  Begin(origin);
  CHECK_OK(driver.MemsetD32Async(memory.pointer(), 7, 1, origin));
  Fork(event, origin, fork);
  CHECK_OK(driver.MemcpyAsync(memory.pointer() + 4, memory.pointer(), 4, fork));
  CHECK(memory[1] == 0);
  Fork(join, fork, origin);
  CHECK_OK(driver.MemsetD32Async(memory.pointer(), 9, 1, origin));
  TestGraph graph(End(origin));
  CHECK(StatusOf(fork) == kCaptureNone);
  RunInAnyOrder(true);
  TestExec exec(graph);
  exec.Launch(fork);
  RunInAnyOrder(false);
  fork.Synchronize();
  CHECK(memory[0] == 9 && memory[1] == 7);
}

TEST("a launch runs what has no edge between it in any order") {
  TestStream origin;
  TestStream fork;
  TestEvent event;
  TestEvent join;
  std::atomic<int> last{0};
  Begin(origin);
  Fork(event, origin, fork);
  CHECK_OK(driver.LaunchHostFunc(
      origin, +[](void* value) { *static_cast<std::atomic<int>*>(value) = 1; }, &last));
  CHECK_OK(driver.LaunchHostFunc(
      fork, +[](void* value) { *static_cast<std::atomic<int>*>(value) = 2; }, &last));
  Fork(join, fork, origin);
  TestGraph graph(End(origin));
  TestExec exec(graph);
  bool is_seen[3] = {};
  for (int launch = 0; launch < 64; ++launch) {
    RunInAnyOrder(launch % 2 == 1);
    exec.Launch(origin);
    RunInAnyOrder(false);
    origin.Synchronize();
    is_seen[last] = true;
  }
  CHECK(is_seen[1] && is_seen[2]);
}

TEST("captured work cannot wait for work that is not") {
  TestStream stream;
  TestStream other;
  TestEvent event;
  CHECK_OK(driver.EventRecord(event, other));
  Begin(stream);
  CHECK(driver.StreamWaitEvent(stream, event, 0) == kErrorCaptureIsolation);
  EndInvalid(stream);
  TestEvent unrecorded;
  Begin(stream);
  CHECK(driver.StreamWaitEvent(stream, unrecorded, 0) == kErrorCaptureIsolation);
  EndInvalid(stream);
}

TEST("two captures cannot be joined") {
  TestStream a;
  TestStream b;
  TestEvent event;
  Begin(a);
  Begin(b);
  CHECK_OK(driver.EventRecord(event, a));
  CHECK(driver.StreamWaitEvent(b, event, 0) == kErrorCaptureMerge);
  EndInvalid(a);
  EndInvalid(b);
}

TEST("captures of different streams do not touch each other") {
  TestStream a;
  TestStream b;
  std::atomic<int> runs{0};
  Begin(a, kCaptureModeGlobal);
  Begin(b, kCaptureModeThreadLocal);
  CHECK_OK(driver.LaunchHostFunc(a, Increment, &runs));
  CHECK_OK(driver.LaunchHostFunc(b, Increment, &runs));
  std::uint64_t ids[2];
  int status;
  CHECK_OK(driver.StreamGetCaptureInfo(a, &status, &ids[0], nullptr, nullptr, nullptr, nullptr));
  CHECK_OK(driver.StreamGetCaptureInfo(b, &status, &ids[1], nullptr, nullptr, nullptr, nullptr));
  CHECK(ids[0] != ids[1]);
  Graph first = End(a);
  Graph second = End(b);
  CHECK(TestGraph(first).Types().size() == 1 && TestGraph(second).Types().size() == 1);
}

TEST("a potentially unsafe call is refused as the modes of the thread and the captures say") {
  // By the mode of the capture and that of the thread: whether its own thread, and another one, may
  // make the call.
  struct Row {
    int capture;
    int thread;
    bool own_is_allowed;
    bool other_is_allowed;
  };
  const Row rows[] = {
      {kCaptureModeGlobal, kCaptureModeGlobal, false, false},          {kCaptureModeGlobal, kCaptureModeThreadLocal, false, true},
      {kCaptureModeGlobal, kCaptureModeRelaxed, true, true},           {kCaptureModeThreadLocal, kCaptureModeGlobal, false, true},
      {kCaptureModeThreadLocal, kCaptureModeThreadLocal, false, true}, {kCaptureModeThreadLocal, kCaptureModeRelaxed, true, true},
      {kCaptureModeRelaxed, kCaptureModeGlobal, true, true},           {kCaptureModeRelaxed, kCaptureModeThreadLocal, true, true},
      {kCaptureModeRelaxed, kCaptureModeRelaxed, true, true},
  };
  TestStream stream;
  for (const Row& row : rows) {
    for (const bool is_own : {true, false}) {
      Begin(stream, row.capture);
      const auto call = [&] {
        const ThreadMode mode(row.thread);
        DevicePointer pointer = 0;
        const bool is_allowed = is_own ? row.own_is_allowed : row.other_is_allowed;
        CHECK(driver.MemAlloc(&pointer, 4096) == (is_allowed ? kSuccess : kErrorCaptureUnsupported));
        CHECK((pointer != 0) == is_allowed);
        const ThreadMode relaxed(kCaptureModeRelaxed);
        if (pointer != 0) CHECK_OK(driver.MemFree(pointer));
      };
      if (is_own) call();
      if (!is_own) OnThread(call);
      const bool is_allowed = is_own ? row.own_is_allowed : row.other_is_allowed;
      if (is_allowed) EndValid(stream);
      if (!is_allowed) EndInvalid(stream);
    }
  }
}

TEST("each potentially unsafe call invalidates a global capture, and leaves a relaxed one alone") {
  TestStream stream;
  TestStream other;
  TestEvent event;
  TestPool pool;
  std::vector<Graph> graphs;
  for (int i = 0; i < 4; ++i) {
    Begin(other);
    graphs.push_back(End(other));
  }
  TestExec exec(graphs[0]);
  const std::uint64_t before = FreeBytes();
  const std::function<Status()> calls[] = {
      [&] { return driver.StreamQuery(other); },
      [&] { return driver.StreamSynchronize(other); },
      [&] { return driver.EventQuery(event); },
      [&] { return driver.EventSynchronize(event); },
      [&] {
        Context context;
        return driver.StreamGetCtx(stream, &context);
      },
      [&] {
        std::uint64_t value;
        return driver.MemPoolGetAttribute(pool, kPoolUsedCurrent, &value);
      },
      [&] { return driver.MemPoolTrimTo(pool, 0); },
      [&] {
        DevicePointer pointer;
        const Status status = driver.MemAllocFromPoolAsync(&pointer, 4096, pool, other);
        return status == kSuccess ? driver.MemFreeAsync(pointer, other) : status;
      },
      [&] {
        Pool created;
        PoolProperties properties = PoolOn(0);
        const Status status = driver.MemPoolCreate(&created, &properties);
        return status == kSuccess ? driver.MemPoolDestroy(created) : status;
      },
      [&] {
        DevicePointer pointer;
        const Status status = driver.MemAlloc(&pointer, 4096);
        return status == kSuccess ? driver.MemFree(pointer) : status;
      },
      [&] {
        void* pointer = nullptr;
        const Status status = driver.MemHostAlloc(&pointer, 4096, 0);
        return status == kSuccess ? driver.MemFreeHost(pointer) : status;
      },
      [&] {
        DevicePointer address;
        const Status status = driver.MemAddressReserve(&address, 2 * kMiB, 0, 0, 0);
        return status == kSuccess ? driver.MemAddressFree(address, 2 * kMiB) : status;
      },
      [&] {
        Stream created;
        const Status status = driver.StreamCreateWithPriority(&created, kStreamNonBlocking, 0);
        return status == kSuccess ? driver.StreamDestroy(created) : status;
      },
      [&] {
        Event created;
        const Status status = driver.EventCreate(&created, kEventDisableTiming);
        return status == kSuccess ? driver.EventDestroy(created) : status;
      },
      [&] {
        GraphExec made;
        const Status status = driver.GraphInstantiateWithFlags(&made, graphs[0], 0);
        return status == kSuccess ? driver.GraphExecDestroy(made) : status;
      },
      [&] {
        GraphUpdateResult result;
        return driver.GraphExecUpdate(exec, graphs[0], &result);
      },
      [&] {
        const Status status = driver.GraphDestroy(graphs.back());
        if (status == kSuccess) graphs.pop_back();
        return status;
      },
  };
  for (const auto& call : calls) {
    Begin(stream, kCaptureModeRelaxed);
    CHECK_OK(call());
    EndValid(stream);
    Begin(stream, kCaptureModeGlobal);
    {
      const ThreadMode relaxed(kCaptureModeRelaxed);
      CHECK_OK(call());
    }
    CHECK(StatusOf(stream) == kCaptureActive);
    CHECK(call() == kErrorCaptureUnsupported);
    EndInvalid(stream);
  }
  CHECK_OK(driver.StreamSynchronize(other));
  CHECK_OK(driver.MemPoolTrimTo(pool, 0));
  CHECK(FreeBytes() == before);
  for (const Graph graph : graphs) CHECK_OK(driver.GraphDestroy(graph));
}

TEST("what only reads is allowed in every mode") {
  TestStream stream;
  const DevicePointer memory = AllocatePlain(4096);
  Begin(stream);
  CHECK_OK(driver.MemsetD8Async(memory, 1, 4096, stream));
  TestGraph graph(End(stream));
  for (const int mode : kModes) {
    Begin(stream, mode);
    unsigned long long id;
    std::uint64_t capture = 0;
    int status;
    int attribute;
    Pool pool;
    Context context;
    CHECK(FreeBytes() > 0);
    CHECK_OK(driver.DeviceGetAttribute(&attribute, kAttributeManagedMemory, 0));
    CHECK_OK(driver.DeviceGetDefaultMemPool(&pool, 0));
    CHECK_OK(driver.CtxGetCurrent(&context));
    CHECK_OK(driver.CtxSetCurrent(context));
    CHECK_OK(driver.StreamGetId(nullptr, &id));
    CHECK_OK(driver.StreamGetCaptureInfo(stream, &status, &capture, nullptr, nullptr, nullptr, nullptr));
    CHECK(status == kCaptureActive && capture != 0);
    CHECK(Frontier(stream).count == 0);
    CHECK(graph.Types().size() == 1);
    CHECK_OK(driver.PointerGetAttribute(&attribute, kPointerDeviceOrdinal, memory));
    EndValid(stream);
  }
  CHECK_OK(driver.MemFree(memory));
}

TEST("what no graph can contain is refused on a captured stream") {
  TestStream stream;
  Pinned<std::uint32_t> memory(2);
  std::vector<int> pageable(1);
  const auto host = reinterpret_cast<DevicePointer>(pageable.data());
  Context contexts[2];
  for (int device : {0, 1}) CHECK_OK(driver.DevicePrimaryCtxRetain(&contexts[device], device));
  const DevicePointer plain = AllocatePlain(4096);
  DevicePointer managed;
  CHECK_OK(driver.MemAllocManaged(&managed, 4096, kMemAttachGlobal));
  const std::vector<std::function<Status()>> calls = {
      [&] { return driver.MemcpyAsync(memory.pointer(), host, 4, stream); },
      [&] { return driver.MemcpyAsync(host, memory.pointer(), 4, stream); },
      [&] { return driver.MemcpyPeerAsync(plain, contexts[0], plain + 64, contexts[0], 4, stream); },
      [&] {
        DevicePointer to = memory.pointer();
        DevicePointer from = plain;
        std::size_t size = 4;
        CopyAttributes attributes = {kSourceOrderStream, {kLocationNone, 0}, {kLocationNone, 0}, 0};
        std::size_t first_copy = 0;
        return driver.MemcpyBatchAsync(&to, &from, &size, 1, &attributes, &first_copy, 1, stream);
      },
      [&] { return driver.StreamWaitValue32(stream, memory.pointer(), 0, kWaitValueGreaterOrEqual); },
      [&] {
        return driver.MemPrefetchAsync(managed, 4096, {kLocationDevice, 0}, 0, stream);
      },
  };
  for (const auto& call : calls) {
    Begin(stream);
    CHECK(call() == kErrorCaptureUnsupported);
    EndInvalid(stream);
  }
  for (int device : {0, 1}) CHECK_OK(driver.DevicePrimaryCtxRelease(device));
  CHECK_OK(driver.MemFree(plain));
  CHECK_OK(driver.MemFree(managed));
}

TEST("an invalid argument does not invalidate a capture") {
  TestStream stream;
  Begin(stream);
  CHECK(driver.MemsetD32Async(0x10, 0, 1, stream) == kErrorInvalidValue);
  CHECK(driver.LaunchHostFunc(stream, nullptr, nullptr) == kErrorInvalidValue);
  CHECK(driver.MemFreeAsync(0x10, stream) == kErrorInvalidValue);
  EndValid(stream);
}

TEST("after an error, everything of the capture is refused until it is ended on its first stream") {
  TestStream origin;
  TestStream fork;
  TestStream idle;
  TestEvent event;
  Pinned<int> memory(1);
  std::atomic<int> runs{0};
  Begin(origin);
  Fork(event, origin, fork);
  CHECK(driver.StreamQuery(origin) == kErrorCaptureUnsupported);
  for (const TestStream* stream : {&origin, &fork}) {
    CHECK(StatusOf(*stream) == kCaptureInvalidated);
    CHECK(driver.LaunchHostFunc(*stream, Increment, &runs) == kErrorCaptureInvalidated);
    CHECK(driver.MemsetD32Async(memory.pointer(), 0, 1, *stream) == kErrorCaptureInvalidated);
    CHECK(driver.EventRecord(event, *stream) == kErrorCaptureInvalidated);
    CHECK(driver.StreamWaitEvent(*stream, event, 0) == kErrorCaptureInvalidated);
    CHECK(driver.StreamQuery(*stream) == kErrorCaptureInvalidated);
    CHECK(driver.StreamBeginCapture(*stream, kCaptureModeRelaxed) == kErrorIllegalState);
    int status;
    Graph graph = nullptr;
    CHECK_OK(driver.StreamGetCaptureInfo(*stream, &status, nullptr, &graph, nullptr, nullptr, nullptr));
    CHECK(status == kCaptureInvalidated && graph == nullptr);
  }
  CHECK(driver.StreamWaitEvent(idle, event, 0) == kErrorInvalidValue);
  CHECK(StatusOf(idle) == kCaptureNone);
  Graph graph = nullptr;
  CHECK(driver.StreamEndCapture(fork, &graph) == kErrorCaptureUnmatched);
  EndInvalid(origin);
  CHECK(StatusOf(fork) == kCaptureNone);
  CHECK_OK(driver.LaunchHostFunc(fork, Increment, &runs));
  fork.Synchronize();
  CHECK(runs == 1);
}

TEST("work after a capture comes after the work before it") {
  TestStream stream;
  std::atomic<int> runs{0};
  std::atomic<int> captured{0};
  Gate gate;
  gate.Close(stream);
  Begin(stream);
  CHECK_OK(driver.LaunchHostFunc(stream, Increment, &captured));
  EndValid(stream);
  CHECK_OK(driver.LaunchHostFunc(stream, Increment, &runs));
  SleepMilliseconds(10);
  CHECK(runs == 0);
  gate.Open();
  stream.Synchronize();
  CHECK(runs == 1 && captured == 0);
}

TEST("a captured stream that is destroyed ends its capture") {
  TestStream fork;
  TestEvent event;
  Stream origin;
  CHECK_OK(driver.StreamCreateWithPriority(&origin, kStreamNonBlocking, 0));
  Begin(origin);
  Fork(event, origin, fork);
  CHECK_OK(driver.StreamDestroy(origin));
  CHECK(StatusOf(fork) == kCaptureNone);
  CHECK_OK(driver.CtxSynchronize());
}

TEST("a fork that is destroyed before it has joined back invalidates the capture") {
  TestStream origin;
  TestEvent event;
  TestEvent join;
  std::atomic<int> runs{0};
  for (const bool joins : {false, true}) {
    Stream fork;
    CHECK_OK(driver.StreamCreateWithPriority(&fork, kStreamNonBlocking, 0));
    Begin(origin);
    Fork(event, origin, fork);
    CHECK_OK(driver.LaunchHostFunc(fork, Increment, &runs));
    if (joins) Fork(join, fork, origin);
    CHECK_OK(driver.StreamDestroy(fork));
    if (joins) EndValid(origin);
    if (!joins) EndInvalid(origin);
  }
}

TEST("a stream has as dependencies the last nodes of what it waited for") {
  TestStream origin;
  TestStream fork;
  TestEvent event;
  TestEvent join;
  std::atomic<int> runs{0};
  Begin(origin);
  CHECK_OK(driver.LaunchHostFunc(origin, Increment, &runs));
  Fork(event, origin, fork);
  CHECK_OK(driver.LaunchHostFunc(origin, Increment, &runs));
  CHECK_OK(driver.LaunchHostFunc(fork, Increment, &runs));
  Fork(join, fork, origin);
  int status;
  Graph graph;
  const GraphNode* dependencies;
  std::size_t count;
  CHECK_OK(driver.StreamGetCaptureInfo(origin, &status, nullptr, &graph, &dependencies, nullptr, &count));
  std::size_t all = 0;
  CHECK_OK(driver.GraphGetNodes(graph, nullptr, &all));
  CHECK(count == 2 && all == 3);
  int type = -1;
  CHECK_OK(driver.GraphNodeGetType(dependencies[1], &type));
  CHECK(type == kNodeHost);
  CHECK(driver.GraphDestroy(graph) == kErrorIllegalState);
  EndValid(origin);
}

TEST("memory that a graph allocates has one address, and is there while the graph runs") {
  const std::uint64_t before = FreeBytes();
  {
    TestStream stream;
    TestPool pool;
    Pinned<int> memory(1);
    memory[0] = 0;
    Begin(stream, kCaptureModeGlobal);
    const DevicePointer pointer = pool.Allocate(4096, stream);
    CHECK_OK(driver.MemsetD32Async(pointer, 42, 1024, stream));
    CHECK_OK(driver.MemcpyAsync(memory.pointer(), pointer + 4092, 4, stream));
    FreeAsync(pointer, stream);
    TestGraph graph(End(stream));
    CHECK((graph.Types() == std::vector<int>{kNodeAllocation, kNodeFill, kNodeCopy, kNodeFree}));
    CHECK(driver.MemFreeAsync(pointer, stream) == kErrorInvalidValue);
    TestExec exec(graph);
    GraphExec second = nullptr;
    CHECK(driver.GraphInstantiateWithFlags(&second, graph, 0) == kErrorInvalidValue);
    for (int launch = 1; launch <= 3; ++launch) {
      memory[0] = 0;
      exec.Launch(stream);
      stream.Synchronize();
      CHECK(memory[0] == 42);
    }
    CHECK(pool.Get(kPoolUsedCurrent) == 0);
  }
  CHECK(FreeBytes() == before);
}

TEST("memory that a graph does not free is the program's, and must be freed before the next launch") {
  const std::uint64_t before = FreeBytes();
  TestStream stream;
  for (const bool frees_itself : {false, true}) {
    TestPool pool;
    Begin(stream);
    const DevicePointer pointer = pool.Allocate(4096, stream);
    CHECK_OK(driver.MemsetD32Async(pointer, 42, 1024, stream));
    TestGraph graph(End(stream));
    TestExec exec(graph, frees_itself ? kInstantiateAutoFree : 0ull);
    exec.Launch(stream);
    CHECK(driver.GraphLaunch(exec, stream) == (frees_itself ? kSuccess : kErrorInvalidValue));
    FreeAsync(pointer, stream);
    CHECK(driver.MemFreeAsync(pointer, stream) == kErrorInvalidValue);
    exec.Launch(stream);
    exec.Destroy();
    graph.Destroy();
    Pinned<int> memory(1);
    CHECK_OK(driver.MemcpyAsync(memory.pointer(), pointer, 4, stream));
    stream.Synchronize();
    CHECK(memory[0] == 42);
    CHECK(FreeBytes() < before);
    if (frees_itself) FreeAsync(pointer, stream);
    if (!frees_itself) CHECK_OK(driver.MemFree(pointer));
    stream.Synchronize();
    CHECK(FreeBytes() == before);
  }
}

TEST("one graph may free what another one allocated") {
  const std::uint64_t before = FreeBytes();
  TestStream stream;
  {
    TestPool pool;
    Begin(stream);
    const DevicePointer pointer = pool.Allocate(4096, stream);
    TestGraph allocating(End(stream));
    Begin(stream);
    FreeAsync(pointer, stream);
    CHECK(driver.MemFreeAsync(pointer, stream) == kErrorInvalidValue);
    TestGraph freeing(End(stream));
    TestExec allocate(allocating);
    TestExec free(freeing);
    CHECK(driver.GraphLaunch(free, stream) == kErrorInvalidValue);
    for (int i = 0; i < 2; ++i) {
      allocate.Launch(stream);
      free.Launch(stream);
    }
    stream.Synchronize();
  }
  CHECK(FreeBytes() == before);
}

TEST("a captured stream frees only memory of graphs, and the capture stays valid") {
  TestStream stream;
  TestPool pool;
  const DevicePointer pooled = pool.Allocate(4096, stream);
  const DevicePointer plain = AllocatePlain(4096);
  Begin(stream);
  CHECK(driver.MemFreeAsync(pooled, stream) == kErrorInvalidValue);
  CHECK(driver.MemFreeAsync(plain, stream) == kErrorInvalidValue);
  EndValid(stream);
  FreeAsync(pooled, stream);
  FreeAsync(plain, stream);
  stream.Synchronize();
}

TEST("memory of an invalidated capture is given back") {
  const std::uint64_t before = FreeBytes();
  TestStream stream;
  TestPool pool;
  Begin(stream);
  pool.Allocate(4096, stream);
  CHECK(FreeBytes() <= before);
  CHECK(driver.StreamQuery(stream) == kErrorCaptureUnsupported);
  CHECK(FreeBytes() == before);
  EndInvalid(stream);
}

TEST("a capture without memory left stays valid") {
  TestStream stream;
  TestPool pool;
  Begin(stream);
  DevicePointer pointer;
  CHECK(driver.MemAllocFromPoolAsync(&pointer, 2 * kTotal, pool, stream) == kErrorOutOfMemory);
  EndValid(stream);
}

#ifndef CISTERN_TEST_STRICT_DRIVER  // CUDA does not define what happens: strict/misuse_test.cc
TEST("a graph that uses freed memory is not launched") {
  TestStream stream;
  const DevicePointer pointer = AllocatePlain(4096);
  Begin(stream);
  CHECK_OK(driver.MemsetD8Async(pointer, 1, 4096, stream));
  TestGraph graph(End(stream));
  TestExec exec(graph);
  exec.Launch(stream);
  CHECK_OK(driver.MemFree(pointer));
  CHECK(driver.GraphLaunch(exec, stream) == kErrorIllegalAddress);
}
#endif

TEST("an executable graph needs its graph no more, and a launch needs neither") {
  TestStream stream;
  std::atomic<int> runs{0};
  Begin(stream);
  CHECK_OK(driver.LaunchHostFunc(stream, Increment, &runs));
  TestGraph graph(End(stream));
  TestExec exec(graph);
  graph.Destroy();
  Gate gate;
  gate.Close(stream);
  exec.Launch(stream);
  exec.Destroy();
  gate.Open();
  stream.Synchronize();
  CHECK(runs == 1);
}

TEST("handles of graphs are refused after their end") {
  TestStream stream;
  Begin(stream);
  Graph graph = End(stream);
  GraphExec exec;
  CHECK_OK(driver.GraphInstantiateWithFlags(&exec, graph, 0));
  CHECK(driver.GraphInstantiateWithFlags(&exec, graph, 2) == kErrorInvalidValue);
  CHECK_OK(driver.GraphDestroy(graph));
  CHECK_OK(driver.GraphExecDestroy(exec));
  std::size_t count;
  int type;
  CHECK(driver.GraphDestroy(graph) == kErrorInvalidValue);
  CHECK(driver.GraphExecDestroy(exec) == kErrorInvalidValue);
  CHECK(driver.GraphLaunch(exec, stream) == kErrorInvalidValue);
  CHECK(driver.GraphUpload(exec, stream) == kErrorInvalidValue);
  CHECK(driver.GraphGetNodes(graph, nullptr, &count) == kErrorInvalidValue);
  CHECK(driver.GraphInstantiateWithFlags(&exec, graph, 0) == kErrorInvalidValue);
  CHECK(driver.GraphNodeGetType(reinterpret_cast<GraphNode>(1), &type) == kErrorInvalidValue);
  CHECK(driver.GraphNodeGetType(reinterpret_cast<GraphNode>(~std::uintptr_t{0}), &type) == kErrorInvalidValue);
}

TEST("a graph is not launched on a captured stream") {
  TestStream stream;
  Begin(stream);
  TestGraph graph(End(stream));
  TestExec exec(graph);
  Begin(stream);
  CHECK(driver.GraphLaunch(exec, stream) == kErrorCaptureUnsupported);
  EndInvalid(stream);
}

TEST("an update gives an executable graph new addresses and values, for later launches only") {
  TestStream stream;
  Pinned<unsigned> memory(2);
  memory[0] = memory[1] = 0;
  const auto capture = [&](int index, unsigned value) {
    Begin(stream);
    CHECK_OK(driver.MemsetD32Async(memory.pointer() + 4 * static_cast<unsigned>(index), value, 1, stream));
    return End(stream);
  };
  TestGraph first(capture(0, 1));
  TestGraph second(capture(1, 2));
  TestExec exec(first);
  Gate gate;
  gate.Close(stream);
  exec.Launch(stream);
  GraphUpdateResult result;
  CHECK_OK(driver.GraphExecUpdate(exec, second, &result));
  CHECK(result.result == kUpdateSuccess);
  gate.Open();
  stream.Synchronize();
  CHECK(memory[0] == 1 && memory[1] == 0);
  exec.Launch(stream);
  stream.Synchronize();
  CHECK(memory[0] == 1 && memory[1] == 2);
}

TEST("an update changes neither nodes nor edges") {
  TestStream stream;
  Pinned<unsigned> memory(2);
  std::atomic<int> runs{0};
  const auto capture = [&](int fills, int functions) {
    Begin(stream);
    for (int i = 0; i < fills; ++i) CHECK_OK(driver.MemsetD32Async(memory.pointer(), 1, 1, stream));
    for (int i = 0; i < functions; ++i) CHECK_OK(driver.LaunchHostFunc(stream, Increment, &runs));
    return End(stream);
  };
  TestGraph graph(capture(1, 0));
  TestGraph longer(capture(2, 0));
  TestGraph other(capture(0, 1));
  TestExec exec(graph);
  GraphUpdateResult result;
  CHECK(driver.GraphExecUpdate(exec, longer, &result) == kErrorGraphExecUpdateFailure);
  CHECK(result.result == kUpdateTopologyChanged);
  TestStream fork;
  TestEvent event;
  TestEvent join;
  Begin(stream);
  Fork(event, stream, fork);
  for (Stream each : {Stream(stream), Stream(fork)}) CHECK_OK(driver.MemsetD32Async(memory.pointer(), 1, 1, each));
  Fork(join, fork, stream);
  TestGraph wider(End(stream));
  TestExec longer_exec(longer);
  CHECK(driver.GraphExecUpdate(longer_exec, wider, &result) == kErrorGraphExecUpdateFailure);
  CHECK(result.result == kUpdateTopologyChanged);
  CHECK(driver.GraphExecUpdate(exec, other, &result) == kErrorGraphExecUpdateFailure);
  CHECK(result.result == kUpdateNodeTypeChanged && result.node != nullptr);
  exec.Launch(stream);
  stream.Synchronize();
  CHECK(memory[0] == 1 && runs == 0);
}

TEST("what belongs to a graph is destroyed after the last graph, executable graph and launch") {
  TestStream stream;
  std::atomic<int> destroyed{0};
  std::atomic<int> runs{0};
  UserObject object;
  CHECK(driver.UserObjectCreate(&object, &destroyed, Increment, 1, 0) == kErrorInvalidValue);
  CHECK_OK(driver.UserObjectCreate(&object, &destroyed, Increment, 1, kUserObjectNoDestructorSync));
  Begin(stream);
  CHECK_OK(driver.LaunchHostFunc(stream, Increment, &runs));
  int status;
  Graph captured;
  CHECK_OK(driver.StreamGetCaptureInfo(stream, &status, nullptr, &captured, nullptr, nullptr, nullptr));
  CHECK_OK(driver.GraphRetainUserObject(captured, object, 1, kUserObjectMove));
  CHECK(driver.UserObjectRelease(object, 1) == kErrorInvalidValue);
  TestGraph graph(End(stream));
  TestExec exec(graph);
  graph.Destroy();
  Gate gate;
  gate.Close(stream);
  exec.Launch(stream);
  exec.Destroy();
  SleepMilliseconds(10);
  CHECK(destroyed == 0);
  gate.Open();
  stream.Synchronize();
  CHECK(Eventually([&] { return destroyed == 1; }));
}

TEST("what belongs to a graph belongs to executable graphs that are made or updated from it later") {
  TestStream stream;
  std::atomic<int> destroyed[3] = {};
  const auto add = [&](Graph graph, int number) {
    UserObject object;
    CHECK_OK(driver.UserObjectCreate(&object, &destroyed[number], Increment, 1, kUserObjectNoDestructorSync));
    CHECK_OK(driver.GraphRetainUserObject(graph, object, 1, kUserObjectMove));
  };
  Begin(stream);
  TestGraph graph(End(stream));
  Begin(stream);
  TestGraph other(End(stream));
  add(graph, 0);
  TestExec exec(graph);
  add(graph, 1);
  add(other, 2);
  graph.Destroy();
  CHECK(Eventually([&] { return destroyed[1] == 1; }));
  CHECK(destroyed[0] == 0);
  GraphUpdateResult result;
  CHECK_OK(driver.GraphExecUpdate(exec, other, &result));
  CHECK(Eventually([&] { return destroyed[0] == 1; }));
  other.Destroy();
  SleepMilliseconds(10);
  CHECK(destroyed[2] == 0);
  exec.Destroy();
  CHECK(Eventually([&] { return destroyed[2] == 1; }));
}

TEST("what belongs to a graph is destroyed with a capture that fails") {
  TestStream stream;
  std::atomic<int> destroyed{0};
  UserObject object;
  CHECK_OK(driver.UserObjectCreate(&object, &destroyed, Increment, 2, kUserObjectNoDestructorSync));
  Begin(stream);
  int status;
  Graph captured;
  CHECK_OK(driver.StreamGetCaptureInfo(stream, &status, nullptr, &captured, nullptr, nullptr, nullptr));
  CHECK_OK(driver.GraphRetainUserObject(captured, object, 1, 0));
  CHECK(driver.StreamQuery(stream) == kErrorCaptureUnsupported);
  EndInvalid(stream);
  CHECK(driver.GraphRetainUserObject(captured, object, 1, 0) == kErrorInvalidValue);
  CHECK(destroyed == 0);
  CHECK(driver.UserObjectRelease(object, 3) == kErrorInvalidValue);
  CHECK_OK(driver.UserObjectRelease(object, 2));
  CHECK(Eventually([&] { return destroyed == 1; }));
}

TEST("the picture of a graph has its nodes and edges") {
  TestStream stream;
  Pinned<unsigned> memory(1);
  Begin(stream);
  for (int i = 0; i < 2; ++i) CHECK_OK(driver.MemsetD32Async(memory.pointer(), 1, 1, stream));
  TestGraph graph(End(stream));
  const std::string text = PictureOf(graph);
  CHECK(CountIn(text, "MEMSET") == 2 && CountIn(text, "->") == 1);
  CHECK(driver.GraphDebugDotPrint(graph, "/nowhere/at/all", 0) == kErrorOperatingSystem);
}

TEST("a graph that is a node of another one runs in its place, with its own order") {
  TestStream origin;
  TestStream fork;
  TestEvent event;
  TestEvent join;
  Pinned<int> memory(4);
  // [1] = [0], [2] = [1]; the second on another stream.
  Begin(origin);
  CHECK_OK(driver.MemcpyAsync(memory.pointer() + 4, memory.pointer(), 4, origin));
  Fork(event, origin, fork);
  CHECK_OK(driver.MemcpyAsync(memory.pointer() + 8, memory.pointer() + 4, 4, fork));
  Fork(join, fork, origin);
  TestGraph innermost(End(origin));
  Begin(origin);
  AddChild(origin, innermost);
  CHECK_OK(driver.MemcpyAsync(memory.pointer() + 12, memory.pointer() + 8, 4, origin));
  TestGraph inner(End(origin));
  CHECK(inner.Types() == std::vector<int>({kNodeGraph, kNodeCopy}));
  for (int value = 1; value <= 8; ++value) {
    Begin(origin);
    CHECK_OK(driver.MemsetD32Async(memory.pointer(), unsigned(value), 1, origin));
    AddChild(origin, inner);
    CHECK_OK(driver.MemsetD32Async(memory.pointer(), 0, 1, origin));
    TestGraph graph(End(origin));
    CHECK(graph.Types() == std::vector<int>({kNodeFill, kNodeGraph, kNodeFill}));
    RunInAnyOrder(true);
    TestExec exec(graph);
    exec.Launch(origin);
    RunInAnyOrder(false);
    origin.Synchronize();
    CHECK(memory[0] == 0 && memory[1] == value && memory[2] == value && memory[3] == value);
  }
  TestExec alone(inner);
  alone.Launch(origin);
  origin.Synchronize();
  CHECK(memory[3] == 0);
}

TEST("a child graph is a copy, which keeps what belonged to the graph") {
  TestStream stream;
  Pinned<unsigned> memory(1);
  std::atomic<int> destroyed[2] = {};
  const auto add = [&](Graph graph, int number) {
    UserObject object;
    CHECK_OK(driver.UserObjectCreate(&object, &destroyed[number], Increment, 1, kUserObjectNoDestructorSync));
    CHECK_OK(driver.GraphRetainUserObject(graph, object, 1, kUserObjectMove));
  };
  Begin(stream);
  CHECK_OK(driver.MemsetD32Async(memory.pointer(), 3, 1, stream));
  TestGraph child(End(stream));
  add(child, 0);
  Begin(stream);
  AddChild(stream, child);
  add(child, 1);
  child.Destroy();
  CHECK(Eventually([&] { return destroyed[1] == 1; }));
  TestGraph graph(End(stream));
  TestExec exec(graph);
  graph.Destroy();
  Gate gate;
  gate.Close(stream);
  exec.Launch(stream);
  exec.Destroy();
  SleepMilliseconds(10);
  CHECK(destroyed[0] == 0);
  gate.Open();
  stream.Synchronize();
  CHECK(memory[0] == 3);
  CHECK(Eventually([&] { return destroyed[0] == 1; }));
}

TEST("what cannot be a child graph is refused, and the capture stays valid") {
  TestStream stream;
  TestStream other;
  TestPool pool;
  Pinned<unsigned> memory(1);
  Begin(stream);
  FreeAsync(pool.Allocate(4096, stream), stream);
  TestGraph allocates(End(stream));
  Begin(stream);
  CHECK_OK(driver.MemsetD32Async(memory.pointer(), 1, 1, stream));
  TestGraph child(End(stream));
  Begin(other);
  CHECK_OK(driver.MemsetD32Async(memory.pointer(), 1, 1, other));
  const Graph unfinished = Frontier(other).graph;
  GraphNode of_other = *Frontier(other).nodes;

  Begin(stream);
  CHECK_OK(driver.MemsetD32Async(memory.pointer(), 1, 1, stream));
  const Graph graph = Frontier(stream).graph;
  GraphNode own[2] = {*Frontier(stream).nodes, *Frontier(stream).nodes};
  GraphNode node = nullptr;
  const auto add = driver.GraphAddChildGraphNode;
  CHECK(add(&node, graph, own, 1, allocates) == kErrorInvalidValue);
  CHECK(add(&node, graph, own, 1, unfinished) == kErrorIllegalState);
  CHECK(add(&node, graph, own, 1, graph) == kErrorIllegalState);
  CHECK(add(&node, graph, own, 2, child) == kErrorInvalidValue);
  CHECK(add(&node, graph, &of_other, 1, child) == kErrorInvalidValue);
  CHECK(add(&node, graph, nullptr, 1, child) == kErrorInvalidValue);
  CHECK(add(nullptr, graph, own, 1, child) == kErrorInvalidValue);
  const auto update = driver.StreamUpdateCaptureDependencies;
  CHECK(update(stream, own, 1, kSetDependencies + 1) == kErrorInvalidValue);
  CHECK(update(stream, nullptr, 1, kSetDependencies) == kErrorInvalidValue);
  CHECK(update(stream, &of_other, 1, kSetDependencies) == kErrorInvalidValue);
  CHECK_OK(update(stream, own, 1, kAddDependencies));
  CHECK(Frontier(stream).count == 1);
  EndValid(stream);
  CHECK(update(stream, own, 0, kSetDependencies) == kErrorIllegalState);
  CHECK(driver.StreamQuery(other) == kErrorCaptureUnsupported);
  CHECK(update(other, own, 0, kSetDependencies) == kErrorCaptureInvalidated);
  EndInvalid(other);
}

TEST("a child graph can be added in every mode of the thread") {
  TestStream stream;
  Begin(stream);
  TestGraph child(End(stream));
  for (const int mode : kModes) {
    const ThreadMode thread(mode);
    Begin(stream, kCaptureModeGlobal);
    AddChild(stream, child);
    EndValid(stream);
  }
}

TEST("a node that the caller added need not be joined, though a stream goes on from it") {
  TestStream origin;
  TestStream fork;
  TestEvent event;
  std::atomic<int> runs{0};
  Begin(origin);
  TestGraph child(End(origin));
  for (const bool goes_on : {false, true}) {
    Begin(origin);
    Fork(event, origin, fork);
    if (goes_on) {
      AddChild(fork, child);
    } else {
      const Frontier frontier(fork);
      GraphNode node = nullptr;
      CHECK_OK(driver.GraphAddChildGraphNode(&node, frontier.graph, frontier.nodes, frontier.count, child));
    }
    EndValid(origin);
  }
  // What the stream captures after that must be.
  Begin(origin);
  Fork(event, origin, fork);
  AddChild(fork, child);
  CHECK_OK(driver.LaunchHostFunc(fork, Increment, &runs));
  Graph graph = nullptr;
  CHECK(driver.StreamEndCapture(origin, &graph) == kErrorCaptureUnjoined);
  CHECK(graph == nullptr);
}

TEST("what the next node of a captured stream depends on can be added to and replaced") {
  TestStream stream;
  Pinned<unsigned> memory(1);
  GraphNode nodes[2];
  Begin(stream);
  for (GraphNode& node : nodes) {
    CHECK_OK(driver.MemsetD32Async(memory.pointer(), 1, 1, stream));
    node = *Frontier(stream).nodes;
  }
  const auto update = driver.StreamUpdateCaptureDependencies;
  CHECK_OK(update(stream, nodes, 1, kAddDependencies));
  CHECK(Frontier(stream).count == 2);
  CHECK_OK(update(stream, nodes, 1, kSetDependencies));
  CHECK(Frontier(stream).count == 1 && *Frontier(stream).nodes == nodes[0]);
  CHECK_OK(update(stream, nullptr, 0, kSetDependencies));
  CHECK(Frontier(stream).count == 0);
  EndValid(stream);
}

TEST("an update reaches into child graphs") {
  TestStream stream;
  Pinned<unsigned> memory(1);
  const auto capture = [&](unsigned value, int fills) {
    Begin(stream);
    for (int i = 0; i < fills; ++i) CHECK_OK(driver.MemsetD32Async(memory.pointer(), value, 1, stream));
    TestGraph child(End(stream));
    Begin(stream);
    AddChild(stream, child);
    return End(stream);
  };
  TestGraph graph(capture(1, 1));
  TestGraph other(capture(2, 1));
  TestGraph longer(capture(3, 2));
  TestExec exec(graph);
  GraphUpdateResult result;
  CHECK(driver.GraphExecUpdate(exec, longer, &result) == kErrorGraphExecUpdateFailure);
  CHECK(result.result == kUpdateTopologyChanged && result.node != nullptr);
  CHECK_OK(driver.GraphExecUpdate(exec, other, &result));
  exec.Launch(stream);
  stream.Synchronize();
  CHECK(memory[0] == 2);
}

#ifndef CISTERN_TEST_STRICT_DRIVER  // as above
TEST("a graph with a child that uses freed memory is not launched") {
  TestStream stream;
  const DevicePointer memory = AllocatePlain(4096);
  Begin(stream);
  CHECK_OK(driver.MemsetD8Async(memory, 1, 4096, stream));
  TestGraph child(End(stream));
  Begin(stream);
  AddChild(stream, child);
  TestGraph graph(End(stream));
  TestExec exec(graph);
  CHECK_OK(driver.MemFree(memory));
  CHECK(driver.GraphLaunch(exec, stream) == kErrorIllegalAddress);
}
#endif

TEST("the picture of a graph shows its child graphs") {
  TestStream stream;
  Pinned<unsigned> memory(1);
  Begin(stream);
  for (int i = 0; i < 2; ++i) CHECK_OK(driver.MemsetD32Async(memory.pointer(), 1, 1, stream));
  TestGraph child(End(stream));
  Begin(stream);
  for (int i = 0; i < 2; ++i) AddChild(stream, child);
  TestGraph graph(End(stream));
  const std::string text = PictureOf(graph);
  CHECK(CountIn(text, "GRAPH") == 2 && CountIn(text, "MEMSET") == 4 && CountIn(text, "subgraph") == 2 && CountIn(text, "->") == 3);
}

}  // namespace cistern::test
