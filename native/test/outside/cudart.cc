// A libcudart.so.13 and libcublas.so.13 over the driver, for libraries that are taken from npm as they are: what allocates
// goes to the driver, as cudart does it, and everything else succeeds and does nothing.
#include <cstring>

#include "way.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

using namespace cistern;
using outside::Way;

namespace {

const Way kWay = {Way::kLegacy};

void Begin() {
  static const bool is_begun = [] {
    kWay.Find<Status (*)(unsigned)>("cuInit", "cuInit", 2000)(0);
    return true;
  }();
  (void)is_begun;
  Context context;
  static const auto retain = kWay.Find<Status (*)(Context*, int)>("cuDevicePrimaryCtxRetain", "cuDevicePrimaryCtxRetain", 7000);
  static const auto set = kWay.Find<Status (*)(Context)>("cuCtxSetCurrent", "cuCtxSetCurrent", 4000);
  retain(&context, 0);
  set(context);
}

}  // namespace

EXPORT int cudaMalloc(void** pointer, std::size_t bytes) {
  Begin();
  static const auto call = kWay.Find<Status (*)(DevicePointer*, std::size_t)>("cuMemAlloc", "cuMemAlloc_v2", 3020);
  DevicePointer given = 0;
  const int status = call(&given, bytes);
  *pointer = reinterpret_cast<void*>(given);
  return status;
}
EXPORT int cudaFree(void* pointer) {
  Begin();
  static const auto call = kWay.Find<Status (*)(DevicePointer)>("cuMemFree", "cuMemFree_v2", 3020);
  const int status = pointer == nullptr ? 0 : call(reinterpret_cast<DevicePointer>(pointer));
  return status;
}
EXPORT int cudaHostAlloc(void** pointer, std::size_t bytes, unsigned flags) {
  Begin();
  static const auto call = kWay.Find<Status (*)(void**, std::size_t, unsigned)>("cuMemHostAlloc", "cuMemHostAlloc", 2020);
  const int status = call(pointer, bytes, flags);
  return status;
}
EXPORT int cudaMallocHost(void** pointer, std::size_t bytes) { return cudaHostAlloc(pointer, bytes, 0); }
EXPORT int cudaFreeHost(void* pointer) {
  Begin();
  static const auto call = kWay.Find<Status (*)(void*)>("cuMemFreeHost", "cuMemFreeHost", 2000);
  const int status = call(pointer);
  return status;
}
EXPORT int cudaMallocManaged(void** pointer, std::size_t bytes, unsigned flags) {
  Begin();
  static const auto call = kWay.Find<Status (*)(DevicePointer*, std::size_t, unsigned)>("cuMemAllocManaged", "cuMemAllocManaged", 6000);
  DevicePointer given = 0;
  const int status = call(&given, bytes, flags);
  *pointer = reinterpret_cast<void*>(given);
  return status;
}
EXPORT int cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  Begin();
  static const auto call = kWay.Find<Status (*)(std::size_t*, std::size_t*)>("cuMemGetInfo", "cuMemGetInfo_v2", 3020);
  const int status = call(free, total);
  return status;
}

EXPORT int cudaGetDeviceCount(int* count) { return *count = 1, 0; }
EXPORT int cudaGetDevice(int* device) { return *device = 0; }
// cudaDeviceProp begins with the name, the UUID, a LUID and its mask, and then has the bytes of memory.
EXPORT int cudaGetDeviceProperties(char* properties, int) {
  std::memset(properties, 0, 1008);
  std::strcpy(properties, "software");
  std::size_t free, total = 0;
  cudaMemGetInfo(&free, &total);
  std::memcpy(properties + 256 + 16 + 8 + 4 + 4, &total, sizeof(total));
  return 0;
}
EXPORT int cudaDeviceGetAttribute(int* value, int attribute, int) {
  *value = attribute == 75 ? 9 : attribute == 76 ? 0 : attribute == 10 ? 32 : 1;
  return 0;
}
EXPORT const char* cudaGetErrorString(int error) { return error == 2 ? "out of memory" : "an error"; }
EXPORT void** __cudaRegisterFatBinary(void*) {
  static void* handle;
  return &handle;
}

#define DOES_NOTHING(name) \
  EXPORT int name() { return 0; }
DOES_NOTHING(__cudaGetKernel)
DOES_NOTHING(__cudaLaunchKernel)
DOES_NOTHING(__cudaPopCallConfiguration)
DOES_NOTHING(__cudaPushCallConfiguration)
DOES_NOTHING(__cudaRegisterFatBinaryEnd)
DOES_NOTHING(__cudaRegisterFunction)
DOES_NOTHING(__cudaRegisterVar)
DOES_NOTHING(__cudaUnregisterFatBinary)
DOES_NOTHING(cudaDeviceCanAccessPeer)
DOES_NOTHING(cudaDeviceEnablePeerAccess)
DOES_NOTHING(cudaDeviceGetPCIBusId)
DOES_NOTHING(cudaDeviceSynchronize)
DOES_NOTHING(cudaEventCreateWithFlags)
DOES_NOTHING(cudaEventDestroy)
DOES_NOTHING(cudaEventRecord)
DOES_NOTHING(cudaEventSynchronize)
DOES_NOTHING(cudaFuncGetAttributes)
DOES_NOTHING(cudaFuncSetAttribute)
DOES_NOTHING(cudaGetLastError)
DOES_NOTHING(cudaGraphDestroy)
DOES_NOTHING(cudaGraphExecDestroy)
DOES_NOTHING(cudaGraphExecUpdate)
DOES_NOTHING(cudaGraphInstantiate)
DOES_NOTHING(cudaGraphLaunch)
DOES_NOTHING(cudaHostGetDevicePointer)
DOES_NOTHING(cudaHostRegister)
DOES_NOTHING(cudaHostUnregister)
DOES_NOTHING(cudaLaunchCooperativeKernel)
DOES_NOTHING(cudaLaunchKernelExC)
DOES_NOTHING(cudaMemcpy2DAsync)
DOES_NOTHING(cudaMemcpyAsync)
DOES_NOTHING(cudaMemcpyPeerAsync)
DOES_NOTHING(cudaMemset)
DOES_NOTHING(cudaMemsetAsync)
DOES_NOTHING(cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags)
DOES_NOTHING(cudaPeekAtLastError)
DOES_NOTHING(cudaSetDevice)
DOES_NOTHING(cudaSetDeviceFlags)
DOES_NOTHING(cudaStreamBeginCapture)
DOES_NOTHING(cudaStreamCreateWithFlags)
DOES_NOTHING(cudaStreamDestroy)
DOES_NOTHING(cudaStreamEndCapture)
DOES_NOTHING(cudaStreamIsCapturing)
DOES_NOTHING(cudaStreamSynchronize)
DOES_NOTHING(cudaStreamWaitEvent)
