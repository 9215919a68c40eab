#include "addon/arguments.h"

#include <iterator>

namespace cistern {
namespace {

// Indexed by napi_typedarray_type; the last one, Float16Array, has no name in Node-API 9.
constexpr std::size_t kElementBytes[] = {1, 1, 1, 2, 2, 4, 4, 4, 8, 8, 8, 2};

// Node-API leaves the type unchanged for a kind of array that it does not know.
constexpr napi_typedarray_type kUnknownType = static_cast<napi_typedarray_type>(15);

// A view of a resizable ArrayBuffer that shrank may report more bytes than remain.
bool IsInside(const Napi::Value& buffer, std::size_t offset, std::size_t bytes) {
  if (!buffer.IsArrayBuffer()) return true;  // a SharedArrayBuffer, which never shrinks
  const std::size_t available = buffer.As<Napi::ArrayBuffer>().ByteLength();
  return offset <= available && bytes <= available - offset;
}

// Raw Node-API, since Napi::TypedArray takes an array of an unknown kind for an Int8Array, and a
// Float16Array for empty.
bool ReadTypedArray(const Napi::Value& value, ByteView* view) {
  const Napi::Env env = value.Env();
  napi_typedarray_type type = kUnknownType;
  std::size_t length;
  void* data;
  napi_value buffer;
  std::size_t offset;
  if (napi_get_typedarray_info(env, value, &type, &length, &data, &buffer, &offset) != napi_ok) return false;
  if (type >= std::size(kElementBytes)) return false;
  view->data = static_cast<unsigned char*>(data);
  view->bytes = length * kElementBytes[type];
  return IsInside(Napi::Value(env, buffer), offset, view->bytes);
}

bool ReadDataView(const Napi::DataView& value, ByteView* view) {
  view->data = static_cast<unsigned char*>(value.Data());
  view->bytes = value.ByteLength();
  return IsInside(value.Buffer(), value.ByteOffset(), view->bytes);
}

template <typename Array>
bool ReadArrayOf(napi_typedarray_type type, const Napi::Value& value, Array* array) {
  if (!value.IsTypedArray()) return false;
  *array = value.As<Array>();
  return array->TypedArrayType() == type && IsInside(array->Buffer(), array->ByteOffset(), array->ByteLength());
}

}  // namespace

bool ReadArray(const Napi::Value& value, Napi::Float64Array* array) { return ReadArrayOf(napi_float64_array, value, array); }

bool ReadArray(const Napi::Value& value, Napi::Int32Array* array) { return ReadArrayOf(napi_int32_array, value, array); }

bool ReadView(const Napi::Value& value, ByteView* view) {
  if (value.IsTypedArray()) {
    if (!ReadTypedArray(value, view)) return false;
  } else if (value.IsDataView()) {
    if (!ReadDataView(value.As<Napi::DataView>(), view)) return false;
  } else {
    return false;
  }
  if (view->data == nullptr) view->bytes = 0;
  return true;
}

}  // namespace cistern
