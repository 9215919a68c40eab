#include "cuda/asleep_table.h"

#include <atomic>
#include <functional>
#include <mutex>
#include <new>
#include <thread>
#include <vector>

#include "cuda/native_status.h"
#include "platform/lasting.h"

namespace cistern {
namespace {

enum class Phase { kAwake, kFalling, kAsleep };

struct KeptCall {
  Context context;  // of the thread that made it
  std::function<Status()> make;
};

struct Sleep {
  std::atomic<const DriverTable*> backend{nullptr};  // null: awake
  std::atomic<const DriverTable*> next{nullptr};     // stays after the sleep, for calls that come late
  std::atomic<Phase> phase{Phase::kAwake};
  std::atomic<int> scopes{0};
  std::mutex mutex;  // guards the calls, and the end of the sleep
  std::vector<KeptCall> kept;
};

Sleep& TheSleep() {
  static Lasting<Sleep> sleep;
  return *sleep;
}

// The contexts that calls have made current in the meantime.
thread_local Context context_meanwhile = nullptr;

enum class Kind { kRefused, kForwarded, kQuery, kWait, kKept };

constexpr Kind KindOf(Call call) {
  switch (call) {
    case Call::kDriverGetVersion:
    case Call::kGetErrorName:
    case Call::kGetErrorString:
    case Call::kCheckpointProcessGetState:
    case Call::kCheckpointProcessLock:
    case Call::kCheckpointProcessCheckpoint:
    case Call::kCheckpointProcessRestore:
    case Call::kCheckpointProcessUnlock:
      return Kind::kForwarded;
    case Call::kStreamQuery:
    case Call::kEventQuery:
      return Kind::kQuery;
    case Call::kCtxSynchronize:
    case Call::kStreamSynchronize:
    case Call::kEventSynchronize:
    case Call::kStreamWaitEvent:
      return Kind::kWait;
    case Call::kEventRecord:
    case Call::kStreamDestroy:
    case Call::kEventDestroy:
    case Call::kGraphDestroy:
    case Call::kGraphExecDestroy:
    case Call::kUserObjectRelease:
    case Call::kMemFree:
    case Call::kMemFreeAsync:
    case Call::kMemFreeHost:
    case Call::kMemPoolTrimTo:
    case Call::kMemPoolDestroy:
    case Call::kMemUnmap:
    case Call::kMemRelease:
    case Call::kMemAddressFree:
    case Call::kIpcCloseMemHandle:
      return Kind::kKept;
    default:
      // cuMemHostUnregister, too: the program may unmap that memory right after it.
      return Kind::kRefused;
  }
}

Status Keep(std::function<Status()> call) {
  Sleep& sleep = TheSleep();
  const std::lock_guard<std::mutex> lock(sleep.mutex);
  if (sleep.phase == Phase::kAwake) return call();
  sleep.kept.push_back({context_meanwhile, std::move(call)});
  return kSuccess;
}

template <Call call, auto member, typename Function>
struct Asleep;
template <Call call, auto member, typename... Parameters>
struct Asleep<call, member, Status (*)(Parameters...)> {
  static Status Invoke(Parameters... parameters) {
    Sleep& sleep = TheSleep();
    const DriverTable* next = sleep.next;
    const Phase phase = sleep.phase;
    if (phase == Phase::kAwake) return (next->*member)(parameters...);
    switch (KindOf(call)) {
      case Kind::kForwarded:
        return (next->*member)(parameters...);
      case Kind::kQuery:
        return phase == Phase::kAsleep ? kSuccess : kErrorNotReady;
      case Kind::kWait:
        return phase == Phase::kAsleep ? Status{kSuccess} : kAsleep;
      case Kind::kKept:
        try {
          return Keep([=] { return (next->*member)(parameters...); });
        } catch (const std::bad_alloc&) {
          return kHostOutOfMemory;
        }
      case Kind::kRefused:
        break;
    }
    return kAsleep;
  }
};

template <typename... Parameters>
bool IsAwake(Status (*const DriverTable::*member)(Parameters...), Status* status, Parameters... parameters) {
  Sleep& sleep = TheSleep();
  if (sleep.phase != Phase::kAwake) return false;
  *status = (sleep.next.load()->*member)(parameters...);
  return true;
}

Status CtxGetCurrent(Context* context) {
  Status status;
  if (IsAwake(&DriverTable::CtxGetCurrent, &status, context)) return status;
  *context = context_meanwhile;
  return kSuccess;
}

Status CtxSetCurrent(Context context) {
  Status status;
  if (IsAwake(&DriverTable::CtxSetCurrent, &status, context)) return status;
  context_meanwhile = context;
  return kSuccess;
}

// Nothing can be captured.
Status StreamIsCapturing(Stream stream, int* capture) {
  Status status;
  if (IsAwake(&DriverTable::StreamIsCapturing, &status, stream, capture)) return status;
  *capture = kCaptureNone;
  return kSuccess;
}

// Whoever exchanges it, exchanges it again at the end of its scope.
Status ThreadExchangeStreamCaptureMode(int* mode) {
  Status status;
  if (IsAwake(&DriverTable::ThreadExchangeStreamCaptureMode, &status, mode)) return status;
  return kSuccess;
}

DriverTable Make() {
  DriverTable table = {
#define CISTERN_ASLEEP(member, symbol, version, parameters) \
  Asleep<Call::k##member, &DriverTable::member, decltype(DriverTable::member)>::Invoke,
      CISTERN_DRIVER_FUNCTIONS(CISTERN_ASLEEP)
#undef CISTERN_ASLEEP
  };
  table.CtxGetCurrent = CtxGetCurrent;
  table.CtxSetCurrent = CtxSetCurrent;
  table.StreamIsCapturing = StreamIsCapturing;
  table.ThreadExchangeStreamCaptureMode = ThreadExchangeStreamCaptureMode;
  return table;
}

}  // namespace

const DriverTable* AsleepTable() {
  static const DriverTable table = Make();
  return &table;
}

bool IsAsleep(const DriverTable* backend) { return TheSleep().backend == backend; }

bool BeginSleep(const DriverTable* backend, const DriverTable* next) {
  Sleep& sleep = TheSleep();
  {
    const std::lock_guard<std::mutex> lock(sleep.mutex);
    if (sleep.backend != nullptr) return false;
    sleep.next = next;
    sleep.phase = Phase::kFalling;
    sleep.backend = backend;
  }
  while (sleep.scopes != 0) std::this_thread::yield();
  return true;
}

void FallAsleep() { TheSleep().phase = Phase::kAsleep; }

void EndSleep() {
  Sleep& sleep = TheSleep();
  const std::lock_guard<std::mutex> lock(sleep.mutex);
  const DriverTable& next = *sleep.next;
  Context before = nullptr;
  if (!sleep.kept.empty()) next.CtxGetCurrent(&before);
  // Whoever made such a call was told that it succeeds, and what fails here would have failed then.
  for (const KeptCall& call : sleep.kept) {
    if (call.context != nullptr) next.CtxSetCurrent(call.context);
    call.make();
  }
  if (!sleep.kept.empty()) next.CtxSetCurrent(before);
  sleep.kept.clear();
  sleep.phase = Phase::kAwake;
  sleep.backend = nullptr;
}

AwakeScope::AwakeScope(const DriverTable* backend) {
  TheSleep().scopes += 1;
  is_awake_ = !IsAsleep(backend);
}

AwakeScope::~AwakeScope() { TheSleep().scopes -= 1; }

}  // namespace cistern
