// The little of NVTX's memory extension that cistern uses, with the forms and values of its headers (version 3, compatibility 0x0102).
#ifndef CISTERN_ADDON_TOOL_MEMORY_H_
#define CISTERN_ADDON_TOOL_MEMORY_H_

#include <cstddef>
#include <cstdint>

namespace cistern::nvtx {

constexpr std::uint16_t kVersion = 3;
constexpr std::uint16_t kMemoryModule = 1;
constexpr std::uint16_t kMemoryCompatibility = 0x0102;
constexpr std::size_t kMemorySlots = 63;
enum : std::size_t { kHeapRegister = 0, kHeapUnregister = 1, kRegionsRegister = 3, kRegionsUnregister = 5 };
enum : std::uint32_t { kUsageSubAllocator = 1, kTypeVirtualAddress = 1, kReferenceIsPointer = 1 };

// nvtxExtModuleSegment_t and nvtxExtModuleInfo_t: the tool fills the slots of the functions that it wants to be told.
struct ModuleSegment {
  std::size_t id;
  std::size_t slot_count;
  std::intptr_t* slots;
};
struct ModuleInfo {
  std::uint16_t version;
  std::uint16_t struct_size;
  std::uint16_t module;
  std::uint16_t compatibility;
  std::size_t segment_count;
  ModuleSegment* segments;
  void* get_export_function;
  const void* information;
};
using InitializeExtension = int (*)(ModuleInfo*);

using Domain = void*;
using HeapHandle = void*;

// nvtxMemVirtualRangeDesc_t
struct VirtualRange {
  std::size_t bytes;
  const void* pointer;
};

// nvtxMemHeapDesc_t
struct HeapDescription {
  std::uint16_t compatibility;
  std::uint16_t struct_size;
  std::uint32_t reserved;
  std::uint32_t usage;
  std::uint32_t type;
  std::size_t range_size;
  const void* range;
  std::uint32_t category;
  std::uint32_t message_type;
  const void* message;
};

// nvtxMemRegionsRegisterBatch_t
struct RegionsRegisterBatch {
  std::uint16_t compatibility;
  std::uint16_t struct_size;
  std::uint32_t type;
  HeapHandle heap;
  std::size_t count;
  std::size_t element_size;
  const void* elements;
  void** handles;
};

// nvtxMemRegionRef_t and nvtxMemRegionsUnregisterBatch_t
union RegionReference {
  const void* pointer;
  void* handle;
};
struct RegionsUnregisterBatch {
  std::uint16_t compatibility;
  std::uint16_t struct_size;
  std::uint32_t reference_type;
  std::size_t count;
  std::size_t element_size;
  const RegionReference* elements;
};

using HeapRegister = HeapHandle (*)(Domain, const HeapDescription*);
using HeapUnregister = void (*)(Domain, HeapHandle);
using RegionsRegister = void (*)(Domain, const RegionsRegisterBatch*);
using RegionsUnregister = void (*)(Domain, const RegionsUnregisterBatch*);

}  // namespace cistern::nvtx

#endif  // CISTERN_ADDON_TOOL_MEMORY_H_
