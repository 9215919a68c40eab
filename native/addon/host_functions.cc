#include "addon/host_functions.h"

#include <algorithm>
#include <chrono>
#include <list>
#include <new>
#include <set>
#include <thread>
#include <utility>

#include "addon/bindings.h"
#include "addon/captures.h"
#include "addon/completions.h"
#include "addon/gates.h"
#include "addon/order.h"
#include "addon/stopped_calls.h"

namespace cistern {
namespace {

// The number of generations of queued host functions that an allocation waits for. Without the
// wait, a driver that waits for the device inside the allocation would never return. After these it
// is made nevertheless, since host functions that each queue the next one would delay it forever.
constexpr int kMostGenerations = 8;

void Release(QueuedFunction* function) {
  if (--function->owners == 0) delete function;
}

// Gives a function to JavaScript, unless JavaScript has it already or has let go of it. The loop's
// mutex must be held.
bool Announce(QueuedFunction* function) {
  EventLoop& loop = *function->loop;
  if (loop.closed || function->is_called) return false;
  function->is_called = true;
  loop.ready_host_functions.Append(function);
  loop.for_javascript.notify_all();
  loop.PostWake();
  return true;
}

// The next four run on a driver thread.

void SayTurn(void* data) {
  QueuedFunction* function = static_cast<QueuedFunction*>(data);
  const std::shared_ptr<EventLoop> loop = function->loop;
  {
    const std::lock_guard<std::mutex> lock(loop->mutex);
    Announce(function);
  }
  Release(function);
}

void SayTurnAndWait(void* data) {
  QueuedFunction* function = static_cast<QueuedFunction*>(data);
  const std::shared_ptr<EventLoop> loop = function->loop;
  {
    std::unique_lock<std::mutex> lock(loop->mutex);
    if (Announce(function)) WaitAtGate(lock, *function->gate);
  }
  Release(function);
}

void SayTurnOfNodeAndWait(void* data) {
  HostNode* node = static_cast<HostNode*>(data);
  const std::shared_ptr<EventLoop> loop = node->loop;
  QueuedFunction* function = nullptr;
  while ((function = new (std::nothrow) QueuedFunction) == nullptr) std::this_thread::sleep_for(std::chrono::milliseconds{1});
  function->loop = loop;
  function->node = node;
  {
    std::unique_lock<std::mutex> lock(loop->mutex);
    if (Announce(function)) {
      loop->for_streams.wait(lock, [&] { return function->has_run || loop->closed; });
    } else {
      Release(function);
    }
  }
  Release(function);
}

void WaitForRelease(void* data) {
  const std::unique_ptr<std::shared_ptr<Gate>> owner(static_cast<std::shared_ptr<Gate>*>(data));
  const std::shared_ptr<EventLoop> loop = (*owner)->loop;
  std::unique_lock<std::mutex> lock(loop->mutex);
  WaitAtGate(lock, **owner);
}

// CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED and those after it: errors of a capture that another
// library makes, not of the device.
bool IsOfCapture(Status status) { return status >= 900 && status < 911; }

// Waits until a host function is ready, or until none ever will be because the process ends.
void WaitUntilReady(Environment& environment) {
  EventLoop& loop = *environment.loop;
  std::unique_lock<std::mutex> lock(loop.mutex);
  loop.for_javascript.wait(lock, [&] { return loop.closed || !loop.ready_host_functions.empty(); });
}

std::uint64_t OldestOutstanding(EventLoop& loop) {
  const std::lock_guard<std::mutex> lock(loop.mutex);
  std::uint64_t oldest = UINT64_MAX;
  for (const QueuedFunction* function : loop.outstanding_host_functions) oldest = std::min(oldest, function->number);
  return oldest;
}

void Remove(std::vector<QueuedFunction*>& functions, QueuedFunction* function) {
  const auto found = std::find(functions.begin(), functions.end(), function);
  if (found == functions.end()) return;
  *found = functions.back();
  functions.pop_back();
}

// Releases the stream. Not for a function that the environment has forgotten.
void EndHostFunction(Environment& environment, QueuedFunction* function) {
  environment.outstanding_host_functions -= 1;
  stalls.EndHostFunctions();
  function->callback.Reset();
  if (function->gate != nullptr) function->gate->Open();
  {
    EventLoop& loop = *environment.loop;
    const std::lock_guard<std::mutex> lock(loop.mutex);
    Remove(loop.outstanding_host_functions, function);
  }
  Release(function);
  environment.LetGo();
}

// Neither its turn nor its loss will be told to JavaScript any more.
void Withdraw(Environment& environment, QueuedFunction* function) {
  EventLoop& loop = *environment.loop;
  const std::lock_guard<std::mutex> lock(loop.mutex);
  function->is_called = true;
  loop.ready_host_functions.Remove(function);
}

// What comes before a turn has run; if several executable graphs can be the one that runs, what comes before
// any of their turns, so that nothing in order is reported.
void NoteHostReached(const Environment& environment, const HostNode& node) {
  if (OrderCheckerOf(environment) == nullptr) return;
  for (auto turn = node.turns.begin(); turn != node.turns.end(); ++turn) {
    const auto is_same = [&](const HostNode::Turn& other) { return other.exec == turn->exec; };
    if (std::none_of(node.turns.begin(), turn, is_same)) NoteHostReached(environment, turn->position);
  }
}

// Releases the stream, and the launch with the last of its turns.
void EndTurn(Environment& environment, QueuedFunction* function) {
  HostNode& node = *function->node;
  {
    EventLoop& loop = *function->loop;
    const std::lock_guard<std::mutex> lock(loop.mutex);
    function->has_run = true;
    loop.for_streams.notify_all();
  }
  Release(function);
  // Another library has launched the graph.
  if (node.turns.empty()) return;
  QueuedFunction* launch = node.turns.front().launch;
  node.turns.pop_front();
  if (launch->turns > 0 && --launch->turns == 0) {
    Withdraw(environment, launch);
    EndHostFunction(environment, launch);
  }
  Release(launch);
}

void Run(Environment& environment, QueuedFunction* function) {
  const Napi::Env env = environment.env;
  // No other thread changes it from here on.
  const Status status = function->status;
  const bool is_of_node = function->node != nullptr;
  if (is_of_node) {
    NoteHostReached(environment, *function->node);
  } else if (status == kSuccess) {
    NoteHostReached(environment, function->position);
  }
  const Napi::FunctionReference& callback = is_of_node ? function->node->callback : function->callback;
  const napi_value argument = Napi::Number::New(env, status);
  napi_value error = nullptr;
  environment.running_host_functions += 1;
  // Not Napi::Function::Call, which ends the process if the function is cut off: docs/design/001.
  if (napi_call_function(env, env.Undefined(), callback.Value(), 1, &argument, nullptr) != napi_ok && env.IsExceptionPending()) {
    napi_get_and_clear_last_exception(env, &error);
  }
  environment.running_host_functions -= 1;
  if (is_of_node) {
    EndTurn(environment, function);
  } else {
    function->turns = 0;
    EndHostFunction(environment, function);
  }
  // Last, since a handler of uncaught exceptions may end the process. If a function is cut off,
  // that is not its own exception: Node 22 and later show it as null, which functions do not throw.
  if (error != nullptr && !Napi::Value(env, error).IsNull() && MayRunJavaScript(env)) napi_fatal_exception(env, error);
}

// A function that can be launched on a stream, whose context is current.
Status PrepareHostFunction(Environment& environment, const StreamEntry& stream, const Napi::Value& callback, std::shared_ptr<Gate> gate,
                           std::unique_ptr<QueuedFunction>* prepared) {
  if (!StartPoller(environment)) return kHostOutOfMemory;
  if (!environment.MayStall()) environment.staging.Reserve(environment.own_calls());
  auto function = std::make_unique<QueuedFunction>();
  function->loop = environment.loop;
  function->gate = std::move(gate);
  function->number = environment.launched_host_functions += 1;
  function->position = PositionBeforeNext(environment, stream.stream);
  environment.ContextOf(stream.device, &function->context);
  const Status status = environment.WitnessOf(stream.device, &function->witness);
  if (status != kSuccess) return status;
  {
    const std::lock_guard<std::mutex> lock(environment.loop->mutex);
    std::vector<QueuedFunction*>& outstanding = environment.loop->outstanding_host_functions;
    if (outstanding.size() == outstanding.capacity()) outstanding.reserve(2 * outstanding.size() + 8);
  }
  function->callback = Napi::Persistent(callback.As<Napi::Function>());
  *prepared = std::move(function);
  return kSuccess;
}

// The driver has a prepared function, too.
void NoteOutstanding(Environment& environment, QueuedFunction* function) {
  environment.outstanding_host_functions += 1;
  environment.KeepAlive();
  EventLoop& loop = *environment.loop;
  const std::lock_guard<std::mutex> lock(loop.mutex);
  loop.outstanding_host_functions.push_back(function);
  if (loop.outstanding_host_functions.size() == 1) loop.for_poller.notify_one();
}

Status CaptureHostFunction(Environment& environment, const StreamEntry& stream, Graph graph, std::uint64_t capture,
                           const Napi::Value& callback) {
  // Its function may launch others, and must not allocate then.
  Status status = ReserveGate(environment);
  if (status != kSuccess) return status;
  auto owner = std::make_unique<HostNode>(environment);
  owner->callback = Napi::Persistent(callback.As<Napi::Function>());
  environment.host_nodes.insert(owner.get());
  HostNode* node = owner.release();
  // First, so that no node is without its function.
  status = AttachToGraph(environment, graph, node);
  if (status != kSuccess) return status;
  status = environment.Counted<Call::kLaunchHostFunc>(stream.stream, SayTurnOfNodeAndWait, static_cast<void*>(node));
  if (status == kSuccess) NoteCapturedFunctions(capture, {node});
  return status;
}

}  // namespace

bool MayRunJavaScript(Napi::Env env) {
  napi_value text;
  return napi_coerce_to_string(env, Napi::Number::New(env, 0), &text) == napi_ok;
}

int RunReadyHostFunctions(Environment& environment) {
  EventLoop& loop = *environment.loop;
  int limit;
  {
    const std::lock_guard<std::mutex> lock(loop.mutex);
    limit = loop.ready_host_functions.Count();
  }
  int ran = 0;
  // A function that becomes ready meanwhile has its turn later: functions that each queue the next
  // one must not starve the event loop.
  for (; ran < limit; ++ran) {
    const Napi::HandleScope scope(environment.env);
    if (!MayRunJavaScript(environment.env)) break;
    QueuedFunction* function;
    {
      const std::lock_guard<std::mutex> lock(loop.mutex);
      function = loop.ready_host_functions.TakeFirst();
    }
    if (function == nullptr) break;
    Run(environment, function);
  }
  return ran;
}

void FailLostHostFunctions(EventLoop& loop, const DriverTable& driver, Context* current, std::unique_lock<std::mutex>& lock) {
  struct Look {
    Context context;
    Event witness;
    Status status;
  };
  std::vector<Look> contexts;
  for (const QueuedFunction* function : loop.outstanding_host_functions) {
    if (function->is_called) continue;
    const auto is_same = [function](const Look& look) { return look.context == function->context; };
    if (std::none_of(contexts.begin(), contexts.end(), is_same)) contexts.push_back({function->context, function->witness, kSuccess});
  }
  if (contexts.empty()) return;
  loop.poller_in_driver = true;
  lock.unlock();
  for (auto& [context, witness, status] : contexts) {
    const AwakeScope awake(&driver);
    status = awake.is_awake() ? MakeCurrent(driver, context, current) : Status{kErrorNotReady};
    // Not the legacy stream: a query of it would invalidate captures of blocking streams.
    if (status == kSuccess) status = driver.EventQuery(witness);
  }
  lock.lock();
  loop.poller_in_driver = false;
  loop.for_close.notify_all();
  if (loop.closed) return;
  for (const auto& [context, witness, status] : contexts) {
    if (status == kSuccess || status == kErrorNotReady || IsOfCapture(status)) continue;
    for (QueuedFunction* function : loop.outstanding_host_functions) {
      if (function->context != context || function->is_called) continue;
      function->status = status;
      Announce(function);
    }
  }
}

HostNode::~HostNode() {
  for (const Turn& turn : turns) Release(turn.launch);
}

void HostNode::End(Environment& environment) {
  environment.host_nodes.erase(this);
  delete this;
}

void HostNode::EndAlone() {
  if (--owners == 0) delete this;
}

void ForgetTurn(QueuedFunction* function) {
  if (function->node != nullptr) Release(function);
}

void ForgetHostFunctions(Environment& environment) {
  for (HostNode* node : environment.host_nodes) {
    node->callback.Reset();
    node->EndAlone();
  }
  environment.host_nodes.clear();
  EventLoop& loop = *environment.loop;
  std::vector<QueuedFunction*> functions;
  {
    const std::lock_guard<std::mutex> lock(loop.mutex);
    functions.swap(loop.outstanding_host_functions);
  }
  for (QueuedFunction* function : functions) {
    function->callback.Reset();
    Release(function);
  }
}

Status BeforeWaitingForDevice(Environment& environment) {
  if (environment.outstanding_host_functions == 0) return kSuccess;
  if (environment.running_host_functions > 0) return kErrorNotPermitted;
  WaitUntilReady(environment);
  return HostFunctionIsReady(*environment.loop) ? kHostFunctionReady : kSuccess;
}

Status BeforeAllocating(Environment& environment) {
  if (environment.outstanding_host_functions > 0) {
    if (environment.running_host_functions > 0) return kErrorNotPermitted;
    if (environment.unreleased_holds > 0) return kSuccess;
    StoppedAllocation& stopped = environment.stopped_allocation;
    if (stopped.next_call != environment.calls) stopped = {environment.launched_host_functions, 0, 0};
    if (OldestOutstanding(*environment.loop) > stopped.last_function) {
      if (stopped.generations == kMostGenerations) return kSuccess;
      stopped.generations += 1;
      stopped.last_function = environment.launched_host_functions;
    }
    const Status status = BeforeWaitingForDevice(environment);
    if (status == kHostFunctionReady) stopped.next_call = environment.calls + 1;
    return status;
  }
  if (environment.unreleased_holds == 0) stalls.AwaitHostFunctions();
  return kSuccess;
}

Status LaunchHostFunctions(Environment& environment, const GraphExecEntry& exec, const StreamEntry& stream, const Napi::Value& callback) {
  if (!callback.IsFunction()) return kInvalidArgument;
  std::unique_ptr<QueuedFunction> owner;
  Status status = PrepareHostFunction(environment, stream, callback, nullptr, &owner);
  if (status != kSuccess) return status;
  owner->turns = exec.functions.size();
  owner->owners = 1 + static_cast<int>(owner->turns);
  // Whatever can fail comes before the launch, which cannot be taken back.
  std::list<HostNode::Turn> turns(owner->turns, {owner.get(), exec.exec, {}});
  stalls.BeginHostFunction();
  status = environment.Counted<Call::kGraphLaunch>(exec.exec, stream.stream);
  if (status != kSuccess) {
    stalls.EndHostFunctions();
    return status;
  }
  std::vector<order::Position> positions = TakePositionsOfLaunch(environment);
  // Another number if stream order was not checked during all of the capture.
  if (positions.size() == turns.size()) {
    auto position = positions.begin();
    for (HostNode::Turn& turn : turns) turn.position = std::move(*position++);
  }
  for (HostNode* node : exec.functions) node->turns.splice(node->turns.end(), turns, turns.begin());
  NoteOutstanding(environment, owner.release());
  return kSuccess;
}

Status LaunchHostFunction(Environment& environment, const Napi::CallbackInfo& info) {
  if (!info[0].IsNumber() || !info[1].IsFunction()) return kInvalidArgument;
  StreamEntry* entry;
  Status status = FindStream(environment, info[0], &entry);
  if (status != kSuccess) return status;
  const StreamEntry stream = *entry;
  const RelaxedContextScope context(environment, stream.device);
  if (context.status() != kSuccess) return context.status();
  Graph graph;
  std::uint64_t capture;
  status = CapturedGraphForJavaScript(environment, stream, &graph, &capture);
  if (status != kSuccess) return status;
  if (graph != nullptr) return CaptureHostFunction(environment, stream, graph, capture, info[1]);

  std::shared_ptr<Gate> gate;
  std::unique_ptr<QueuedFunction> owner;
  status = MakeGate(environment, stream, &gate);
  if (status == kSuccess) status = PrepareHostFunction(environment, stream, info[1], gate, &owner);
  if (status != kSuccess) return status;
  QueuedFunction* function = owner.get();
  const bool has_word = gate->word.word != nullptr;
  gate->Shut();
  stalls.BeginHostFunction();
  status = environment.Counted<Call::kLaunchHostFunc>(stream.stream, has_word ? SayTurn : SayTurnAndWait, static_cast<void*>(function));
  if (status != kSuccess) {
    stalls.EndHostFunctions();
    gate->Open();
    return status;
  }
  NoteOutstanding(environment, owner.release());
  if (has_word) status = QueueGate(environment, stream, *gate);
  if (status != kSuccess) {
    // Nothing would hold the stream, so the function must not run: what is queued of it then
    // announces nothing.
    Withdraw(environment, function);
    EndHostFunction(environment, function);
  }
  return status;
}

Status RunHostFunctions(Environment& environment, const Napi::CallbackInfo&) {
  const StoppedCall stopped = SetStoppedCallAside(environment);
  const StoppedAllocation allocation = environment.stopped_allocation;
  const bool will_allocate = allocation.next_call == environment.calls;
  const int ran = RunReadyHostFunctions(environment);
  ResumeStoppedCall(environment, stopped);
  if (will_allocate) environment.stopped_allocation = {allocation.last_function, allocation.generations, environment.calls + 1};
  environment.Out(1, ran);
  return kSuccess;
}

Status WaitForHostFunction(Environment& environment, const Napi::CallbackInfo&) {
  if (environment.outstanding_host_functions == environment.running_host_functions) return kSuccess;
  // Called by a host function, this would wait for functions that may be queued behind that very
  // function.
  if (environment.running_host_functions > 0) return HostFunctionIsReady(*environment.loop) ? kSuccess : kErrorNotPermitted;
  WaitUntilReady(environment);
  return kSuccess;
}

Status ReleaseAllStalls(Environment&, const Napi::CallbackInfo&) {
  CloseEventLoops();
  return kSuccess;
}

Status OutstandingHostFunctions(Environment& environment) {
  environment.Out(1, environment.outstanding_host_functions);
  return kSuccess;
}

Status HoldStream(Environment& environment, const Napi::CallbackInfo& info) {
  StreamEntry* entry;
  Status status = FindUncapturedStream(environment, info[0], &entry);
  if (status != kSuccess) return status;
  const StreamEntry stream = *entry;
  const RelaxedContextScope context(environment, stream.device);
  if (context.status() != kSuccess) return context.status();

  std::shared_ptr<Gate> gate;
  status = MakeGate(environment, stream, &gate);
  if (status != kSuccess) return status;
  auto owner = std::make_unique<std::shared_ptr<Gate>>(gate);
  const std::uint64_t hold_handle = environment.holds.Add(gate);
  if (hold_handle == 0) return kHostOutOfMemory;
  gate->Shut();
  stalls.BeginHold();
  const bool has_word = gate->word.word != nullptr;
  status = has_word ? QueueGate(environment, stream, *gate)
                    : environment.Counted<Call::kLaunchHostFunc>(stream.stream, WaitForRelease, static_cast<void*>(owner.get()));
  if (status != kSuccess) {
    stalls.EndHolds();
    gate->Open();
    environment.holds.Remove(hold_handle);
    return status;
  }
  if (!has_word) owner.release();
  environment.unreleased_holds += 1;
  environment.Out(1, static_cast<double>(hold_handle));
  return kSuccess;
}

Status ReleaseHold(Environment& environment, const Napi::CallbackInfo& info) {
  double handle;
  if (!ReadNumber(info[0], &handle)) return kInvalidArgument;
  std::shared_ptr<Gate>* hold;
  const Status status = environment.holds.Find(handle, &hold);
  if (status != kSuccess) return status;
  (*hold)->Open();
  environment.holds.Remove(static_cast<std::uint64_t>(handle));
  environment.unreleased_holds -= 1;
  stalls.EndHolds();
  return kSuccess;
}

}  // namespace cistern
