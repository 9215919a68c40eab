// An addon whose work runs on libuv's threads (Napi::AsyncWorker): the thread allocates scratch memory and
// the memory of its result, and JavaScript gets the result as a buffer.
//
// The resource has pinned or managed memory, which the thread computes in itself. An addon that launches
// kernels allocates in the same way, on the stream that they run on.
#include <cistern.h>
#include <napi.h>

#include <memory>
#include <stdexcept>
#include <utility>

namespace {

cistern_interface& InterfaceOf(Napi::Env env) { return *env.GetInstanceData<cistern_interface>(); }

void Check(Napi::Env env, napi_status status) {
  if (status != napi_ok) throw Napi::Error::New(env);  // takes the pending exception along
}

// A table of functions for any thread, which is released with this.
class Resource {
 public:
  explicit Resource(const cistern_thread_safe_resource* table) : table_(table) {}
  ~Resource() { table_->release(table_->state); }
  Resource(const Resource&) = delete;
  Resource& operator=(const Resource&) = delete;

  std::uint64_t Allocate(std::uint64_t bytes, std::uint64_t stream) const {
    std::uint64_t pointer = 0;
    if (table_->allocate(table_->state, bytes, 256, stream, &pointer) != CISTERN_OK)
      throw std::runtime_error(table_->last_error(table_->state));
    return pointer;
  }
  // A free of what was allocated here only fails if the driver does.
  bool Free(std::uint64_t pointer, std::uint64_t bytes, std::uint64_t stream) const {
    return table_->deallocate(table_->state, pointer, bytes, 256, stream) == CISTERN_OK;
  }
  bool IsHostAccessible() const { return table_->memory_kind != CISTERN_DEVICE; }

 private:
  const cistern_thread_safe_resource* table_;
};

class Squares : public Napi::AsyncWorker {
 public:
  Squares(Napi::Env env, Napi::Object object, std::unique_ptr<Resource> resource, std::uint64_t count, std::uint64_t stream)
      : Napi::AsyncWorker(env),
        deferred_(Napi::Promise::Deferred::New(env)),
        resource_(std::move(resource)),
        count_(count),
        stream_(stream) {
    object_ = Napi::Persistent(object);
  }
  ~Squares() override {
    if (result_ != 0) resource_->Free(result_, Bytes(), stream_);
  }
  Napi::Promise Promise() const { return deferred_.Promise(); }

  // On another thread: no JavaScript, and no napi_env.
  void Execute() override {
    const std::uint64_t scratch = resource_->Allocate(Bytes(), stream_);
    auto* const numbers = reinterpret_cast<double*>(scratch);
    for (std::uint64_t i = 0; i < count_; ++i) numbers[i] = static_cast<double>(i);
    result_ = resource_->Allocate(Bytes(), stream_);
    auto* const squares = reinterpret_cast<double*>(result_);
    for (std::uint64_t i = 0; i < count_; ++i) squares[i] = numbers[i] * numbers[i];
    resource_->Free(scratch, Bytes(), stream_);
  }

  // On the JavaScript thread.
  void OnOK() override {
    const Napi::HandleScope scope(Env());
    cistern_resource resource = {};
    resource.size = sizeof resource;
    napi_value buffer;
    napi_status status = cistern_get_resource(Env(), &InterfaceOf(Env()), object_.Value(), &resource);
    if (status == napi_ok) status = cistern_adopt(&resource, result_, Bytes(), stream_, &buffer);
    if (status != napi_ok) {
      deferred_.Reject(Napi::Error::New(Env()).Value());
      return;
    }
    result_ = 0;  // the buffer's
    deferred_.Resolve(buffer);
  }
  void OnError(const Napi::Error& error) override { deferred_.Reject(error.Value()); }

 private:
  std::uint64_t Bytes() const { return count_ * sizeof(double); }

  Napi::Promise::Deferred deferred_;
  Napi::ObjectReference object_;
  std::unique_ptr<Resource> resource_;
  std::uint64_t count_;
  std::uint64_t stream_;
  std::uint64_t result_ = 0;
};

// squares(resource, count, stream): a promise of a buffer with the squares of 0 to count - 1. The stream is a
// driver's handle, on which nothing else is queued.
Napi::Value ComputeSquares(const Napi::CallbackInfo& info) {
  const Napi::Env env = info.Env();
  const cistern_thread_safe_resource* table = nullptr;
  Check(env, cistern_get_thread_safe_resource(env, &InterfaceOf(env), info[0], &table));
  auto resource = std::make_unique<Resource>(table);
  if (!resource->IsHostAccessible()) throw Napi::TypeError::New(env, "the memory of the resource must be accessible from the host");
  const auto count = static_cast<std::uint64_t>(info[1].ToNumber().Int64Value());
  const auto stream = static_cast<std::uint64_t>(info[2].ToNumber().Int64Value());
  auto* const worker = new Squares(env, info[0].As<Napi::Object>(), std::move(resource), count, stream);
  worker->Queue();
  return worker->Promise();
}

void Open(const Napi::CallbackInfo& info) {
  if (cistern_open(info.Env(), info[0], &InterfaceOf(info.Env())) != napi_ok) throw Napi::Error::New(info.Env());
}

Napi::Object Init(Napi::Env env, Napi::Object exports) {
  env.SetInstanceData(new cistern_interface{sizeof(cistern_interface), nullptr});
  exports.Set("open", Napi::Function::New<Open>(env, "open"));
  exports.Set("squares", Napi::Function::New<ComputeSquares>(env, "squares"));
  return exports;
}

}  // namespace

NODE_API_MODULE(squares, Init)
