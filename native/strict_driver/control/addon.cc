// strict_driver.node: lets a test call the strict driver's control functions (../control.cc) in its
// own process.
#include <dlfcn.h>
#include <node_api.h>

#include <cstdint>
#include <string>

namespace {

// A function of the strict driver, or null if this process has loaded another driver or none.
template <typename Function>
Function Find(const char* name) {
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  return library != nullptr ? reinterpret_cast<Function>(dlsym(library, name)) : nullptr;
}

class Arguments {
 public:
  Arguments(napi_env env, napi_callback_info info) : env_(env) {
    size_t count = sizeof values_ / sizeof values_[0];
    napi_get_cb_info(env, info, &count, values_, nullptr, nullptr);
  }
  std::string Text(int index) const {
    char text[128] = "";
    napi_get_value_string_utf8(env_, values_[index], text, sizeof text, nullptr);
    return text;
  }
  unsigned long long Number(int index) const {
    double number = 0;
    napi_get_value_double(env_, values_[index], &number);
    return static_cast<unsigned long long>(number);
  }
  int Int(int index) const { return static_cast<int>(Number(index)); }

 private:
  napi_env env_;
  napi_value values_[4] = {};
};

napi_value Boolean(napi_env env, bool value) {
  napi_value result;
  napi_get_boolean(env, value, &result);
  return result;
}

napi_value Missing(napi_env env) {
  napi_throw_error(env, nullptr, "the strict driver is not loaded");
  return nullptr;
}

napi_value FailCall(napi_env env, napi_callback_info info) {
  const Arguments arguments(env, info);
  const auto function = Find<bool (*)(const char*, unsigned long long, int)>("strict_driver_fail_call");
  if (function == nullptr) return Missing(env);
  return Boolean(env, function(arguments.Text(0).c_str(), arguments.Number(1), arguments.Int(2)));
}

napi_value FailCallAfter(napi_env env, napi_callback_info info) {
  const Arguments arguments(env, info);
  const auto function = Find<void (*)(const char*, const char*, unsigned long long, int)>("strict_driver_fail_call_after");
  if (function == nullptr) return Missing(env);
  function(arguments.Text(0).c_str(), arguments.Text(1).c_str(), arguments.Number(2), arguments.Int(3));
  return Boolean(env, true);
}

napi_value SetLatency(napi_env env, napi_callback_info info) {
  const Arguments arguments(env, info);
  const auto function = Find<void (*)(const char*, unsigned long long)>("strict_driver_set_latency");
  if (function == nullptr) return Missing(env);
  function(arguments.Text(0).c_str(), arguments.Number(1));
  return Boolean(env, true);
}

napi_value SetTotalMemory(napi_env env, napi_callback_info info) {
  const Arguments arguments(env, info);
  const auto function = Find<bool (*)(unsigned long long)>("strict_driver_set_total_memory");
  if (function == nullptr) return Missing(env);
  return Boolean(env, function(arguments.Number(0)));
}

napi_value HasStream(napi_env env, napi_callback_info info) {
  const Arguments arguments(env, info);
  const auto function = Find<bool (*)(unsigned long long)>("strict_driver_has_stream");
  if (function == nullptr) return Missing(env);
  return Boolean(env, function(arguments.Number(0)));
}

napi_value LiveStreams(napi_env env, napi_callback_info) {
  const auto function = Find<int (*)()>("strict_driver_live_streams");
  if (function == nullptr) return Missing(env);
  napi_value streams;
  napi_create_int32(env, function(), &streams);
  return streams;
}

napi_value CreateStreamElsewhere(napi_env env, napi_callback_info info) {
  const Arguments arguments(env, info);
  const auto function = Find<unsigned long long (*)(int)>("strict_driver_create_stream_elsewhere");
  if (function == nullptr) return Missing(env);
  napi_value handle;
  napi_create_double(env, static_cast<double>(function(arguments.Int(0))), &handle);
  return handle;
}

napi_value SetStickyError(napi_env env, napi_callback_info info) {
  const Arguments arguments(env, info);
  const auto function = Find<bool (*)(int, int)>("strict_driver_set_sticky_error");
  if (function == nullptr) return Missing(env);
  return Boolean(env, function(arguments.Int(0), arguments.Int(1)));
}

}  // namespace

NAPI_MODULE_INIT() {
  const napi_property_descriptor functions[] = {
      {"failCall", nullptr, FailCall, nullptr, nullptr, nullptr, napi_enumerable, nullptr},
      {"failCallAfter", nullptr, FailCallAfter, nullptr, nullptr, nullptr, napi_enumerable, nullptr},
      {"setLatency", nullptr, SetLatency, nullptr, nullptr, nullptr, napi_enumerable, nullptr},
      {"setTotalMemory", nullptr, SetTotalMemory, nullptr, nullptr, nullptr, napi_enumerable, nullptr},
      {"hasStream", nullptr, HasStream, nullptr, nullptr, nullptr, napi_enumerable, nullptr},
      {"liveStreams", nullptr, LiveStreams, nullptr, nullptr, nullptr, napi_enumerable, nullptr},
      {"createStreamElsewhere", nullptr, CreateStreamElsewhere, nullptr, nullptr, nullptr, napi_enumerable, nullptr},
      {"setStickyError", nullptr, SetStickyError, nullptr, nullptr, nullptr, napi_enumerable, nullptr},
  };
  napi_define_properties(env, exports, sizeof functions / sizeof functions[0], functions);
  return exports;
}
