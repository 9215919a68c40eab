// An addon that lets onnxruntime-node allocate from a resource: weights, intermediate results and outputs of the
// sessions that ask for it (`use_env_allocators`).
//
// ONNX Runtime is not linked: its binding has loaded it, and the few functions that are needed have fixed places in its
// tables. It calls the allocator on any thread, and keeps it for as long as a session lives that was created with
// it, which nobody announces. So an allocator and its use of the resource last until the process ends, and the addon
// must not be unloaded (-z nodelete), which Node does when a worker ends.
#include <cistern.h>
#include <dlfcn.h>
#include <napi.h>

#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <string>

namespace {

// ONNX Runtime's objects, and its function tables, of which every version only appends to the last.
struct OrtStatus;
struct OrtEnv;
struct OrtMemoryInfo;
using OrtApi = void (*const)();
struct OrtApiBase {
  const OrtApi* (*get_api)(std::uint32_t version);
  const char* (*version)();
};
enum OrtFunction {
  kGetErrorMessage = 2,
  kCreateEnv = 3,
  kCreateMemoryInfo = 68,
  kReleaseStatus = 93,
  kRegisterAllocator = 176,
  kUnregisterAllocator = 177
};
constexpr std::uint32_t kOldestApi = 23;  // of ONNX Runtime 1.23; 1.30 was tried

// An allocator as the first version of the table has it.
struct OrtAllocator {
  std::uint32_t version;
  void* (*allocate)(OrtAllocator*, std::size_t bytes);
  void (*free)(OrtAllocator*, void* pointer);
  const OrtMemoryInfo* (*info)(const OrtAllocator*);
};

// Before each allocation: its size, which a free does not say. As long as the alignment.
constexpr std::uint64_t kHeaderBytes = 256;

class Allocator : public OrtAllocator {
 public:
  Allocator(const cistern_thread_safe_resource* table, const OrtMemoryInfo* info)
      : OrtAllocator{1, Allocate, Free, Info}, table_(table), info_(info) {}

  const cistern_thread_safe_resource* table() const { return table_; }
  const OrtMemoryInfo* info() const { return info_; }

 private:
  // Never null: ONNX Runtime does not expect that, and ends the process. What this throws, it makes an error of the session.
  static void* Allocate(OrtAllocator* self, std::size_t bytes) {
    const cistern_thread_safe_resource* const table = static_cast<Allocator*>(self)->table_;
    std::uint64_t pointer = 0;
    if (table->allocate(table->state, bytes + kHeaderBytes, kHeaderBytes, CISTERN_LEGACY_STREAM, &pointer) != CISTERN_OK)
      throw std::bad_alloc();
    // The processor writes to it at once.
    if (table->synchronize(table->state, CISTERN_LEGACY_STREAM) != CISTERN_OK) {
      table->deallocate(table->state, pointer, bytes + kHeaderBytes, kHeaderBytes, CISTERN_LEGACY_STREAM);
      throw std::bad_alloc();
    }
    auto* const block = reinterpret_cast<char*>(pointer);
    const std::uint64_t whole = bytes + kHeaderBytes;
    std::memcpy(block, &whole, sizeof whole);
    return block + kHeaderBytes;
  }

  static void Free(OrtAllocator* self, void* pointer) {
    if (pointer == nullptr) return;
    const cistern_thread_safe_resource* const table = static_cast<Allocator*>(self)->table_;
    char* const block = static_cast<char*>(pointer) - kHeaderBytes;
    std::uint64_t whole;
    std::memcpy(&whole, block, sizeof whole);
    table->deallocate(table->state, reinterpret_cast<std::uintptr_t>(block), whole, kHeaderBytes, CISTERN_LEGACY_STREAM);
  }

  static const OrtMemoryInfo* Info(const OrtAllocator* self) { return static_cast<const Allocator*>(self)->info_; }

  const cistern_thread_safe_resource* table_;
  const OrtMemoryInfo* info_;
};

// Of the process: ONNX Runtime has one environment for all threads.
std::mutex mutex;
Allocator* registered = nullptr;

class OnnxRuntime {
 public:
  // Throws if the binding is not loaded, or is of a version with another interface.
  explicit OnnxRuntime(Napi::Env env) : env_(env) {
    void* const library = dlopen("libonnxruntime.so.1", RTLD_NOW | RTLD_NOLOAD);
    void* const symbol = library == nullptr ? nullptr : dlsym(library, "OrtGetApiBase");
    if (symbol == nullptr) throw Napi::Error::New(env, "ONNX Runtime is not loaded: import onnxruntime-node first");
    const OrtApiBase* const base = reinterpret_cast<const OrtApiBase* (*)()>(symbol)();
    const std::string version = base->version();
    const bool is_known = version.rfind("1.", 0) == 0 && std::atoi(version.c_str() + 2) >= static_cast<int>(kOldestApi);
    if (!is_known) throw Napi::Error::New(env, "ONNX Runtime " + version + " is not one that this addon knows: 1.23 or newer");
    api_ = base->get_api(kOldestApi);
    Check(Call<OrtStatus* (*)(int, const char*, OrtEnv**)>(kCreateEnv)(2, "cistern", &ort_));  // the binding's own
  }

  const OrtMemoryInfo* HostMemory() const {
    OrtMemoryInfo* info = nullptr;
    Check(Call<OrtStatus* (*)(const char*, int, int, int, OrtMemoryInfo**)>(kCreateMemoryInfo)("Cpu", 0, 0, 0, &info));
    return info;
  }
  void Register(OrtAllocator* allocator) const {
    Check(Call<OrtStatus* (*)(OrtEnv*, OrtAllocator*)>(kRegisterAllocator)(ort_, allocator));
  }
  void Unregister(const OrtMemoryInfo* info) const {
    Check(Call<OrtStatus* (*)(OrtEnv*, const OrtMemoryInfo*)>(kUnregisterAllocator)(ort_, info));
  }

 private:
  template <typename Function>
  Function Call(OrtFunction place) const {
    return reinterpret_cast<Function>(api_[place]);
  }
  void Check(OrtStatus* status) const {
    if (status == nullptr) return;
    const std::string text = Call<const char* (*)(const OrtStatus*)>(kGetErrorMessage)(status);
    Call<void (*)(OrtStatus*)>(kReleaseStatus)(status);
    throw Napi::Error::New(env_, "ONNX Runtime: " + text);
  }

  Napi::Env env_;
  const OrtApi* api_ = nullptr;
  OrtEnv* ort_ = nullptr;
};

// register(resource): sessions that are created from now on, and ask for it, allocate from the resource.
void Register(const Napi::CallbackInfo& info) {
  const Napi::Env env = info.Env();
  const std::lock_guard<std::mutex> lock(mutex);
  const OnnxRuntime runtime(env);
  if (registered != nullptr) throw Napi::Error::New(env, "a resource is registered already: unregister it first");
  const cistern_thread_safe_resource* table = nullptr;
  const auto& opened = *env.GetInstanceData<cistern_interface>();
  if (cistern_get_thread_safe_resource(env, &opened, info[0], &table) != napi_ok) throw Napi::Error::New(env);
  try {
    if (table->memory_kind == CISTERN_DEVICE) throw Napi::TypeError::New(env, "the memory of the resource must be accessible from the host");
    auto allocator = std::make_unique<Allocator>(table, runtime.HostMemory());
    runtime.Register(allocator.get());
    registered = allocator.release();
  } catch (...) {
    table->release(table->state);
    throw;
  }
}

// unregister(): sessions that are created from now on have ONNX Runtime's own allocator. Older ones go on.
void Unregister(const Napi::CallbackInfo& info) {
  const std::lock_guard<std::mutex> lock(mutex);
  if (registered == nullptr) throw Napi::Error::New(info.Env(), "no resource is registered");
  OnnxRuntime(info.Env()).Unregister(registered->info());
  registered = nullptr;
}

void Open(const Napi::CallbackInfo& info) {
  if (cistern_open(info.Env(), info[0], info.Env().GetInstanceData<cistern_interface>()) != napi_ok) throw Napi::Error::New(info.Env());
}

Napi::Object Init(Napi::Env env, Napi::Object exports) {
  env.SetInstanceData(new cistern_interface{sizeof(cistern_interface), nullptr});
  exports.Set("open", Napi::Function::New<Open>(env, "open"));
  exports.Set("register", Napi::Function::New<Register>(env, "register"));
  exports.Set("unregister", Napi::Function::New<Unregister>(env, "unregister"));
  return exports;
}

}  // namespace

NODE_API_MODULE(onnxruntime, Init)
