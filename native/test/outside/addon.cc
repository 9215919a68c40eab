// An addon whose cudart is linked statically: it takes the driver's functions from cuGetProcAddress. It allocates on
// the JavaScript thread, and on threads of its own.
#include <napi.h>
#include <pthread.h>

#include <string>
#include <thread>
#include <vector>

#include "cistern_run.h"
#include "way.h"

namespace {

using outside::Way;
using Alloc = cistern::Status (*)(cistern::DevicePointer*, std::size_t);
using FreeFunction = cistern::Status (*)(cistern::DevicePointer);

const Way kWay = {Way::kLegacy};

void Begin() {
  kWay.Find<cistern::Status (*)(unsigned)>("cuInit", "cuInit", 2000)(0);
  cistern::Context context;
  kWay.Find<cistern::Status (*)(cistern::Context*, int)>("cuDevicePrimaryCtxRetain", "cuDevicePrimaryCtxRetain", 7000)(&context, 0);
  kWay.Find<cistern::Status (*)(cistern::Context)>("cuCtxSetCurrent", "cuCtxSetCurrent", 4000)(context);
}

cistern::Status Allocate(cistern::DevicePointer* pointer, std::size_t bytes) {
  Begin();
  static const auto allocate = kWay.Find<Alloc>("cuMemAlloc", "cuMemAlloc_v2", 3020);
  const cistern::Status status = allocate(pointer, bytes);
  asm volatile("" ::: "memory");  // the call is no jump
  return status;
}

Napi::Value AllocateHere(const Napi::CallbackInfo& info) {
  cistern::DevicePointer pointer = 0;
  const cistern::Status status = Allocate(&pointer, static_cast<std::size_t>(info[0].As<Napi::Number>().DoubleValue()));
  return Napi::Number::New(info.Env(), status == 0 ? static_cast<double>(pointer) : -status);
}

Napi::Value AllocateOnThread(const Napi::CallbackInfo& info) {
  cistern::DevicePointer pointer = 0;
  cistern::Status status = 0;
  const auto bytes = static_cast<std::size_t>(info[0].As<Napi::Number>().DoubleValue());
  std::thread thread([&] {
    pthread_setname_np(pthread_self(), "loader");
    status = Allocate(&pointer, bytes);
  });
  thread.join();
  return Napi::Number::New(info.Env(), status == 0 ? static_cast<double>(pointer) : -status);
}

// On a thread of libuv's pool.
class Worker : public Napi::AsyncWorker {
 public:
  Worker(const Napi::Function& done, std::size_t bytes) : AsyncWorker(done), bytes_(bytes) {}
  void Execute() override { status_ = Allocate(&pointer_, bytes_); }
  std::vector<napi_value> GetResult(Napi::Env env) override { return {env.Null(), Napi::Number::New(env, status_)}; }

 private:
  std::size_t bytes_;
  cistern::DevicePointer pointer_ = 0;
  cistern::Status status_ = 0;
};

Napi::Value AllocateInWorker(const Napi::CallbackInfo& info) {
  auto* worker = new Worker(info[1].As<Napi::Function>(), static_cast<std::size_t>(info[0].As<Napi::Number>().DoubleValue()));
  worker->Queue();
  return info.Env().Undefined();
}

// On a thread of its own, for an account.
Napi::Value AllocateFor(const Napi::CallbackInfo& info) {
  const std::string name = info[0].As<Napi::String>();
  const auto bytes = static_cast<std::size_t>(info[1].As<Napi::Number>().DoubleValue());
  std::thread thread([&] {
    cistern::DevicePointer pointer;
    const unsigned outer = cistern_enter_account(name.c_str());
    Allocate(&pointer, bytes);
    const unsigned inner = cistern_enter_account(nullptr);
    Allocate(&pointer, bytes + 1);
    cistern_leave_account(inner);
    Allocate(&pointer, bytes + 2);
    cistern_leave_account(outer);
    Allocate(&pointer, bytes + 3);
  });
  thread.join();
  return info.Env().Undefined();
}

Napi::Value Free(const Napi::CallbackInfo& info) {
  static const auto release = kWay.Find<FreeFunction>("cuMemFree", "cuMemFree_v2", 3020);
  const cistern::Status status = release(static_cast<cistern::DevicePointer>(info[0].As<Napi::Number>().DoubleValue()));
  return Napi::Number::New(info.Env(), status);
}

// Through NVIDIA's runtime, as a library of its own.
Napi::Value AllocateWithCudart(const Napi::CallbackInfo& info) {
  static const auto allocate = reinterpret_cast<int (*)(void**, std::size_t)>(dlsym(dlopen("libcudart.so.13", RTLD_NOW), "cudaMalloc"));
  void* pointer = nullptr;
  const int status = allocate(&pointer, static_cast<std::size_t>(info[0].As<Napi::Number>().DoubleValue()));
  return Napi::Number::New(info.Env(), status);
}

// Whether ggml's CUDA backend, in the folder of node-llama-cpp's binaries, gives a buffer.
Napi::Value AllocateWithGgml(const Napi::CallbackInfo& info) {
  const std::string folder = info[0].As<Napi::String>();
  void* base = dlopen((folder + "/libggml-base.so").c_str(), RTLD_NOW);
  void* cuda = dlopen((folder + "/libggml-cuda.so").c_str(), RTLD_NOW);
  if (base == nullptr || cuda == nullptr) {
    Napi::Error::New(info.Env(), dlerror()).ThrowAsJavaScriptException();
    return info.Env().Undefined();
  }
  const auto type = reinterpret_cast<void* (*)(int)>(dlsym(cuda, "ggml_backend_cuda_buffer_type"));
  const auto allocate = reinterpret_cast<void* (*)(void*, std::size_t)>(dlsym(base, "ggml_backend_buft_alloc_buffer"));
  const void* buffer = allocate(type(0), static_cast<std::size_t>(info[1].As<Napi::Number>().DoubleValue()));
  return Napi::Boolean::New(info.Env(), buffer != nullptr);
}

// The finalizer of the object allocates, during or after a collection.
Napi::Value AllocatesWhenCollected(const Napi::CallbackInfo& info) {
  Napi::Object object = Napi::Object::New(info.Env());
  object.AddFinalizer(
      [](Napi::BasicEnv, int* unused) {
        cistern::DevicePointer pointer;
        Allocate(&pointer, 4096);
        delete unused;
      },
      new int(0));
  return object;
}

Napi::Object Initialize(Napi::Env env, Napi::Object exports) {
  exports.Set("allocate", Napi::Function::New(env, AllocateHere));
  exports.Set("allocateOnThread", Napi::Function::New(env, AllocateOnThread));
  exports.Set("allocateInWorker", Napi::Function::New(env, AllocateInWorker));
  exports.Set("allocateFor", Napi::Function::New(env, AllocateFor));
  exports.Set("allocateWithCudart", Napi::Function::New(env, AllocateWithCudart));
  exports.Set("allocateWithGgml", Napi::Function::New(env, AllocateWithGgml));
  exports.Set("free", Napi::Function::New(env, Free));
  exports.Set("allocatesWhenCollected", Napi::Function::New(env, AllocatesWhenCollected));
  return exports;
}

}  // namespace

NODE_API_MODULE(allocates, Initialize)
