// The names of the statuses that the software device returns, which are the driver's, and a
// sentence of our own for each.
#ifndef CISTERN_SOFTWARE_ERROR_NAMES_H_
#define CISTERN_SOFTWARE_ERROR_NAMES_H_

#include "cuda/driver_table.h"

namespace cistern::software {

struct ErrorName {
  Status status;
  const char* name;
  const char* text;
};

inline constexpr ErrorName kErrorNames[] = {
    {kSuccess, "CUDA_SUCCESS", "the call succeeded"},
    {kErrorInvalidValue, "CUDA_ERROR_INVALID_VALUE", "an argument has a value that the call does not accept"},
    {kErrorOutOfMemory, "CUDA_ERROR_OUT_OF_MEMORY", "not enough memory, or another resource, is left"},
    {kErrorNotInitialized, "CUDA_ERROR_NOT_INITIALIZED", "the driver has not been initialized"},
    {kErrorNoDevice, "CUDA_ERROR_NO_DEVICE", "there is no device"},
    {kErrorInvalidDevice, "CUDA_ERROR_INVALID_DEVICE", "there is no device of this ordinal"},
    {kErrorInvalidContext, "CUDA_ERROR_INVALID_CONTEXT", "no context is current, or it is not a valid one"},
    {kErrorPeerAccessUnsupported, "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED", "this device cannot access the memory of the other one"},
    {kErrorInvalidHandle, "CUDA_ERROR_INVALID_HANDLE", "the handle does not belong to a live object, or to one of this device"},
    {kErrorOperatingSystem, "CUDA_ERROR_OPERATING_SYSTEM", "a call of the operating system failed"},
    {kErrorIllegalState, "CUDA_ERROR_ILLEGAL_STATE", "the object is in a state that does not allow the call"},
    {kErrorCaptureUnsupported, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "the call is not allowed while a stream is captured"},
    {kErrorCaptureInvalidated, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", "an earlier error has invalidated the capture"},
    {kErrorCaptureMerge, "CUDA_ERROR_STREAM_CAPTURE_MERGE", "the call would have joined two captures"},
    {kErrorCaptureUnmatched, "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED", "the capture did not begin on this stream"},
    {kErrorCaptureUnjoined, "CUDA_ERROR_STREAM_CAPTURE_UNJOINED", "the capture has a fork that did not come back to its first stream"},
    {kErrorCaptureIsolation, "CUDA_ERROR_STREAM_CAPTURE_ISOLATION", "the call would have made captured work wait for other work"},
    {kErrorCaptureImplicit, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT", "the legacy stream would have waited for a stream that is captured"},
    {kErrorCapturedEvent, "CUDA_ERROR_CAPTURED_EVENT", "the event's last recording was captured"},
    {kErrorCaptureWrongThread, "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD", "another thread began the capture"},
    {kErrorGraphExecUpdateFailure, "CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE", "the graphs differ in more than an update may change"},
    {kErrorMapFailed, "CUDA_ERROR_MAP_FAILED", "memory of another process could not be mapped"},
    {kErrorNotFound, "CUDA_ERROR_NOT_FOUND", "the requested item does not exist"},
    {kErrorNotReady, "CUDA_ERROR_NOT_READY", "earlier work has not completed yet"},
    {kErrorIllegalAddress, "CUDA_ERROR_ILLEGAL_ADDRESS", "memory was accessed outside an allocation"},
    {kErrorPeerAccessAlreadyEnabled, "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED", "this context can already access the other one's memory"},
    {kErrorPeerAccessNotEnabled, "CUDA_ERROR_PEER_ACCESS_NOT_ENABLED", "this context was not given access to the other one's memory"},
    {kErrorHostMemoryAlreadyRegistered, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED", "a part of the host memory is page-locked already"},
    {kErrorHostMemoryNotRegistered, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED", "no registered host memory starts at this address"},
    {kErrorNotPermitted, "CUDA_ERROR_NOT_PERMITTED", "the call is not allowed here or now"},
    {kErrorNotSupported, "CUDA_ERROR_NOT_SUPPORTED", "this device does not support the operation"},
    {kErrorUnknown, "CUDA_ERROR_UNKNOWN", "an internal error"},
};

inline const ErrorName* FindErrorName(Status status) {
  for (const ErrorName& error : kErrorNames) {
    if (error.status == status) return &error;
  }
  return nullptr;
}

}  // namespace cistern::software

#endif  // CISTERN_SOFTWARE_ERROR_NAMES_H_
