// Loads a module of kernels into the primary context of a device and launches them on streams, for
// tests on a GPU. The functions come from the driver that the process has already loaded.
#include <dlfcn.h>
#include <node_api.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "cuda/driver_table.h"
#include "probes.h"

namespace {

using cistern::Context;
using cistern::DeviceOrdinal;
using cistern::kErrorNotFound;
using cistern::kSuccess;
using cistern::Status;
using cistern::Stream;

using GetProcAddress = Status (*)(const char* symbol, void** function, int version, unsigned long long flags, int* symbol_status);
using Handle = void*;

constexpr int kVersion = 12000;
constexpr unsigned kBlockThreads = 256;

struct Driver {
  Status (*PrimaryCtxRetain)(Context* context, DeviceOrdinal device) = nullptr;
  Status (*CtxGetCurrent)(Context* context) = nullptr;
  Status (*CtxSetCurrent)(Context context) = nullptr;
  Status (*ModuleLoadData)(Handle* module, const void* image) = nullptr;
  Status (*ModuleGetFunction)(Handle* function, Handle module, const char* name) = nullptr;
  Status (*LaunchKernel)(Handle function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,
                         unsigned block_z, unsigned shared_bytes, Stream stream, void** parameters, void** extra) = nullptr;
};

Driver driver;
Context context = nullptr;
Handle module = nullptr;

// Null: the process has loaded no driver.
GetProcAddress FindGetProcAddress() {
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  return reinterpret_cast<GetProcAddress>(library != nullptr ? dlsym(library, "cuGetProcAddress_v2") : nullptr);
}

Status FindDriver() {
  const GetProcAddress find = FindGetProcAddress();
  if (find == nullptr) return kErrorNotFound;
  const struct {
    const char* name;
    void* member;
  } functions[] = {
      {"cuDevicePrimaryCtxRetain", &driver.PrimaryCtxRetain},
      {"cuCtxGetCurrent", &driver.CtxGetCurrent},
      {"cuCtxSetCurrent", &driver.CtxSetCurrent},
      {"cuModuleLoadData", &driver.ModuleLoadData},
      {"cuModuleGetFunction", &driver.ModuleGetFunction},
      {"cuLaunchKernel", &driver.LaunchKernel},
  };
  for (const auto& [name, member] : functions) {
    void* address = nullptr;
    int symbol_status = 0;
    if (find(name, &address, kVersion, 1, &symbol_status) != kSuccess || address == nullptr) return kErrorNotFound;
    std::memcpy(member, &address, sizeof address);
  }
  return kSuccess;
}

// Makes the context current for a scope.
class Current {
 public:
  Current() : is_set_(driver.CtxGetCurrent(&before_) == kSuccess && driver.CtxSetCurrent(context) == kSuccess) {}
  ~Current() {
    if (is_set_) driver.CtxSetCurrent(before_);
  }

 private:
  Context before_ = nullptr;
  bool is_set_;
};

class Arguments {
 public:
  Arguments(napi_env env, napi_callback_info info) : env_(env) {
    std::size_t count = sizeof values_ / sizeof values_[0];
    napi_get_cb_info(env, info, &count, values_, nullptr, nullptr);
  }
  std::string Text(int index) const {
    std::size_t length = 0;
    napi_get_value_string_utf8(env_, values_[index], nullptr, 0, &length);
    std::vector<char> text(length + 1);
    napi_get_value_string_utf8(env_, values_[index], text.data(), text.size(), &length);
    return std::string(text.data(), length);
  }
  std::uint64_t Number(int index) const {
    double number = 0;
    napi_get_value_double(env_, values_[index], &number);
    return static_cast<std::uint64_t>(number);
  }
  std::uint32_t Word(int index) const { return static_cast<std::uint32_t>(Number(index)); }
  Stream StreamOf(int index) const { return reinterpret_cast<Stream>(static_cast<std::uintptr_t>(Number(index))); }
  napi_value Result(Status status) const {
    napi_value result;
    napi_create_int32(env_, status, &result);
    return result;
  }

 private:
  napi_env env_;
  napi_value values_[5] = {};
};

Status Launch(const char* name, Stream stream, std::uint64_t threads, void** parameters) {
  const Current current;
  Handle function = nullptr;
  const Status status = driver.ModuleGetFunction(&function, module, name);
  if (status != kSuccess) return status;
  const unsigned blocks = static_cast<unsigned>((threads + kBlockThreads - 1) / kBlockThreads);
  const unsigned block_threads = threads == 1 ? 1 : kBlockThreads;
  return driver.LaunchKernel(function, blocks, 1, 1, block_threads, 1, 1, 0, stream, parameters, nullptr);
}

// load(ptx): makes the kernels of the text available on device 0. Returns a CUresult, as the other functions do.
napi_value Load(napi_env env, napi_callback_info info) {
  const Arguments arguments(env, info);
  Status status = FindDriver();
  if (status == kSuccess) status = driver.PrimaryCtxRetain(&context, 0);
  if (status != kSuccess) return arguments.Result(status);
  const Current current;
  return arguments.Result(driver.ModuleLoadData(&module, arguments.Text(0).c_str()));
}

// hold(stream, word, value)
napi_value Hold(napi_env env, napi_callback_info info) {
  const Arguments arguments(env, info);
  std::uint64_t word = arguments.Number(1);
  std::uint32_t value = arguments.Word(2);
  void* parameters[] = {&word, &value};
  return arguments.Result(Launch("hold", arguments.StreamOf(0), 1, parameters));
}

// fill(stream, data, words, value)
napi_value Fill(napi_env env, napi_callback_info info) {
  const Arguments arguments(env, info);
  std::uint64_t data = arguments.Number(1);
  std::uint64_t words = arguments.Number(2);
  std::uint32_t value = arguments.Word(3);
  void* parameters[] = {&data, &words, &value};
  return arguments.Result(Launch("fill", arguments.StreamOf(0), words, parameters));
}

// countWrong(stream, data, words, value, wrong)
napi_value CountWrong(napi_env env, napi_callback_info info) {
  const Arguments arguments(env, info);
  std::uint64_t data = arguments.Number(1);
  std::uint64_t words = arguments.Number(2);
  std::uint32_t value = arguments.Word(3);
  std::uint64_t wrong = arguments.Number(4);
  void* parameters[] = {&data, &words, &value, &wrong};
  return arguments.Result(Launch("count_wrong", arguments.StreamOf(0), words, parameters));
}

// store(word, value): writes from this thread, into pinned memory.
napi_value Store(napi_env env, napi_callback_info info) {
  const Arguments arguments(env, info);
  __atomic_store_n(reinterpret_cast<std::uint32_t*>(arguments.Number(0)), arguments.Word(1), __ATOMIC_SEQ_CST);
  return arguments.Result(kSuccess);
}

// askAboutCaptures(): for each answer [question, mode, status, capture status, status of the end].
napi_value AskAboutCaptures(napi_env env, napi_callback_info) {
  napi_value answers;
  napi_create_array(env, &answers);
  const GetProcAddress find = FindGetProcAddress();
  if (find == nullptr) return answers;
  std::uint32_t count = 0;
  for (const cistern::kernels::Answer& answer : cistern::kernels::AskAboutCaptures(find)) {
    napi_value row;
    napi_value fields[5];
    napi_create_array_with_length(env, 5, &row);
    napi_create_string_utf8(env, answer.question.c_str(), NAPI_AUTO_LENGTH, &fields[0]);
    napi_create_string_utf8(env, answer.mode.c_str(), NAPI_AUTO_LENGTH, &fields[1]);
    napi_create_int32(env, answer.status, &fields[2]);
    napi_create_int32(env, answer.capture, &fields[3]);
    napi_create_int32(env, answer.end, &fields[4]);
    for (std::uint32_t i = 0; i < 5; ++i) napi_set_element(env, row, i, fields[i]);
    napi_set_element(env, answers, count++, row);
  }
  return answers;
}

}  // namespace

NAPI_MODULE_INIT() {
  const napi_property_descriptor functions[] = {
      {"load", nullptr, Load, nullptr, nullptr, nullptr, napi_enumerable, nullptr},
      {"hold", nullptr, Hold, nullptr, nullptr, nullptr, napi_enumerable, nullptr},
      {"fill", nullptr, Fill, nullptr, nullptr, nullptr, napi_enumerable, nullptr},
      {"countWrong", nullptr, CountWrong, nullptr, nullptr, nullptr, napi_enumerable, nullptr},
      {"askAboutCaptures", nullptr, AskAboutCaptures, nullptr, nullptr, nullptr, napi_enumerable, nullptr},
      {"store", nullptr, Store, nullptr, nullptr, nullptr, napi_enumerable, nullptr},
  };
  napi_define_properties(env, exports, sizeof functions / sizeof functions[0], functions);
  return exports;
}
