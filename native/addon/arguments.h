// The arguments of one call. Every reader returns false for a value that is not of the type or range asked for; none of them converts a
// value, so none of them can run JavaScript.
#ifndef CISTERN_ADDON_ARGUMENTS_H_
#define CISTERN_ADDON_ARGUMENTS_H_

#include <node_api.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "addon/integers.h"

namespace cistern {

struct ByteView {
  unsigned char* data = nullptr;
  std::size_t bytes = 0;
};

// The bytes of a typed array, a DataView or a Buffer, over an ArrayBuffer or a SharedArrayBuffer. A detached one has none. False for
// anything else, and for a view that reaches beyond its ArrayBuffer.
bool ReadView(napi_env env, napi_value value, ByteView* view);

class Arguments {
 public:
  static constexpr std::size_t kCapacity = 5;

  // Missing arguments read as undefined.
  Arguments(napi_env env, napi_callback_info info) : env_(env) {
    std::size_t count = kCapacity;
    napi_get_cb_info(env, info, &count, values_, nullptr, &data_);
  }

  napi_env env() const { return env_; }
  void* data() const { return data_; }
  napi_value operator[](int index) const { return values_[index]; }

  bool Number(int index, double* number) const { return napi_get_value_double(env_, values_[index], number) == napi_ok; }
  bool Boolean(int index, bool* boolean) const { return napi_get_value_bool(env_, values_[index], boolean) == napi_ok; }
  bool Integer(int index, std::uint64_t* integer) const {
    double number;
    return Number(index, &number) && ToInteger(number, integer);
  }
  bool Int(int index, int* integer) const {
    double number;
    return Number(index, &number) && ToInt(number, integer);
  }
  bool Limit(int index, std::uint64_t* limit) const {
    double number;
    return Number(index, &number) && ToLimit(number, limit);
  }
  bool String(int index, std::string* text) const;
  bool View(int index, ByteView* view) const { return ReadView(env_, values_[index], view); }
  bool Float64Array(int index, double** numbers, std::size_t* length) const;
  bool Int32Array(int index, std::int32_t** numbers, std::size_t* length) const;

  // What the call returns to JavaScript.
  napi_value result = nullptr;

 private:
  bool TypedArray(int index, napi_typedarray_type type, void** data, std::size_t* length) const;

  napi_env env_;
  napi_value values_[kCapacity];
  void* data_ = nullptr;
};

}  // namespace cistern

#endif  // CISTERN_ADDON_ARGUMENTS_H_
