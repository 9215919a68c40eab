#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>

#include "strict_driver/call.h"
#include "strict_driver/calls.h"
#include "strict_driver/checkpoint.h"
#include "strict_driver/error_names.h"
#include "strict_driver/report.h"
#include "strict_driver/settings.h"
#include "strict_driver/stream.h"
#include "strict_driver/wait.h"

namespace cistern::strict {
namespace {

constexpr int kAttributeLimit = 1000;

bool IsDevice(DeviceOrdinal device) { return device >= 0 && device < settings().devices; }

// Like the driver's own handler: waits for the running host function, and answers nothing
// afterwards.
void EndAtExit() {
  Lock lock(big_lock);
  if (driver.has_ended) return;
  if (settings().exit_waits) {
    Wait(lock, nullptr, "the driver's exit handler", [] { return driver.running_callbacks == 0; });
  }
  driver.has_ended = true;
  std::size_t left[6] = {};
  for (const auto& [start, allocation] : driver.allocations) left[static_cast<int>(allocation->kind)] += 1;
  Report("EXIT",
         "left: %zu device, %zu pool, %zu pinned, %zu managed allocations, %zu mappings, %zu imports, %zu streams, %zu events, %zu pools",
         left[0], left[1], left[2], left[3], left[4], left[5], driver.streams.size(), driver.events.size(), driver.pools.size());
}

}  // namespace

namespace calls {

Status Init(unsigned flags) {
  STRICT_DRIVER_ENTER("cuInit", kNothing);
  if (flags != 0) return kErrorInvalidValue;
  if (driver.is_initialized) return kSuccess;
  if (settings().devices == 0) return kErrorNoDevice;
  driver.memory.resize(static_cast<std::size_t>(settings().devices));
  for (DeviceOrdinal device = 0; device < settings().devices; ++device) {
    driver.MemoryOf(device).Open(settings().memory_bytes);
    ContextState* context = new ContextState;
    context->device = device;
    context->legacy = NewStream(context, Role::kLegacy, kStreamDefault, 0);
    driver.contexts.push_back(context);
  }
  driver.is_initialized = true;
  ServeCheckpoints();
  std::atexit(EndAtExit);
  return kSuccess;
}

Status DriverGetVersion(int* version) {
  STRICT_DRIVER_ENTER("cuDriverGetVersion", kNothing);
  if (version == nullptr) return kErrorInvalidValue;
  *version = settings().version;
  return kSuccess;
}

Status GetErrorName(Status error, const char** name) {
  if (name == nullptr) return kErrorInvalidValue;
  *name = ErrorName(error);
  return *name != nullptr ? kSuccess : kErrorInvalidValue;
}

Status GetErrorString(Status error, const char** text) {
  if (text == nullptr) return kErrorInvalidValue;
  *text = ErrorName(error) != nullptr ? "an error of the strict driver" : nullptr;
  return *text != nullptr ? kSuccess : kErrorInvalidValue;
}

Status DeviceGetCount(int* count) {
  STRICT_DRIVER_ENTER("cuDeviceGetCount", kInit);
  if (count == nullptr) return kErrorInvalidValue;
  *count = settings().devices;
  return kSuccess;
}

Status DeviceGet(DeviceOrdinal* device, int ordinal) {
  STRICT_DRIVER_ENTER("cuDeviceGet", kInit);
  if (device == nullptr) return kErrorInvalidValue;
  if (!IsDevice(ordinal)) return kErrorInvalidDevice;
  *device = ordinal;
  return kSuccess;
}

Status DeviceGetName(char* name, int length, DeviceOrdinal device) {
  STRICT_DRIVER_ENTER("cuDeviceGetName", kInit);
  if (!IsDevice(device)) return kErrorInvalidDevice;
  if (name == nullptr || length <= 0) return kErrorInvalidValue;
  const std::string text = "strict driver, device " + std::to_string(device);
  const std::size_t bytes = std::min(text.size(), static_cast<std::size_t>(length) - 1);
  std::memcpy(name, text.data(), bytes);
  name[bytes] = '\0';
  return kSuccess;
}

Status DeviceGetUuid(unsigned char uuid[16], DeviceOrdinal device) {
  STRICT_DRIVER_ENTER("cuDeviceGetUuid", kInit);
  if (!IsDevice(device)) return kErrorInvalidDevice;
  if (uuid == nullptr) return kErrorInvalidValue;
  std::memcpy(uuid, "strict driver  ", 16);
  uuid[15] = static_cast<unsigned char>('0' + device);
  return kSuccess;
}

Status DeviceTotalMem(std::size_t* bytes, DeviceOrdinal device) {
  STRICT_DRIVER_ENTER("cuDeviceTotalMem", kInit);
  if (!IsDevice(device)) return kErrorInvalidDevice;
  if (bytes == nullptr) return kErrorInvalidValue;
  *bytes = driver.MemoryOf(device).total();
  return kSuccess;
}

Status DeviceGetAttribute(int* value, int attribute, DeviceOrdinal device) {
  STRICT_DRIVER_ENTER("cuDeviceGetAttribute", kInit);
  if (!IsDevice(device)) return kErrorInvalidDevice;
  if (value == nullptr || attribute < 1 || attribute >= kAttributeLimit) return kErrorInvalidValue;
  switch (attribute) {
    case kAttributeMultiprocessorCount:
      *value = 132;
      break;
    case kAttributeComputeCapabilityMajor:
      *value = settings().compute_capability;
      break;
    case kAttributeUnifiedAddressing:
    case kAttributeManagedMemory:
      *value = 1;
      break;
    case kAttributeMemoryPoolsSupported:
      *value = settings().has_pools;
      break;
    case kAttributeHostRegisterSupported:
      *value = 1;
      break;
    case kAttributeCanUseHostPointerForRegisteredMem:
      *value = settings().host_pointers_of_registered;
      break;
    case kAttributeVirtualMemoryManagementSupported:
      *value = settings().has_virtual_memory;
      break;
    case kAttributeHandleTypePosixFileDescriptorSupported:
      *value = settings().has_virtual_memory && settings().exports_memory;
      break;
    case kAttributeConcurrentManagedAccess:
      *value = settings().has_concurrent_managed_access;
      break;
    case kAttributePageableMemoryAccess:
      *value = settings().has_pageable_access;
      break;
    case kAttributePageableMemoryAccessUsesHostPageTables:
    case kAttributeDirectManagedMemAccessFromHost:
      *value = settings().uses_host_page_tables;
      break;
    case kAttributeCanUseStreamMemoryOperationsV1:
    case kAttributeCanUse64BitStreamMemoryOperationsV1:
    case kAttributeCanUseStreamWaitValueNorV1:
    case kAttributeCanUse64BitStreamMemoryOperations:
    case kAttributeCanUseStreamWaitValueNor:
      *value = settings().has_stream_memory_operations;
      break;
    case kAttributeHostNumaMemoryPoolsSupported:
      if (settings().version < 12090) return kErrorInvalidValue;
      *value = settings().has_pools;
      break;
    case kAttributeHostMemoryPoolsSupported:
      if (settings().version < 13000) return kErrorInvalidValue;
      *value = settings().has_pools;
      break;
    default:
      *value = 0;
  }
  return kSuccess;
}

Status DeviceCanAccessPeer(int* can_access, DeviceOrdinal device, DeviceOrdinal peer) {
  STRICT_DRIVER_ENTER("cuDeviceCanAccessPeer", kInit);
  if (!IsDevice(device) || !IsDevice(peer)) return kErrorInvalidDevice;
  if (can_access == nullptr) return kErrorInvalidValue;
  *can_access = CanReach(device, peer);
  return kSuccess;
}

Status DevicePrimaryCtxRetain(Context* context, DeviceOrdinal device) {
  STRICT_DRIVER_ENTER("cuDevicePrimaryCtxRetain", kInit);
  if (!IsDevice(device)) return kErrorInvalidDevice;
  if (context == nullptr) return kErrorInvalidValue;
  ContextState* state = driver.ContextOf(device);
  if (state->retained++ == 0) {
    driver.MemoryOf(device).Charge(settings().context_bytes);
    std::atexit(EndAtExit);  // a driver may register more handlers with the first context
  }
  *context = reinterpret_cast<Context>(state);
  return kSuccess;
}

Status DevicePrimaryCtxRelease(DeviceOrdinal device) {
  STRICT_DRIVER_ENTER("cuDevicePrimaryCtxRelease", kInit);
  if (!IsDevice(device)) return kErrorInvalidDevice;
  ContextState* state = driver.ContextOf(device);
  if (state->retained == 0) return kErrorInvalidContext;
  if (--state->retained == 0) driver.MemoryOf(device).Uncharge(settings().context_bytes);
  return kSuccess;
}

}  // namespace calls
}  // namespace cistern::strict
