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

// What an environment has.
struct State {
  cistern_interface interface = {sizeof(cistern_interface), nullptr};
  double last = 0;
  std::map<double, const cistern_thread_safe_resource*> tables;
  std::map<double, std::unique_ptr<Thread>> threads;

  ~State() {
    threads.clear();
    for (const auto& [number, table] : tables) table->release(table->state);
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

// deliver(resource, bytes, stream, callback): a thread of its own allocates, and the callback gets the buffer, or why there
// is none.
void Deliver(const Napi::CallbackInfo& info) {
  const Napi::Env env = info.Env();
  const cistern_thread_safe_resource* const table = TableOf(info, info[0]);
  const auto object = std::make_shared<Napi::ObjectReference>(Napi::Persistent(info[0].As<Napi::Object>()));
  const std::uint64_t bytes = Integer(info[1]), stream = Integer(info[2]);
  const auto deliver = Napi::ThreadSafeFunction::New(env, info[3].As<Napi::Function>(), "deliver", 0, 1);
  std::thread([=] {
    std::uint64_t pointer = 0;
    const bool is_allocated = table->allocate(table->state, bytes, 256, stream, &pointer) == CISTERN_OK;
    const std::string reason = is_allocated ? "" : table->last_error(table->state);
    // On JavaScript's thread.
    deliver.BlockingCall([=](Napi::Env called, Napi::Function callback) {
      cistern_resource resource = {};
      resource.size = sizeof resource;
      napi_value buffer = nullptr;
      napi_status status = is_allocated ? napi_ok : napi_generic_failure;
      if (status == napi_ok) status = cistern_get_resource(called, &called.GetInstanceData<State>()->interface, object->Value(), &resource);
      if (status == napi_ok) status = cistern_adopt(&resource, pointer, bytes, stream, &buffer);
      if (status != napi_ok && is_allocated) table->deallocate(table->state, pointer, bytes, 256, stream);
      table->release(table->state);
      object->Reset();
      if (status == napi_ok) {
        callback.Call({called.Null(), Napi::Value(called, buffer)});
      } else {
        callback.Call({is_allocated ? Napi::Error::New(called).Value() : Napi::Error::New(called, reason).Value()});
      }
    });
    deliver.Release();
  }).detach();
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
  exports.Set("deliver", Napi::Function::New<Deliver>(env, "deliver"));
  return exports;
}

}  // namespace

NODE_API_MODULE(threads, Init)
