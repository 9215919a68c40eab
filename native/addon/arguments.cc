#include "addon/arguments.h"

#include <iterator>

namespace cistern {
namespace {

// By napi_typedarray_type; the last one, Float16Array, has no name in the headers yet.
constexpr std::size_t kElementBytes[] = {1, 1, 1, 2, 2, 4, 4, 4, 8, 8, 8, 2};

// Node-API leaves the type as it was for a kind of array that it does not know.
constexpr napi_typedarray_type kUnknownType = static_cast<napi_typedarray_type>(15);

// A view of a resizable ArrayBuffer that shrank may report more than there is left.
bool Inside(napi_env env, napi_value buffer, std::size_t offset, std::size_t bytes) {
  bool resizable_kind = false;
  if (napi_is_arraybuffer(env, buffer, &resizable_kind) != napi_ok) return false;
  if (!resizable_kind) return true;  // a SharedArrayBuffer, which never shrinks
  void* data = nullptr;
  std::size_t available = 0;
  if (napi_get_arraybuffer_info(env, buffer, &data, &available) != napi_ok) return false;
  return offset <= available && bytes <= available - offset;
}

}  // namespace

bool Arguments::String(int index, std::string* text) const {
  std::size_t length = 0;
  if (napi_get_value_string_utf8(env_, values_[index], nullptr, 0, &length) != napi_ok) return false;
  // Nothing that is read as text is longer: a name of a driver function.
  constexpr std::size_t kMaxLength = 255;
  if (length > kMaxLength) return false;
  char buffer[kMaxLength + 1];
  if (napi_get_value_string_utf8(env_, values_[index], buffer, sizeof(buffer), &length) != napi_ok) return false;
  text->assign(buffer, length);
  return true;
}

bool ReadView(napi_env env, napi_value value, ByteView* view) {
  bool matches = false;
  void* data = nullptr;
  std::size_t offset = 0;
  napi_value buffer = nullptr;
  if (napi_is_typedarray(env, value, &matches) == napi_ok && matches) {
    napi_typedarray_type type = kUnknownType;
    std::size_t length = 0;
    if (napi_get_typedarray_info(env, value, &type, &length, &data, &buffer, &offset) != napi_ok) return false;
    if (type >= std::size(kElementBytes)) return false;
    view->bytes = length * kElementBytes[type];
  } else if (napi_is_dataview(env, value, &matches) == napi_ok && matches) {
    if (napi_get_dataview_info(env, value, &view->bytes, &data, &buffer, &offset) != napi_ok) return false;
  } else {
    return false;
  }
  if (!Inside(env, buffer, offset, view->bytes)) return false;
  if (data == nullptr) view->bytes = 0;
  view->data = static_cast<unsigned char*>(data);
  return true;
}

bool Arguments::TypedArray(int index, napi_typedarray_type type, void** data, std::size_t* length) const {
  bool matches = false;
  if (napi_is_typedarray(env_, values_[index], &matches) != napi_ok || !matches) return false;
  napi_typedarray_type actual = kUnknownType;
  napi_value buffer = nullptr;
  std::size_t offset = 0;
  if (napi_get_typedarray_info(env_, values_[index], &actual, length, data, &buffer, &offset) != napi_ok) return false;
  if (actual != type || !Inside(env_, buffer, offset, *length * kElementBytes[type])) return false;
  if (*data == nullptr) *length = 0;
  return true;
}

bool Arguments::Float64Array(int index, double** numbers, std::size_t* length) const {
  void* data = nullptr;
  if (!TypedArray(index, napi_float64_array, &data, length)) return false;
  *numbers = static_cast<double*>(data);
  return true;
}

bool Arguments::Int32Array(int index, std::int32_t** numbers, std::size_t* length) const {
  void* data = nullptr;
  if (!TypedArray(index, napi_int32_array, &data, length)) return false;
  *numbers = static_cast<std::int32_t*>(data);
  return true;
}

}  // namespace cistern
