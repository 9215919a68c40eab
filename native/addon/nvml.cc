// NVIDIA's management library, which is loaded at run time and needs no context: how much memory a device has, and which
// processes hold it. Functions and structures are those of nvml.h 12 and 13; without the library, everything else works.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <string>
#include <vector>

#include "addon/bindings.h"
#include "platform/lasting.h"
#include "platform/library.h"

namespace cistern {
namespace {

using NvmlStatus = int;
constexpr NvmlStatus kNvmlSuccess = 0;
constexpr NvmlStatus kNvmlInsufficientSize = 7;
constexpr NvmlStatus kNvmlFunctionNotFound = 13;
constexpr std::uint64_t kNotAvailable = ~std::uint64_t{0};

struct NvmlMemory {
  unsigned version;
  std::uint64_t total;
  std::uint64_t reserved;
  std::uint64_t free;
  std::uint64_t used;
};

struct NvmlProcess {
  unsigned pid;
  std::uint64_t used;
  unsigned gpu_instance;
  unsigned compute_instance;
};

using Handle = void*;
using ListProcesses = NvmlStatus (*)(Handle, unsigned*, NvmlProcess*);

struct Library {
  std::mutex mutex;
  std::string path;
  NvmlStatus (*init)() = nullptr;
  NvmlStatus (*handle_by_uuid)(const char*, Handle*) = nullptr;
  NvmlStatus (*memory_info)(Handle, NvmlMemory*) = nullptr;
  ListProcesses compute_processes = nullptr;
  ListProcesses graphics_processes = nullptr;
};

Library& Nvml() {
  static Lasting<Library> library;
  return *library;
}

template <typename Function>
bool Find(void* library, const char* name, Function* function) {
  *function = reinterpret_cast<Function>(FindDriverSymbol(library, name));
  return *function != nullptr;
}

// Empty if it can be used; otherwise why not.
std::string Open(Library& nvml, const std::string& path) {
  std::string failure;
  void* library = OpenLibrary(path, &failure);
  if (library == nullptr) return failure;
  for (const char* name : {"nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetComputeRunningProcesses_v2"}) {
    if (Find(library, name, &nvml.compute_processes)) break;
  }
  for (const char* name : {"nvmlDeviceGetGraphicsRunningProcesses_v3", "nvmlDeviceGetGraphicsRunningProcesses_v2"}) {
    if (Find(library, name, &nvml.graphics_processes)) break;
  }
  if (!Find(library, "nvmlInit_v2", &nvml.init) || !Find(library, "nvmlDeviceGetHandleByUUID", &nvml.handle_by_uuid) ||
      !Find(library, "nvmlDeviceGetMemoryInfo_v2", &nvml.memory_info)) {
    return "it lacks nvmlInit_v2, nvmlDeviceGetHandleByUUID or nvmlDeviceGetMemoryInfo_v2";
  }
  const NvmlStatus status = nvml.init();
  return status == kNvmlSuccess ? std::string() : "nvmlInit_v2 returned " + std::to_string(status);
}

// A process that computes and draws is in both lists, with the same bytes.
NvmlStatus AppendProcesses(ListProcesses list, Handle device, std::vector<NvmlProcess>* all) {
  if (list == nullptr) return kNvmlFunctionNotFound;
  std::vector<NvmlProcess> found(64);
  for (;;) {
    unsigned count = static_cast<unsigned>(found.size());
    const NvmlStatus status = list(device, &count, found.data());
    // Others may start meanwhile.
    if (status == kNvmlInsufficientSize && found.size() < 65536) {
      found.resize(std::max<std::size_t>(2 * found.size(), count));
      continue;
    }
    if (status != kNvmlSuccess) return status;
    found.resize(std::min<std::size_t>(count, found.size()));
    break;
  }
  for (const NvmlProcess& process : found) {
    const bool is_known = std::any_of(all->begin(), all->end(), [&](const NvmlProcess& other) { return other.pid == process.pid; });
    if (!is_known) all->push_back(process);
  }
  return kNvmlSuccess;
}

}  // namespace

Status OpenNvml(Environment&, const Napi::CallbackInfo& info, Napi::Value* result) {
  std::string path;
  *result = Napi::String::New(info.Env(), "");
  if (!ReadString(info[0], &path)) return kInvalidArgument;
  Library& nvml = Nvml();
  const std::lock_guard<std::mutex> lock(nvml.mutex);
  if (nvml.init != nullptr && nvml.path == path) return kSuccess;
  nvml.init = nullptr;
  const std::string failure = Open(nvml, path);
  if (failure.empty()) {
    nvml.path = path;
  } else {
    nvml.init = nullptr;
  }
  *result = Napi::String::New(info.Env(), failure);
  return kSuccess;
}

Status NvmlDevice(Environment&, const Napi::CallbackInfo& info, Napi::Value* result) {
  std::string uuid;
  *result = Napi::Float64Array::New(info.Env(), 0);
  if (!ReadString(info[0], &uuid)) return kInvalidArgument;
  Library& nvml = Nvml();
  const std::lock_guard<std::mutex> lock(nvml.mutex);
  if (nvml.init == nullptr) return kNoBackend;
  Handle device = nullptr;
  NvmlMemory memory = {};
  memory.version = static_cast<unsigned>(sizeof memory) | (2u << 24);
  std::vector<NvmlProcess> processes;
  NvmlStatus status = nvml.handle_by_uuid(uuid.c_str(), &device);
  if (status == kNvmlSuccess) status = nvml.memory_info(device, &memory);
  // Some devices, and some users, are not told who uses a device.
  NvmlStatus list_status = kNvmlSuccess;
  if (status == kNvmlSuccess) list_status = AppendProcesses(nvml.compute_processes, device, &processes);
  if (status == kNvmlSuccess && list_status == kNvmlSuccess) AppendProcesses(nvml.graphics_processes, device, &processes);
  std::vector<double> numbers = {static_cast<double>(status), static_cast<double>(list_status), static_cast<double>(memory.total),
                                 static_cast<double>(memory.free), static_cast<double>(memory.used)};
  for (const NvmlProcess& process : processes) {
    numbers.push_back(process.pid);
    numbers.push_back(process.used == kNotAvailable ? -1 : static_cast<double>(process.used));
  }
  Napi::Float64Array array = Napi::Float64Array::New(info.Env(), numbers.size());
  for (std::size_t i = 0; i < numbers.size(); i++) array[i] = numbers[i];
  *result = array;
  return kSuccess;
}

}  // namespace cistern
