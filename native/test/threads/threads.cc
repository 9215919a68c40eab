// Threads of an addon, for tests: each waits for calls of a thread-safe resource that JavaScript asks for, one at a
// time, so that a program of calls on several threads runs the same way each time.
#include <cistern.h>
#include <napi.h>

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "deliveries.h"

namespace {

class Thread {
 public:
  Thread() : thread_([this] { Work(); }) {}
  ~Thread() {
    Run(nullptr);
    thread_.join();
  }
  Thread(const Thread&) = delete;
  Thread& operator=(const Thread&) = delete;

  // Runs a task on the thread, and waits for it. Null ends the thread.
  void Run(std::function<void()> task) {
    std::unique_lock<std::mutex> lock(mutex_);
    task_ = std::move(task);
    is_asked_ = true;
    changed_.notify_all();
    changed_.wait(lock, [this] { return !is_asked_; });
  }

 private:
  void Work() {
    std::unique_lock<std::mutex> lock(mutex_);
    for (bool goes_on = true; goes_on;) {
      changed_.wait(lock, [this] { return is_asked_; });
      goes_on = task_ != nullptr;
      if (goes_on) task_();
      is_asked_ = false;
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::function<void()> task_;
  bool is_asked_ = false;
  std::thread thread_;
};

// What a thread has allocated for JavaScript, or why it has not. It frees what no buffer has taken over.
struct Delivered {
  Delivered(const cistern_thread_safe_resource* from, std::uint64_t size, std::uint64_t on, double waiting)
      : table(from), bytes(size), stream(on), number(waiting) {}
  Delivered(const Delivered&) = delete;
  ~Delivered() {
    if (pointer != 0) table->deallocate(table->state, pointer, bytes, 256, stream);
    table->release(table->state);
  }
  void Allocate() {
    if (table->allocate(table->state, bytes, 256, stream, &pointer) != CISTERN_OK) reason = table->last_error(table->state);
  }

  const cistern_thread_safe_resource* const table;
  const std::uint64_t bytes, stream;
  const double number;  // of who waits for it
  std::uint64_t pointer = 0;
  std::string reason;
};

// Who waits for a delivery.
struct Waiting {
  Napi::ObjectReference resource;
  Napi::FunctionReference callback;
};

// What an environment has.
struct State {
  cistern_interface interface = {sizeof(cistern_interface), nullptr};
  double last = 0;
  std::map<double, const cistern_thread_safe_resource*> tables;
  std::map<double, std::unique_ptr<Thread>> threads;
  std::map<double, Waiting> waiting;
  std::shared_ptr<Deliveries<Delivered>> deliveries;

  ~State() {
    threads.clear();
    for (const auto& [number, table] : tables) table->release(table->state);
  }
};

// What lasts longer than an environment.
struct Process {
  std::mutex mutex;
  std::condition_variable changed;
  bool holds_deliveries = false;
  int delivering = 0;  // threads that have not ended
  const cistern_thread_safe_resource* lent = nullptr;

  static Process& Get() {
    static Process* const process = new Process;  // threads use it until the process ends
    return *process;
  }
};

State& StateOf(const Napi::CallbackInfo& info) { return *info.Env().GetInstanceData<State>(); }

void Check(Napi::Env env, napi_status status) {
  if (status != napi_ok) throw Napi::Error::New(env);  // takes the pending exception along
}

std::uint64_t Integer(const Napi::Value& value) { return static_cast<std::uint64_t>(value.ToNumber().DoubleValue()); }

void Open(const Napi::CallbackInfo& info) { Check(info.Env(), cistern_open(info.Env(), info[0], &StateOf(info).interface)); }

const cistern_thread_safe_resource* TableOf(const Napi::CallbackInfo& info, const Napi::Value& resource) {
  const cistern_thread_safe_resource* table = nullptr;
  Check(info.Env(), cistern_get_thread_safe_resource(info.Env(), &StateOf(info).interface, resource, &table));
  return table;
}

// table(resource): the number of a new table.
Napi::Value Table(const Napi::CallbackInfo& info) {
  State& state = StateOf(info);
  const cistern_thread_safe_resource* const table = TableOf(info, info[0]);
  state.tables[++state.last] = table;
  return Napi::Number::New(info.Env(), state.last);
}

// release(table)
void Release(const Napi::CallbackInfo& info) {
  State& state = StateOf(info);
  const auto found = state.tables.find(info[0].ToNumber().DoubleValue());
  found->second->release(found->second->state);
  state.tables.erase(found);
}

// start(): the number of a new thread.
Napi::Value Start(const Napi::CallbackInfo& info) {
  State& state = StateOf(info);
  state.threads[++state.last] = std::make_unique<Thread>();
  return Napi::Number::New(info.Env(), state.last);
}

// end(thread): it has ended when this returns.
void End(const Napi::CallbackInfo& info) { StateOf(info).threads.erase(info[0].ToNumber().DoubleValue()); }

struct Call {
  Thread& thread;
  const cistern_thread_safe_resource& table;
};

Call CallOf(const Napi::CallbackInfo& info) {
  State& state = StateOf(info);
  return {*state.threads.at(info[0].ToNumber().DoubleValue()), *state.tables.at(info[1].ToNumber().DoubleValue())};
}

// allocate(thread, table, bytes, alignment, stream): the address, or a result of cistern_resource.h below zero.
Napi::Value Allocate(const Napi::CallbackInfo& info) {
  const Call call = CallOf(info);
  const std::uint64_t bytes = Integer(info[2]), alignment = Integer(info[3]), stream = Integer(info[4]);
  std::uint64_t pointer = 0;
  std::int32_t result = CISTERN_OK;
  call.thread.Run([&] { result = call.table.allocate(call.table.state, bytes, alignment, stream, &pointer); });
  return Napi::Number::New(info.Env(), result == CISTERN_OK ? static_cast<double>(pointer) : -result);
}

// deallocate(thread, table, pointer, bytes, stream): a result of cistern_resource.h.
Napi::Value Deallocate(const Napi::CallbackInfo& info) {
  const Call call = CallOf(info);
  const std::uint64_t pointer = Integer(info[2]), bytes = Integer(info[3]), stream = Integer(info[4]);
  std::int32_t result = CISTERN_OK;
  call.thread.Run([&] { result = call.table.deallocate(call.table.state, pointer, bytes, 256, stream); });
  return Napi::Number::New(info.Env(), result);
}

// On JavaScript's thread.
void Deliver(Napi::Env env, Delivered& delivered) {
  State& state = *env.GetInstanceData<State>();
  const auto waiting = state.waiting.extract(delivered.number);
  const Napi::Function callback = waiting.mapped().callback.Value();
  if (delivered.pointer == 0) {
    callback.Call({Napi::Error::New(env, delivered.reason).Value()});
    return;
  }
  cistern_resource resource = {};
  resource.size = sizeof resource;
  napi_value buffer = nullptr;
  napi_status status = cistern_get_resource(env, &state.interface, waiting.mapped().resource.Value(), &resource);
  if (status == napi_ok) status = cistern_adopt(&resource, delivered.pointer, delivered.bytes, delivered.stream, &buffer);
  if (status == napi_ok) delivered.pointer = 0;  // the buffer's
  if (status == napi_ok) callback.Call({env.Null(), Napi::Value(env, buffer)});
  if (status != napi_ok) callback.Call({Napi::Error::New(env).Value()});
}

// deliver(resource, bytes, stream, callback): a thread of its own allocates, and the callback gets the buffer, or why there
// is none.
void BeginDelivery(const Napi::CallbackInfo& info) {
  const Napi::Env env = info.Env();
  State& state = StateOf(info);
  const cistern_thread_safe_resource* const table = TableOf(info, info[0]);
  const double number = ++state.last;
  auto item = std::make_unique<Delivered>(table, Integer(info[1]), Integer(info[2]), number);
  state.waiting[number] = {Napi::Persistent(info[0].As<Napi::Object>()), Napi::Persistent(info[3].As<Napi::Function>())};
  if (state.deliveries == nullptr) state.deliveries = Deliveries<Delivered>::Open(env, Deliver);
  state.deliveries->Expect(env);
  Process& process = Process::Get();
  {
    const std::lock_guard<std::mutex> lock(process.mutex);
    process.delivering += 1;
  }
  std::thread([&process, deliveries = state.deliveries, item = std::move(item)]() mutable {
    item->Allocate();
    std::unique_lock<std::mutex> lock(process.mutex);
    process.changed.wait(lock, [&] { return !process.holds_deliveries; });
    lock.unlock();
    deliveries->Send(item);
    item.reset();
    deliveries.reset();
    lock.lock();
    process.delivering -= 1;
    process.changed.notify_all();
  }).detach();
}

// holdDeliveries(): the threads of all environments stop before they deliver.
void HoldDeliveries(const Napi::CallbackInfo&) {
  Process& process = Process::Get();
  const std::lock_guard<std::mutex> lock(process.mutex);
  process.holds_deliveries = true;
}

// finishDeliveries(): they go on, and have ended when this returns.
void FinishDeliveries(const Napi::CallbackInfo&) {
  Process& process = Process::Get();
  std::unique_lock<std::mutex> lock(process.mutex);
  process.holds_deliveries = false;
  process.changed.notify_all();
  process.changed.wait(lock, [&] { return process.delivering == 0; });
}

// lend(resource): the process keeps a table of it, which lasts longer than the environment.
void Lend(const Napi::CallbackInfo& info) { Process::Get().lent = TableOf(info, info[0]); }

// endLoan()
void EndLoan(const Napi::CallbackInfo&) {
  const cistern_thread_safe_resource* const table = std::exchange(Process::Get().lent, nullptr);
  table->release(table->state);
}

Napi::Object Init(Napi::Env env, Napi::Object exports) {
  env.SetInstanceData(new State);
  exports.Set("open", Napi::Function::New<Open>(env, "open"));
  exports.Set("table", Napi::Function::New<Table>(env, "table"));
  exports.Set("release", Napi::Function::New<Release>(env, "release"));
  exports.Set("start", Napi::Function::New<Start>(env, "start"));
  exports.Set("end", Napi::Function::New<End>(env, "end"));
  exports.Set("allocate", Napi::Function::New<Allocate>(env, "allocate"));
  exports.Set("deallocate", Napi::Function::New<Deallocate>(env, "deallocate"));
  exports.Set("deliver", Napi::Function::New<BeginDelivery>(env, "deliver"));
  exports.Set("holdDeliveries", Napi::Function::New<HoldDeliveries>(env, "holdDeliveries"));
  exports.Set("finishDeliveries", Napi::Function::New<FinishDeliveries>(env, "finishDeliveries"));
  exports.Set("lend", Napi::Function::New<Lend>(env, "lend"));
  exports.Set("endLoan", Napi::Function::New<EndLoan>(env, "endLoan"));
  return exports;
}

}  // namespace

NODE_API_MODULE(threads, Init)
