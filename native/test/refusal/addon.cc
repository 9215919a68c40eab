// Refuses host memory to cistern's addon, as a host that has none left does: LD_PRELOAD puts this library's operator new
// before that of the standard library. JavaScript, which loads it too, says when.
#include <dlfcn.h>
#include <node_api.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <new>

namespace {

std::atomic<bool> is_refusing{false};
std::atomic<long> refused{0};

// Of the code that asks; what the standard library asks for itself is not refused.
bool IsRefused(const void* caller) {
  if (!is_refusing.load(std::memory_order_relaxed)) return false;
  Dl_info info;
  if (dladdr(caller, &info) == 0 || std::strstr(info.dli_fname, "cistern.node") == nullptr) return false;
  refused.fetch_add(1);
  return true;
}

void* Allocate(std::size_t bytes, const void* caller) { return IsRefused(caller) ? nullptr : std::malloc(bytes == 0 ? 1 : bytes); }

void* AllocateOrThrow(std::size_t bytes, const void* caller) {
  void* const memory = Allocate(bytes, caller);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

napi_value Refuse(napi_env env, napi_callback_info info) {
  std::size_t count = 1;
  napi_value argument;
  bool value = false;
  napi_get_cb_info(env, info, &count, &argument, nullptr, nullptr);
  napi_get_value_bool(env, argument, &value);
  is_refusing = value;
  return nullptr;
}

napi_value Refused(napi_env env, napi_callback_info) {
  napi_value number;
  napi_create_int64(env, refused.load(), &number);
  return number;
}

}  // namespace

#define EXPORTED __attribute__((visibility("default")))

EXPORTED void* operator new(std::size_t bytes) { return AllocateOrThrow(bytes, __builtin_return_address(0)); }
EXPORTED void* operator new[](std::size_t bytes) { return AllocateOrThrow(bytes, __builtin_return_address(0)); }
EXPORTED void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept { return Allocate(bytes, __builtin_return_address(0)); }
EXPORTED void* operator new[](std::size_t bytes, const std::nothrow_t&) noexcept { return Allocate(bytes, __builtin_return_address(0)); }
EXPORTED void operator delete(void* memory) noexcept { std::free(memory); }
EXPORTED void operator delete[](void* memory) noexcept { std::free(memory); }
EXPORTED void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
EXPORTED void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }
EXPORTED void operator delete(void* memory, const std::nothrow_t&) noexcept { std::free(memory); }
EXPORTED void operator delete[](void* memory, const std::nothrow_t&) noexcept { std::free(memory); }

NAPI_MODULE_INIT() {
  const napi_property_descriptor functions[] = {
      {"refuse", nullptr, Refuse, nullptr, nullptr, nullptr, napi_enumerable, nullptr},
      {"refused", nullptr, Refused, nullptr, nullptr, nullptr, napi_enumerable, nullptr},
  };
  napi_define_properties(env, exports, sizeof functions / sizeof functions[0], functions);
  return exports;
}
