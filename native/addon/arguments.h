// Reads the arguments of a call as C++ values. Every reader returns false for a value that is not
// of the requested type or range. None converts a value, so none can run JavaScript. A missing
// argument is undefined.
#ifndef CISTERN_ADDON_ARGUMENTS_H_
#define CISTERN_ADDON_ARGUMENTS_H_

#include <napi.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "addon/integers.h"

namespace cistern {

inline bool ReadBoolean(const Napi::Value& value, bool* boolean) {
  if (!value.IsBoolean()) return false;
  *boolean = value.As<Napi::Boolean>().Value();
  return true;
}

inline bool ReadNumber(const Napi::Value& value, double* number) {
  if (!value.IsNumber()) return false;
  *number = value.As<Napi::Number>().DoubleValue();
  return true;
}

inline bool ReadInteger(const Napi::Value& value, std::uint64_t* integer) {
  double number;
  return ReadNumber(value, &number) && ToInteger(number, integer);
}

inline bool ReadInt(const Napi::Value& value, int* integer) {
  double number;
  return ReadNumber(value, &number) && ToInt(number, integer);
}

inline bool ReadLimit(const Napi::Value& value, std::uint64_t* limit) {
  double number;
  return ReadNumber(value, &number) && ToLimit(number, limit);
}

inline bool ReadString(const Napi::Value& value, std::string* text) {
  if (!value.IsString()) return false;
  *text = value.As<Napi::String>().Utf8Value();
  return true;
}

bool ReadArray(const Napi::Value& value, Napi::Float64Array* array);
bool ReadArray(const Napi::Value& value, Napi::Int32Array* array);

struct ByteView {
  unsigned char* data = nullptr;
  std::size_t bytes = 0;
};

// The bytes of a typed array, a DataView or a Buffer, over an ArrayBuffer or a SharedArrayBuffer. A
// detached one has no bytes. False for anything else, and for a view that reaches beyond its
// ArrayBuffer.
bool ReadView(const Napi::Value& value, ByteView* view);

}  // namespace cistern

#endif  // CISTERN_ADDON_ARGUMENTS_H_
