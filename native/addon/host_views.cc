// JavaScript arrays over memory that the host can read and write: no copy is made.
//
// The array does not own the memory. Whoever frees the memory ends the view first, which leaves the
// array without bytes. Raw Node-API, for a runtime that allows no such arrays says so by a status of
// its own.
#include "addon/bindings.h"
#include "addon/ranges.h"

namespace cistern {

Status ViewFromHost(Environment& environment, const Napi::CallbackInfo& info, Napi::Value* result) {
  std::uint64_t address, bytes;
  if (!ReadInteger(info[0], &address) || !ReadInteger(info[1], &bytes) || bytes == 0) return kInvalidArgument;
  if (environment.driver == nullptr) return kNoBackend;
  const RelaxedContextScope context(environment, 0);
  if (context.status() != kSuccess) return context.status();
  Location range;
  const Status status = CheckRange(environment, address, bytes, &range);
  if (status != kSuccess) return status;
  if (range.place == Place::kDevice) {
    unsigned managed = 0;
    const Status known = environment.driver->PointerGetAttribute(&managed, kPointerIsManaged, address);
    if (known != kSuccess) return known;
    if (managed == 0) return kInvalidRange;
  }
  napi_value array;
  void* data = reinterpret_cast<void*>(static_cast<std::uintptr_t>(address));
  const napi_status created = napi_create_external_arraybuffer(info.Env(), data, bytes, nullptr, nullptr, &array);
  if (created == napi_no_external_buffers_allowed) return kErrorNotSupported;
  if (created != napi_ok) {
    napi_value exception;
    napi_get_and_clear_last_exception(info.Env(), &exception);
    return kHostOutOfMemory;
  }
  environment.has_host_views = true;
  *result = Napi::Value(info.Env(), array);
  return kSuccess;
}

Status EndView(Environment&, const Napi::CallbackInfo& info) {
  if (!info[0].IsArrayBuffer()) return kInvalidArgument;
  return napi_detach_arraybuffer(info.Env(), info[0]) == napi_ok ? kSuccess : kInvalidArgument;
}

}  // namespace cistern
