#include "probes.h"

#include <cstring>
#include <thread>

#include "cuda/relaxed_mode_scope.h"

namespace cistern::kernels {
namespace {

constexpr std::size_t kBytes = 4096;

// What calls use that are in question; made before the capture, and destroyed after it.
struct Scene {
  DriverTable driver = {};
  Context context = nullptr;
  Stream stream = nullptr;   // captured
  Stream other = nullptr;    // not captured
  Event event = nullptr;     // recorded on a stream that is not captured
  Event captured = nullptr;  // recorded in an earlier capture
  Pool pool = nullptr;
  DevicePointer plain = 0;
  DevicePointer managed = 0;
  void* pinned = nullptr;
  Graph graph = nullptr;     // empty
  GraphExec exec = nullptr;  // of that graph
};

Status Find(DriverTable& driver,
            Status (*find)(const char* symbol, void** function, int version, unsigned long long flags, int* symbol_status)) {
  int version = 0;
  Status status = kSuccess;
  const auto resolve = [&](const char* symbol, int needed, void* member) {
    void* address = nullptr;
    int symbol_status = 0;
    if (version != 0 && needed > version) return;  // a driver before CUDA 12.2
    status = find(symbol, &address, needed, 1, &symbol_status);
    if (status == kSuccess && address == nullptr) status = kErrorNotFound;
    std::memcpy(member, &address, sizeof address);
  };
  resolve("cuDriverGetVersion", 2020, &driver.DriverGetVersion);
  if (status == kSuccess) status = driver.DriverGetVersion(&version);
#define CISTERN_RESOLVE(member, symbol, needed, parameters) \
  if (status == kSuccess) resolve(symbol, needed, &driver.member);
  CISTERN_DRIVER_FUNCTIONS(CISTERN_RESOLVE)
#undef CISTERN_RESOLVE
  return status;
}

// Runs a call on a thread of its own, in the same context.
template <typename Body>
Status Elsewhere(Scene& scene, Body&& body) {
  Status status = kErrorUnknown;
  std::thread([&] {
    scene.driver.CtxSetCurrent(scene.context);
    status = body();
  }).join();
  return status;
}

// Allocates on the other stream in relaxed mode, and frees in the mode of the thread.
Status FreeAsyncOnOther(Scene& s) {
  DevicePointer pointer = 0;
  Status status;
  {
    const RelaxedModeScope relaxed(&s.driver);
    status = s.driver.MemAllocFromPoolAsync(&pointer, kBytes, s.pool, s.other);
  }
  return status == kSuccess ? s.driver.MemFreeAsync(pointer, s.other) : status;
}

struct Question {
  const char* text;
  Status (*ask)(Scene& scene);
};

const Question kQuestions[] = {
    {"cuStreamGetFlags of the captured stream",
     [](Scene& s) {
       unsigned flags;
       return s.driver.StreamGetFlags(s.stream, &flags);
     }},
    {"cuStreamGetPriority of the captured stream",
     [](Scene& s) {
       int priority;
       return s.driver.StreamGetPriority(s.stream, &priority);
     }},
    {"cuStreamGetId of the captured stream",
     [](Scene& s) {
       unsigned long long id;
       return s.driver.StreamGetId(s.stream, &id);
     }},
    {"cuStreamGetCtx of the captured stream",
     [](Scene& s) {
       Context context;
       return s.driver.StreamGetCtx(s.stream, &context);
     }},
    {"cuStreamGetId of another stream",
     [](Scene& s) {
       unsigned long long id;
       return s.driver.StreamGetId(s.other, &id);
     }},
    {"cuStreamQuery of another stream", [](Scene& s) { return s.driver.StreamQuery(s.other); }},
    {"cuStreamSynchronize of another stream", [](Scene& s) { return s.driver.StreamSynchronize(s.other); }},
    {"cuEventQuery of an event from outside", [](Scene& s) { return s.driver.EventQuery(s.event); }},
    {"cuEventQuery of an event of an ended capture", [](Scene& s) { return s.driver.EventQuery(s.captured); }},
    {"cuStreamWaitEvent by the captured stream for an event of an ended capture",
     [](Scene& s) { return s.driver.StreamWaitEvent(s.stream, s.captured, 0); }},
    {"cuStreamWaitEvent by another stream for an event of an ended capture",
     [](Scene& s) { return s.driver.StreamWaitEvent(s.other, s.captured, 0); }},
    {"cuEventCreate and cuEventDestroy",
     [](Scene& s) {
       Event event;
       const Status status = s.driver.EventCreate(&event, kEventDisableTiming);
       return status == kSuccess ? s.driver.EventDestroy(event) : status;
     }},
    {"cuStreamCreateWithPriority and cuStreamDestroy",
     [](Scene& s) {
       Stream stream;
       const Status status = s.driver.StreamCreateWithPriority(&stream, kStreamNonBlocking, 0);
       return status == kSuccess ? s.driver.StreamDestroy(stream) : status;
     }},
    {"cuMemPoolGetAttribute",
     [](Scene& s) {
       std::uint64_t value;
       return s.driver.MemPoolGetAttribute(s.pool, kPoolUsedCurrent, &value);
     }},
    {"cuMemPoolTrimTo", [](Scene& s) { return s.driver.MemPoolTrimTo(s.pool, 0); }},
    {"cuMemPoolCreate and cuMemPoolDestroy",
     [](Scene& s) {
       PoolProperties properties = {};
       properties.alloc_type = kAllocationTypePinned;
       properties.location = {kLocationDevice, 0};
       Pool pool;
       const Status status = s.driver.MemPoolCreate(&pool, &properties);
       return status == kSuccess ? s.driver.MemPoolDestroy(pool) : status;
     }},
    {"cuMemAlloc and cuMemFree",
     [](Scene& s) {
       DevicePointer pointer;
       const Status status = s.driver.MemAlloc(&pointer, kBytes);
       return status == kSuccess ? s.driver.MemFree(pointer) : status;
     }},
    {"cuMemAlloc by another thread",
     [](Scene& s) {
       return Elsewhere(s, [&] {
         DevicePointer pointer;
         const Status status = s.driver.MemAlloc(&pointer, kBytes);
         return status == kSuccess ? s.driver.MemFree(pointer) : status;
       });
     }},
    {"cuMemAllocAsync and cuMemFreeAsync on another stream",
     [](Scene& s) {
       DevicePointer pointer;
       const Status status = s.driver.MemAllocFromPoolAsync(&pointer, kBytes, s.pool, s.other);
       return status == kSuccess ? s.driver.MemFreeAsync(pointer, s.other) : status;
     }},
    {"cuMemFreeAsync on another stream", FreeAsyncOnOther},
    {"cuMemFreeAsync on another stream by another thread", [](Scene& s) { return Elsewhere(s, [&] { return FreeAsyncOnOther(s); }); }},
    {"cuMemAllocAsync and cuMemFreeAsync on the captured stream",
     [](Scene& s) {
       DevicePointer pointer;
       const Status status = s.driver.MemAllocFromPoolAsync(&pointer, kBytes, s.pool, s.stream);
       return status == kSuccess ? s.driver.MemFreeAsync(pointer, s.stream) : status;
     }},
    {"cuMemcpyAsync on another stream", [](Scene& s) { return s.driver.MemcpyAsync(s.plain, s.managed, kBytes, s.other); }},
    {"cuEventRecord on another stream", [](Scene& s) { return s.driver.EventRecord(s.event, s.other); }},
    {"cuGraphInstantiate and cuGraphExecDestroy",
     [](Scene& s) {
       GraphExec exec = nullptr;
       const Status status = s.driver.GraphInstantiateWithFlags(&exec, s.graph, 0);
       return status == kSuccess ? s.driver.GraphExecDestroy(exec) : status;
     }},
    {"cuMemAddressReserve and cuMemAddressFree",
     [](Scene& s) {
       DevicePointer pointer;
       const Status status = s.driver.MemAddressReserve(&pointer, 2 << 20, 0, 0, 0);
       return status == kSuccess ? s.driver.MemAddressFree(pointer, 2 << 20) : status;
     }},
    {"cuMemPoolSetAttribute",
     [](Scene& s) {
       std::uint64_t value = 0;
       return s.driver.MemPoolSetAttribute(s.pool, kPoolReleaseThreshold, &value);
     }},
    {"cuMemFree of memory that the capture uses",
     [](Scene& s) {
       DevicePointer pointer = 0;
       int mode = kCaptureModeRelaxed;
       Status status = s.driver.ThreadExchangeStreamCaptureMode(&mode);
       if (status == kSuccess) status = s.driver.MemAlloc(&pointer, kBytes);
       if (status == kSuccess) status = s.driver.ThreadExchangeStreamCaptureMode(&mode);
       if (status == kSuccess) status = s.driver.MemsetD8Async(pointer, 1, kBytes, s.stream);
       return status == kSuccess ? s.driver.MemFree(pointer) : status;
     }},
    {"cuEventDestroy of an event of the capture",
     [](Scene& s) {
       Event event;
       int mode = kCaptureModeRelaxed;
       Status status = s.driver.ThreadExchangeStreamCaptureMode(&mode);
       if (status == kSuccess) status = s.driver.EventCreate(&event, kEventDisableTiming);
       if (status == kSuccess) status = s.driver.EventRecord(event, s.stream);
       if (status == kSuccess) status = s.driver.EventDestroy(event);
       const Status restored = s.driver.ThreadExchangeStreamCaptureMode(&mode);
       return status == kSuccess ? restored : status;
     }},
    {"cuMemcpyAsync on the legacy stream by another thread",
     [](Scene& s) { return Elsewhere(s, [&] { return s.driver.MemcpyAsync(s.plain, s.managed, kBytes, LegacyStream()); }); }},
    {"cuMemHostAlloc and cuMemFreeHost",
     [](Scene& s) {
       void* pointer;
       const Status status = s.driver.MemHostAlloc(&pointer, kBytes, 0);
       return status == kSuccess ? s.driver.MemFreeHost(pointer) : status;
     }},
    {"cuMemHostRegister and cuMemHostUnregister",
     [](Scene& s) {
       alignas(4096) static char memory[4096];
       const Status status = s.driver.MemHostRegister(memory, sizeof memory, 0);
       return status == kSuccess ? s.driver.MemHostUnregister(memory) : status;
     }},
    {"cuMemGetInfo",
     [](Scene& s) {
       std::size_t free;
       std::size_t total;
       return s.driver.MemGetInfo(&free, &total);
     }},
    {"cuPointerGetAttribute",
     [](Scene& s) {
       unsigned type;
       return s.driver.PointerGetAttribute(&type, kPointerMemoryType, s.plain);
     }},
    {"cuMemcpyAsync from pageable memory",
     [](Scene& s) {
       static char pageable[16];
       return s.driver.MemcpyAsync(s.plain, reinterpret_cast<DevicePointer>(pageable), sizeof pageable, s.stream);
     }},
    {"cuMemcpyAsync to pageable memory",
     [](Scene& s) {
       static char pageable[16];
       return s.driver.MemcpyAsync(reinterpret_cast<DevicePointer>(pageable), s.plain, sizeof pageable, s.stream);
     }},
    {"cuMemcpyPeerAsync within the device",
     [](Scene& s) { return s.driver.MemcpyPeerAsync(s.plain, s.context, s.plain + 64, s.context, 16, s.stream); }},
    {"cuStreamWaitValue32",
     [](Scene& s) { return s.driver.StreamWaitValue32(s.stream, reinterpret_cast<DevicePointer>(s.pinned), 0, kWaitValueGreaterOrEqual); }},
    {"cuMemPrefetchAsync",
     [](Scene& s) -> Status {
       if (s.driver.MemPrefetchAsync == nullptr) return kErrorNotSupported;
       return s.driver.MemPrefetchAsync(s.managed, kBytes, {kLocationDevice, 0}, 0, s.stream);
     }},
    {"cuMemAdvise",
     [](Scene& s) -> Status {
       if (s.driver.MemAdvise == nullptr) return kErrorNotSupported;
       return s.driver.MemAdvise(s.managed, kBytes, kAdviseSetReadMostly, {kLocationDevice, 0});
     }},
    {"cuMemFreeAsync of plain memory on the captured stream", [](Scene& s) { return s.driver.MemFreeAsync(s.plain, s.stream); }},
    {"cuLaunchHostFunc without a function", [](Scene& s) { return s.driver.LaunchHostFunc(s.stream, nullptr, nullptr); }},
    {"cuGraphLaunch on the captured stream", [](Scene& s) { return s.driver.GraphLaunch(s.exec, s.stream); }},
    {"cuGraphLaunch on another stream", [](Scene& s) { return s.driver.GraphLaunch(s.exec, s.other); }},
    {"cuEventRecord on the legacy stream by another thread",
     [](Scene& s) { return Elsewhere(s, [&] { return s.driver.EventRecord(s.event, LegacyStream()); }); }},
    {"cuStreamSynchronize of the legacy stream by another thread",
     [](Scene& s) { return Elsewhere(s, [&] { return s.driver.StreamSynchronize(LegacyStream()); }); }},
    {"cuStreamEndCapture by another thread",
     [](Scene& s) {
       return Elsewhere(s, [&] {
         Graph graph = nullptr;
         const Status status = s.driver.StreamEndCapture(s.stream, &graph);
         if (graph != nullptr) s.driver.GraphDestroy(graph);
         return status;
       });
     }},
};

Status MakeScene(Scene& s) {
  const DriverTable& driver = s.driver;
  PoolProperties properties = {};
  properties.alloc_type = kAllocationTypePinned;
  properties.location = {kLocationDevice, 0};
  Status status = driver.DevicePrimaryCtxRetain(&s.context, 0);
  const auto next = [&status](Status of_call) {
    if (status == kSuccess) status = of_call;
    return status == kSuccess;
  };
  next(driver.CtxSetCurrent(s.context)) && next(driver.StreamCreateWithPriority(&s.other, kStreamNonBlocking, 0)) &&
      next(driver.EventCreate(&s.event, kEventDisableTiming)) && next(driver.EventCreate(&s.captured, kEventDisableTiming)) &&
      next(driver.MemPoolCreate(&s.pool, &properties)) && next(driver.MemAlloc(&s.plain, kBytes)) &&
      next(driver.MemAllocManaged(&s.managed, kBytes, kMemAttachGlobal)) && next(driver.MemHostAlloc(&s.pinned, kBytes, 0)) &&
      next(driver.EventRecord(s.event, s.other)) && next(driver.StreamBeginCapture(s.other, kCaptureModeRelaxed)) &&
      next(driver.EventRecord(s.captured, s.other)) && next(driver.StreamEndCapture(s.other, &s.graph)) &&
      next(driver.GraphInstantiateWithFlags(&s.exec, s.graph, 0)) && next(driver.StreamSynchronize(s.other));
  return status;
}

void EndScene(Scene& s) {
  const DriverTable& driver = s.driver;
  driver.CtxSynchronize();
  if (s.exec != nullptr) driver.GraphExecDestroy(s.exec);
  if (s.graph != nullptr) driver.GraphDestroy(s.graph);
  if (s.pinned != nullptr) driver.MemFreeHost(s.pinned);
  if (s.managed != 0) driver.MemFree(s.managed);
  if (s.plain != 0) driver.MemFree(s.plain);
  if (s.pool != nullptr) driver.MemPoolDestroy(s.pool);
  for (Event event : {s.captured, s.event}) {
    if (event != nullptr) driver.EventDestroy(event);
  }
  if (s.other != nullptr) driver.StreamDestroy(s.other);
  driver.DevicePrimaryCtxRelease(0);
}

Status Ask(Scene& s, const Question& question, int mode, unsigned stream_flags, Answer* answer) {
  const DriverTable& driver = s.driver;
  Status status = driver.StreamCreateWithPriority(&s.stream, stream_flags, 0);
  if (status == kSuccess) status = driver.StreamBeginCapture(s.stream, mode);
  if (status != kSuccess) return status;
  answer->status = question.ask(s);
  status = driver.StreamIsCapturing(s.stream, &answer->capture);
  Graph graph = nullptr;
  answer->end = driver.StreamEndCapture(s.stream, &graph);
  if (graph != nullptr) driver.GraphDestroy(graph);
  if (status == kSuccess) status = driver.StreamDestroy(s.stream);
  return status;
}

}  // namespace

std::vector<Answer> AskAboutCaptures(Status (*find)(const char* symbol, void** function, int version, unsigned long long flags,
                                                    int* symbol_status)) {
  Scene scene;
  Context before = nullptr;
  Status status = Find(scene.driver, find);
  if (status != kSuccess) return {{"finding the functions of the driver", "", status, kCaptureNone, kSuccess}};
  scene.driver.CtxGetCurrent(&before);
  std::vector<Answer> answers;
  const char* const modes[] = {"global", "thread-local", "relaxed"};
  status = MakeScene(scene);
  for (const Question& question : kQuestions) {
    for (int mode = kCaptureModeGlobal; mode <= kCaptureModeRelaxed; ++mode) {
      for (const unsigned flags : {unsigned{kStreamNonBlocking}, unsigned{kStreamDefault}}) {
        Answer answer;
        answer.question = question.text;
        answer.mode = modes[mode];
        if (flags == kStreamDefault) answer.mode += ", blocking";
        if (status == kSuccess) status = Ask(scene, question, mode, flags, &answer);
        if (status == kSuccess) answers.push_back(std::move(answer));
      }
    }
  }
  if (status != kSuccess) answers = {{"a call that is not in question", "", status, kCaptureNone, kSuccess}};
  EndScene(scene);
  scene.driver.CtxSetCurrent(before);
  return answers;
}

}  // namespace cistern::kernels
