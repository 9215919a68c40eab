#include <algorithm>
#include <cstring>

#include "platform/memory_file.h"
#include "software/calls.h"
#include "software/error_names.h"
#include "software/resolve.h"
#include "software/settings.h"

namespace cistern::software::calls {
namespace {

constexpr int kDriverVersion = 13000;

Status ResolveOrdinal(int ordinal, Device** device) {
  if (!IsInitialized()) return kErrorNotInitialized;
  *device = FindDevice(ordinal);
  return *device != nullptr ? kSuccess : kErrorInvalidDevice;
}

// The current context's device, and that of another context.
Status ResolvePeer(Context peer, Device** device, Device** peer_device) {
  const Status status = RequireDevice(device);
  if (status != kSuccess) return status;
  *peer_device = FindDeviceOf(peer);
  const bool is_valid = *peer_device != nullptr && *peer_device != *device && (*peer_device)->IsRetained();
  return is_valid ? kSuccess : Status{kErrorInvalidContext};
}

}  // namespace

Status Init(unsigned flags) { return flags == 0 ? Initialize() : kErrorInvalidValue; }

Status DriverGetVersion(int* version) {
  if (version == nullptr) return kErrorInvalidValue;
  *version = kDriverVersion;
  return kSuccess;
}

Status GetErrorName(Status error, const char** name) {
  if (name == nullptr) return kErrorInvalidValue;
  const ErrorName* found = FindErrorName(error);
  *name = found != nullptr ? found->name : nullptr;
  return found != nullptr ? kSuccess : kErrorInvalidValue;
}

Status GetErrorString(Status error, const char** text) {
  if (text == nullptr) return kErrorInvalidValue;
  const ErrorName* found = FindErrorName(error);
  *text = found != nullptr ? found->text : nullptr;
  return found != nullptr ? kSuccess : kErrorInvalidValue;
}

Status DeviceGetCount(int* count) {
  if (!IsInitialized()) return kErrorNotInitialized;
  if (count == nullptr) return kErrorInvalidValue;
  *count = DeviceCount();
  return kSuccess;
}

Status DeviceGet(DeviceOrdinal* device, int ordinal) {
  if (device == nullptr) return kErrorInvalidValue;
  Device* state;
  Status status = ResolveOrdinal(ordinal, &state);
  if (status == kSuccess) *device = ordinal;
  return status;
}

Status DeviceGetName(char* name, int length, DeviceOrdinal device) {
  Device* state;
  Status status = ResolveOrdinal(device, &state);
  if (status != kSuccess) return status;
  if (name == nullptr || length <= 0) return kErrorInvalidValue;
  static constexpr char kName[] = "cistern software device";
  std::size_t bytes = std::min(sizeof kName, static_cast<std::size_t>(length));
  std::memcpy(name, kName, bytes);
  name[bytes - 1] = '\0';
  return kSuccess;
}

Status DeviceGetUuid(unsigned char uuid[16], DeviceOrdinal device) {
  Device* state;
  Status status = ResolveOrdinal(device, &state);
  if (status != kSuccess) return status;
  if (uuid == nullptr) return kErrorInvalidValue;
  // Version 8 of the standard leaves the other bits to the creator of the identifier.
  static constexpr unsigned char kUuid[16] = {'c', 'i', 's', 't', 'e', 'r', 0x80, 'n', 0x80, 's', 'o', 'f', 't', 0, 0, 0};
  std::memcpy(uuid, kUuid, sizeof kUuid);
  uuid[15] = static_cast<unsigned char>(device);
  return kSuccess;
}

Status DeviceTotalMem(std::size_t* bytes, DeviceOrdinal device) {
  Device* state;
  Status status = ResolveOrdinal(device, &state);
  if (status != kSuccess) return status;
  if (bytes == nullptr) return kErrorInvalidValue;
  std::uint64_t free;
  std::uint64_t total;
  state->memory.GetInfo(&free, &total);
  *bytes = total;
  return kSuccess;
}

Status DeviceGetAttribute(int* value, int attribute, DeviceOrdinal device) {
  Device* state;
  Status status = ResolveOrdinal(device, &state);
  if (status != kSuccess) return status;
  if (value == nullptr) return kErrorInvalidValue;
  switch (attribute) {
    case kAttributeUnifiedAddressing:
    case kAttributeManagedMemory:
    case kAttributeVirtualMemoryManagementSupported:
    case kAttributeMemoryPoolsSupported:
    case kAttributeIpcEventSupported:
    case kAttributeCanUseHostPointerForRegisteredMem:
    case kAttributeHostRegisterSupported:
    case kAttributeHostNumaMemoryPoolsSupported:
    case kAttributeHostMemoryPoolsSupported:
    case kAttributeMultiprocessorCount:
      *value = 1;
      return kSuccess;
    case kAttributeHandleTypePosixFileDescriptorSupported:
      *value = kHasMemoryFiles ? 1 : 0;
      return kSuccess;
    case kAttributePageableMemoryAccess:
      *value = HasPageableAccess() ? 1 : 0;
      return kSuccess;
    case kAttributeConcurrentManagedAccess:
      *value = HasConcurrentManagedAccess() ? 1 : 0;
      return kSuccess;
    case kAttributePageableMemoryAccessUsesHostPageTables:
    case kAttributeDirectManagedMemAccessFromHost:
      *value = IsCoherent() ? 1 : 0;
      return kSuccess;
    case kAttributeIntegrated:
    case kAttributeComputeCapabilityMajor:
    case kAttributeComputeCapabilityMinor:
    case kAttributeHostNumaId:
      *value = 0;
      return kSuccess;
    default:
      return kErrorInvalidValue;
  }
}

Status DevicePrimaryCtxRetain(Context* context, DeviceOrdinal device) {
  Device* state;
  Status status = ResolveOrdinal(device, &state);
  if (status != kSuccess) return status;
  if (context == nullptr) return kErrorInvalidValue;
  status = state->Retain();
  if (status == kSuccess) *context = state->context();
  return status;
}

Status DevicePrimaryCtxRelease(DeviceOrdinal device) {
  Device* state;
  Status status = ResolveOrdinal(device, &state);
  return status == kSuccess ? state->Release() : status;
}

Status CtxGetCurrent(Context* context) {
  if (!IsInitialized()) return kErrorNotInitialized;
  if (context == nullptr) return kErrorInvalidValue;
  *context = thread_state.current != nullptr ? thread_state.current->context() : nullptr;
  return kSuccess;
}

Status CtxSetCurrent(Context context) {
  if (!IsInitialized()) return kErrorNotInitialized;
  Device* device = context != nullptr ? FindDeviceOf(context) : nullptr;
  if (context != nullptr && (device == nullptr || !device->IsRetained())) return kErrorInvalidContext;
  thread_state.current = device;
  return kSuccess;
}

Status DeviceCanAccessPeer(int* can_access, DeviceOrdinal device, DeviceOrdinal peer) {
  Device* state;
  Status status = ResolveOrdinal(device, &state);
  if (status == kSuccess) status = ResolveOrdinal(peer, &state);
  if (status != kSuccess) return status;
  if (can_access == nullptr) return kErrorInvalidValue;
  *can_access = CanReach(device, peer) ? 1 : 0;
  return kSuccess;
}

Status CtxEnablePeerAccess(Context peer, unsigned flags) {
  Device* device;
  Device* peer_device;
  const Status status = ResolvePeer(peer, &device, &peer_device);
  if (status != kSuccess) return status;
  return flags == 0 ? device->EnablePeer(*peer_device) : Status{kErrorInvalidValue};
}

Status CtxDisablePeerAccess(Context peer) {
  Device* device;
  Device* peer_device;
  const Status status = ResolvePeer(peer, &device, &peer_device);
  return status == kSuccess ? device->DisablePeer(*peer_device) : status;
}

Status CtxSynchronize() {
  Device* device;
  Status status = RequireDevice(&device);
  if (status != kSuccess) return status;
  if (open_captures.load(std::memory_order_relaxed) != 0) status = CheckUseOfContext(*device);
  if (status != kSuccess) return status;
  device->Synchronize();
  ReclaimPools(*device, Reclaim::kAboveThreshold);
  return kSuccess;
}

}  // namespace cistern::software::calls
