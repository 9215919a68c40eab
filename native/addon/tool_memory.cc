// Memory checkers, such as compute-sanitizer, are told which memory belongs to pools, and which parts of it are allocated: the memory
// extension of NVTX. Its headers are C that every program compiles into itself; what follows is the little of nvToolsExtMem.h and
// nvtxDetail/nvtxExtTypes.h that pools need. native/test/cuda_header.h compares it with the headers.
#include "addon/tool_memory.h"

#include <map>
#include <mutex>
#include <string>

#include "addon/arguments.h"
#include "addon/bindings.h"
#include "platform/lasting.h"
#include "platform/library.h"

namespace cistern {
namespace {

enum class Told { kHeapBegins, kHeapEnds, kRegionBegins, kRegionEnds };

struct Heap {
  std::size_t bytes;
  nvtx::HeapHandle handle;
};

// What the tool has given, for the rest of the process's life.
struct Tool {
  std::mutex mutex;
  std::string path;
  nvtx::HeapRegister heap_register = nullptr;
  nvtx::HeapUnregister heap_unregister = nullptr;
  nvtx::RegionsRegister regions_register = nullptr;
  nvtx::RegionsUnregister regions_unregister = nullptr;
  std::map<std::uintptr_t, Heap> heaps;
};

Tool& TheTool() {
  static Lasting<Tool> tool;
  return *tool;
}

template <typename Function>
Function At(const std::intptr_t* slots, std::size_t callback) {
  return reinterpret_cast<Function>(slots[callback]);
}

// Empty on success, else why no tool listens.
std::string Open(Tool& tool, const std::string& path) {
  std::string failure;
  void* library = OpenLibrary(path, &failure);
  if (library == nullptr) return failure;
  const auto initialize = reinterpret_cast<nvtx::InitializeExtension>(FindDriverSymbol(library, "InitializeInjectionNvtxExtension"));
  if (initialize == nullptr) return path + " has no InitializeInjectionNvtxExtension";
  static std::intptr_t slots[nvtx::kMemorySlots];
  nvtx::ModuleSegment segment = {1, nvtx::kMemorySlots, slots};
  nvtx::ModuleInfo module = {nvtx::kVersion, sizeof module, nvtx::kMemoryModule, nvtx::kMemoryCompatibility, 1, &segment, nullptr, nullptr};
  if (initialize(&module) == 0) return path + " does not take part";
  tool.heap_register = At<nvtx::HeapRegister>(slots, nvtx::kHeapRegister);
  tool.heap_unregister = At<nvtx::HeapUnregister>(slots, nvtx::kHeapUnregister);
  tool.regions_register = At<nvtx::RegionsRegister>(slots, nvtx::kRegionsRegister);
  tool.regions_unregister = At<nvtx::RegionsUnregister>(slots, nvtx::kRegionsUnregister);
  const bool wants_memory = tool.heap_register != nullptr && tool.heap_unregister != nullptr && tool.regions_register != nullptr &&
                            tool.regions_unregister != nullptr;
  if (wants_memory) return "";
  tool.heap_register = nullptr;
  return path + " does not ask for the memory of pools";
}

void BeginHeap(Tool& tool, std::uintptr_t pointer, std::size_t bytes) {
  const nvtx::VirtualRange range = {bytes, reinterpret_cast<const void*>(pointer)};
  nvtx::HeapDescription description = {};
  description.compatibility = nvtx::kMemoryCompatibility;
  description.struct_size = sizeof description;
  description.usage = nvtx::kUsageSubAllocator;
  description.type = nvtx::kTypeVirtualAddress;
  description.range_size = sizeof range;
  description.range = &range;
  tool.heaps[pointer] = {bytes, tool.heap_register(nullptr, &description)};
}

void EndHeap(Tool& tool, std::uintptr_t pointer) {
  const auto heap = tool.heaps.find(pointer);
  if (heap == tool.heaps.end()) return;
  tool.heap_unregister(nullptr, heap->second.handle);
  tool.heaps.erase(heap);
}

// The heap that has the memory, or null: then a resource that is not announced has given it.
const Heap* FindHeap(const Tool& tool, std::uintptr_t pointer) {
  auto after = tool.heaps.upper_bound(pointer);
  if (after == tool.heaps.begin()) return nullptr;
  --after;
  return pointer - after->first < after->second.bytes ? &after->second : nullptr;
}

void BeginRegion(const Tool& tool, const Heap& heap, std::uintptr_t pointer, std::size_t bytes) {
  const nvtx::VirtualRange range = {bytes, reinterpret_cast<const void*>(pointer)};
  nvtx::RegionsRegisterBatch batch = {};
  batch.compatibility = nvtx::kMemoryCompatibility;
  batch.struct_size = sizeof batch;
  batch.type = nvtx::kTypeVirtualAddress;
  batch.heap = heap.handle;
  batch.count = 1;
  batch.element_size = sizeof range;
  batch.elements = &range;
  tool.regions_register(nullptr, &batch);
}

void EndRegion(const Tool& tool, std::uintptr_t pointer) {
  const nvtx::RegionReference region = {reinterpret_cast<const void*>(pointer)};
  nvtx::RegionsUnregisterBatch batch = {};
  batch.compatibility = nvtx::kMemoryCompatibility;
  batch.struct_size = sizeof batch;
  batch.reference_type = nvtx::kReferenceIsPointer;
  batch.count = 1;
  batch.element_size = sizeof region;
  batch.elements = &region;
  tool.regions_unregister(nullptr, &batch);
}

}  // namespace

Status OpenToolMemory(Environment&, const Napi::CallbackInfo& info, Napi::Value* result) {
  std::string path;
  *result = Napi::String::New(info.Env(), "");
  if (!ReadString(info[0], &path)) return kInvalidArgument;
  Tool& tool = TheTool();
  const std::lock_guard<std::mutex> lock(tool.mutex);
  if (tool.heap_register != nullptr && tool.path == path) return kSuccess;
  const std::string failure = Open(tool, path);
  if (failure.empty()) tool.path = path;
  *result = Napi::String::New(info.Env(), failure);
  return kSuccess;
}

Status TellToolMemory(Environment&, const Napi::CallbackInfo& info) {
  int what;
  std::uint64_t pointer;
  std::uint64_t bytes;
  if (!ReadInt(info[0], &what) || !ReadInteger(info[1], &pointer) || !ReadInteger(info[2], &bytes)) return kInvalidArgument;
  Tool& tool = TheTool();
  const std::lock_guard<std::mutex> lock(tool.mutex);
  if (tool.heap_register == nullptr) return kNoBackend;
  const Heap* heap = FindHeap(tool, pointer);
  switch (static_cast<Told>(what)) {
    case Told::kHeapBegins:
      BeginHeap(tool, pointer, bytes);
      return kSuccess;
    case Told::kHeapEnds:
      EndHeap(tool, pointer);
      return kSuccess;
    case Told::kRegionBegins:
      if (heap != nullptr) BeginRegion(tool, *heap, pointer, bytes);
      return kSuccess;
    case Told::kRegionEnds:
      if (heap != nullptr) EndRegion(tool, pointer);
      return kSuccess;
  }
  return kInvalidArgument;
}

}  // namespace cistern
