// A library that uses the driver on its own, for tests: it makes any call of the driver's table, which it is
// given the address of, and cistern learns of none.
#include <node_api.h>

#include <cstdint>
#include <cstring>

#include "cuda/driver_table.h"

namespace {

constexpr std::size_t kMostArguments = 6;
// Integers and pointers take the same places whatever their width, in the calling conventions of x86-64 and ARM64.
using AnyFunction = cistern::Status (*)(std::uint64_t, std::uint64_t, std::uint64_t, std::uint64_t, std::uint64_t, std::uint64_t);

const AnyFunction* table = nullptr;

void Increment(void* counter) { __atomic_add_fetch(static_cast<std::int32_t*>(counter), 1, __ATOMIC_SEQ_CST); }

// A number, a bigint, or the memory of a typed array.
std::uint64_t ReadArgument(napi_env env, napi_value value) {
  double number = 0;
  if (napi_get_value_double(env, value, &number) == napi_ok) return static_cast<std::uint64_t>(static_cast<std::int64_t>(number));
  std::uint64_t bits = 0;
  bool is_lossless = false;
  if (napi_get_value_bigint_uint64(env, value, &bits, &is_lossless) == napi_ok) return bits;
  void* data = nullptr;
  napi_get_typedarray_info(env, value, nullptr, nullptr, &data, nullptr, nullptr);
  return reinterpret_cast<std::uintptr_t>(data);
}

// use(table)
napi_value Use(napi_env env, napi_callback_info info) {
  std::size_t count = 1;
  napi_value argument;
  napi_get_cb_info(env, info, &count, &argument, nullptr, nullptr);
  table = reinterpret_cast<const AnyFunction*>(static_cast<std::uintptr_t>(ReadArgument(env, argument)));
  return nullptr;
}

// call(name, ...arguments): the driver's status
napi_value Call(napi_env env, napi_callback_info info) {
  std::size_t count = 1 + kMostArguments;
  napi_value arguments[1 + kMostArguments];
  napi_get_cb_info(env, info, &count, arguments, nullptr, nullptr);
  char name[64] = {};
  napi_get_value_string_utf8(env, arguments[0], name, sizeof name, nullptr);
  std::uint64_t values[kMostArguments] = {};
  for (std::size_t i = 1; i < count && i <= kMostArguments; ++i) values[i - 1] = ReadArgument(env, arguments[i]);
  for (int number = 0; number < cistern::kCallCount; ++number) {
    if (std::strcmp(cistern::kCallNames[number], name) != 0) continue;
    napi_value status;
    napi_create_int32(env, table[number](values[0], values[1], values[2], values[3], values[4], values[5]), &status);
    return status;
  }
  napi_throw_error(env, nullptr, "the table has no such function");
  return nullptr;
}

napi_value Init(napi_env env, napi_value exports) {
  const napi_property_descriptor properties[] = {
      {"use", nullptr, Use, nullptr, nullptr, nullptr, napi_enumerable, nullptr},
      {"call", nullptr, Call, nullptr, nullptr, nullptr, napi_enumerable, nullptr},
  };
  napi_define_properties(env, exports, 2, properties);
  // A host function that increments a 32-bit integer.
  napi_value increment;
  napi_create_bigint_uint64(env, reinterpret_cast<std::uintptr_t>(&Increment), &increment);
  napi_set_named_property(env, exports, "increment", increment);
  return exports;
}

}  // namespace

NAPI_MODULE(foreign, Init)
