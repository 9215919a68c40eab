// An addon whose finalizers V8's collector calls, and which allocate.
#undef NAPI_VERSION
#define NAPI_EXPERIMENTAL
#define NAPI_VERSION NAPI_VERSION_EXPERIMENTAL
#define NODE_API_EXPERIMENTAL_NO_WARNING
#include <node_api.h>

#include "way.h"

namespace {

void Allocate(node_api_nogc_env, void*, void*) {
  const outside::Way way = {outside::Way::kLegacy};
  cistern::Context context;
  cistern::DevicePointer pointer;
  way.Find<cistern::Status (*)(unsigned)>("cuInit", "cuInit", 2000)(0);
  way.Find<cistern::Status (*)(cistern::Context*, int)>("cuDevicePrimaryCtxRetain", "cuDevicePrimaryCtxRetain", 7000)(&context, 0);
  way.Find<cistern::Status (*)(cistern::Context)>("cuCtxSetCurrent", "cuCtxSetCurrent", 4000)(context);
  way.Find<cistern::Status (*)(cistern::DevicePointer*, std::size_t)>("cuMemAlloc", "cuMemAlloc_v2", 3020)(&pointer, 8192);
}

napi_value AllocatesWhileCollecting(napi_env env, napi_callback_info info) {
  size_t count = 1;
  napi_value object;
  napi_get_cb_info(env, info, &count, &object, nullptr, nullptr);
  napi_wrap(env, object, nullptr, Allocate, nullptr, nullptr);
  return nullptr;
}

}  // namespace

NAPI_MODULE_INIT() {
  napi_value function;
  napi_create_function(env, "allocatesWhileCollecting", NAPI_AUTO_LENGTH, AllocatesWhileCollecting, nullptr, &function);
  napi_set_named_property(env, exports, "allocatesWhileCollecting", function);
  return exports;
}
