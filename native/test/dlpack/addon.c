/*
 * A library that produces and consumes DLPack tensors, for tests. It shares no declaration with
 * cistern: the structures below are written from the specification of DLPack 1.0, and the type tags
 * from the documentation of capsules in docs/foreign-memory.md.
 */
#include <node_api.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
  uint32_t major;
  uint32_t minor;
} DLPackVersion;

typedef struct {
  int32_t device_type;
  int32_t device_id;
} DLDevice;

typedef struct {
  uint8_t code;
  uint8_t bits;
  uint16_t lanes;
} DLDataType;

typedef struct {
  void* data;
  DLDevice device;
  int32_t ndim;
  DLDataType dtype;
  int64_t* shape;
  int64_t* strides;
  uint64_t byte_offset;
} DLTensor;

typedef struct DLManagedTensor {
  DLTensor dl_tensor;
  void* manager_ctx;
  void (*deleter)(struct DLManagedTensor* self);
} DLManagedTensor;

typedef struct DLManagedTensorVersioned {
  DLPackVersion version;
  void* manager_ctx;
  void (*deleter)(struct DLManagedTensorVersioned* self);
  uint64_t flags;
  DLTensor dl_tensor;
} DLManagedTensorVersioned;

static const napi_type_tag versioned_tag = {0x7f1c9bd9b2d64f2bULL, 0x9a3e5f0c61d84ea7ULL};
static const napi_type_tag unversioned_tag = {0x2b8d0c7e94f14a65ULL, 0x8c5790ab3de2f146ULL};
static const napi_type_tag other_tag = {0x1111111111111111ULL, 0x2222222222222222ULL};

#define MOST_TENSORS 256
#define MOST_DIMENSIONS 128

static struct {
  void* tensor;
  bool is_versioned;
} consumed[MOST_TENSORS];
static int consumed_count;
static int deleted_count;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

static napi_value number(napi_env env, double value) {
  napi_value result;
  napi_create_double(env, value, &result);
  return result;
}

static void set(napi_env env, napi_value object, const char* name, double value) {
  napi_set_named_property(env, object, name, number(env, value));
}

static double get(napi_env env, napi_value object, const char* name, double otherwise) {
  napi_value value;
  double result;
  if (napi_get_named_property(env, object, name, &value) != napi_ok) return otherwise;
  return napi_get_value_double(env, value, &result) == napi_ok ? result : otherwise;
}

static napi_value argument(napi_env env, napi_callback_info info) {
  size_t count = 1;
  napi_value value = NULL;
  napi_get_cb_info(env, info, &count, &value, NULL, NULL);
  return value;
}

/* The place of the tensor in a capsule; NULL for anything else. */
static void** slot_of(napi_env env, napi_value capsule, bool* is_versioned) {
  bool is_unversioned = false;
  void* data = NULL;
  *is_versioned = false;
  napi_check_object_type_tag(env, capsule, &versioned_tag, is_versioned);
  napi_check_object_type_tag(env, capsule, &unversioned_tag, &is_unversioned);
  if (!*is_versioned && !is_unversioned) return NULL;
  napi_get_value_external(env, capsule, &data);
  return data;
}

static DLTensor* tensor_of(void* managed, bool is_versioned) {
  return is_versioned ? &((DLManagedTensorVersioned*)managed)->dl_tensor : &((DLManagedTensor*)managed)->dl_tensor;
}

static void call_deleter(void* managed, bool is_versioned) {
  if (is_versioned) {
    DLManagedTensorVersioned* tensor = managed;
    if (tensor->deleter != NULL) tensor->deleter(tensor);
  } else {
    DLManagedTensor* tensor = managed;
    if (tensor->deleter != NULL) tensor->deleter(tensor);
  }
}

static napi_value integers(napi_env env, const int64_t* values, int32_t count) {
  napi_value array;
  napi_create_array(env, &array);
  for (int32_t i = 0; values != NULL && i < count; i++) napi_set_element(env, array, (uint32_t)i, number(env, (double)values[i]));
  return array;
}

/* describe(capsule): what it contains. */
static napi_value describe(napi_env env, napi_callback_info info) {
  const napi_value capsule = argument(env, info);
  bool is_versioned;
  void** slot = slot_of(env, capsule, &is_versioned);
  napi_value result;
  napi_create_object(env, &result);
  if (slot == NULL || *slot == NULL) return result;
  const DLTensor* tensor = tensor_of(*slot, is_versioned);
  set(env, result, "isVersioned", is_versioned);
  if (is_versioned) {
    const DLManagedTensorVersioned* managed = *slot;
    set(env, result, "major", managed->version.major);
    set(env, result, "minor", managed->version.minor);
    set(env, result, "flags", (double)managed->flags);
  }
  set(env, result, "data", (double)(uintptr_t)tensor->data);
  set(env, result, "deviceType", tensor->device.device_type);
  set(env, result, "deviceId", tensor->device.device_id);
  set(env, result, "code", tensor->dtype.code);
  set(env, result, "bits", tensor->dtype.bits);
  set(env, result, "lanes", tensor->dtype.lanes);
  set(env, result, "byteOffset", (double)tensor->byte_offset);
  napi_set_named_property(env, result, "shape", integers(env, tensor->shape, tensor->ndim));
  napi_set_named_property(env, result, "strides", integers(env, tensor->strides, tensor->ndim));
  return result;
}

/* consume(capsule): takes the tensor, and returns its number here; -1 if there is none. */
static napi_value consume(napi_env env, napi_callback_info info) {
  const napi_value capsule = argument(env, info);
  bool is_versioned;
  void** slot = slot_of(env, capsule, &is_versioned);
  if (slot == NULL || *slot == NULL || consumed_count == MOST_TENSORS) return number(env, -1);
  consumed[consumed_count].tensor = *slot;
  consumed[consumed_count].is_versioned = is_versioned;
  *slot = NULL;
  return number(env, consumed_count++);
}

/* bytes(index): the elements of one byte each of a tensor that the host can read, in C order. */
static napi_value bytes(napi_env env, napi_callback_info info) {
  int32_t index = 0;
  napi_get_value_int32(env, argument(env, info), &index);
  const DLTensor* tensor = tensor_of(consumed[index].tensor, consumed[index].is_versioned);
  int64_t at[MOST_DIMENSIONS] = {0};
  int64_t count = 1;
  napi_value array;
  napi_create_array(env, &array);
  for (int32_t i = 0; i < tensor->ndim; i++) count *= tensor->shape[i];
  for (int64_t n = 0; n < count; n++) {
    const uint8_t* place = (const uint8_t*)tensor->data + tensor->byte_offset;
    for (int32_t i = 0; i < tensor->ndim; i++) place += at[i] * tensor->strides[i];
    napi_set_element(env, array, (uint32_t)n, number(env, *place));
    for (int32_t i = tensor->ndim - 1; i >= 0 && ++at[i] == tensor->shape[i]; i--) at[i] = 0;
  }
  return array;
}

/* release(index): calls the deleter on this thread. */
static napi_value release(napi_env env, napi_callback_info info) {
  int32_t index = 0;
  napi_get_value_int32(env, argument(env, info), &index);
  void* tensor = consumed[index].tensor;
  consumed[index].tensor = NULL;
  call_deleter(tensor, consumed[index].is_versioned);
  return NULL;
}

static void* release_all(void* unused) {
  (void)unused;
  for (int i = 0; i < consumed_count; i++) {
    if (consumed[i].tensor != NULL) call_deleter(consumed[i].tensor, consumed[i].is_versioned);
    consumed[i].tensor = NULL;
  }
  return NULL;
}

/* releaseOnThread(): calls the deleters of all tensors on another thread, and waits for it. */
static napi_value release_on_thread(napi_env env, napi_callback_info info) {
  (void)env;
  (void)info;
  pthread_t thread;
  if (pthread_create(&thread, NULL, release_all, NULL) == 0) pthread_join(thread, NULL);
  return NULL;
}

struct Produced {
  DLManagedTensor unversioned;
  DLManagedTensorVersioned versioned;
  int64_t shape[MOST_DIMENSIONS];
  int64_t strides[MOST_DIMENSIONS];
  void* memory;
};

static void end_produced(struct Produced* produced) {
  pthread_mutex_lock(&mutex);
  deleted_count++;
  pthread_mutex_unlock(&mutex);
  free(produced->memory);
  free(produced);
}
static void delete_unversioned(DLManagedTensor* self) { end_produced(self->manager_ctx); }
static void delete_versioned(DLManagedTensorVersioned* self) { end_produced(self->manager_ctx); }

static void end_versioned(napi_env env, void* data, void* hint) {
  (void)env;
  (void)hint;
  void** slot = data;
  if (*slot != NULL) call_deleter(*slot, true);
  free(slot);
}
static void end_unversioned(napi_env env, void* data, void* hint) {
  (void)env;
  (void)hint;
  void** slot = data;
  if (*slot != NULL) call_deleter(*slot, false);
  free(slot);
}

/* Reads at most MOST_DIMENSIONS numbers of an array; -1 if there is none. */
static int32_t read_integers(napi_env env, napi_value object, const char* name, int64_t* values) {
  napi_value array;
  bool is_array = false;
  uint32_t length = 0;
  napi_get_named_property(env, object, name, &array);
  napi_is_array(env, array, &is_array);
  if (!is_array) return -1;
  napi_get_array_length(env, array, &length);
  for (uint32_t i = 0; i < length && i < MOST_DIMENSIONS; i++) {
    napi_value element;
    double value = 0;
    napi_get_element(env, array, i, &element);
    napi_get_value_double(env, element, &value);
    values[i] = value >= 9223372036854775807.0 ? INT64_MAX : value <= -9223372036854775808.0 ? INT64_MIN : (int64_t)value;
  }
  return (int32_t)length;
}

/* produce(description): a capsule. Without `data`, it has `bytes` of its own, which count from 0 on. */
static napi_value produce(napi_env env, napi_callback_info info) {
  const napi_value object = argument(env, info);
  struct Produced* produced = calloc(1, sizeof *produced);
  const bool is_versioned = get(env, object, "isVersioned", 1) != 0;
  const size_t own_bytes = (size_t)get(env, object, "bytes", 0);
  if (own_bytes > 0) {
    produced->memory = malloc(own_bytes);
    for (size_t i = 0; i < own_bytes; i++) ((uint8_t*)produced->memory)[i] = (uint8_t)i;
  }
  DLTensor tensor;
  memset(&tensor, 0, sizeof tensor);
  tensor.data = own_bytes > 0 ? produced->memory : (void*)(uintptr_t)get(env, object, "data", 0);
  tensor.device.device_type = (int32_t)get(env, object, "deviceType", 1);
  tensor.device.device_id = (int32_t)get(env, object, "deviceId", 0);
  tensor.dtype.code = (uint8_t)get(env, object, "code", 1);
  tensor.dtype.bits = (uint8_t)get(env, object, "bits", 8);
  tensor.dtype.lanes = (uint16_t)get(env, object, "lanes", 1);
  tensor.byte_offset = (uint64_t)get(env, object, "byteOffset", 0);
  const int32_t ndim = read_integers(env, object, "shape", produced->shape);
  tensor.shape = ndim < 0 ? NULL : produced->shape;
  tensor.ndim = (int32_t)get(env, object, "ndim", ndim < 0 ? 0 : ndim);
  tensor.strides = read_integers(env, object, "strides", produced->strides) < 0 ? NULL : produced->strides;
  produced->unversioned.dl_tensor = tensor;
  produced->unversioned.manager_ctx = produced;
  produced->unversioned.deleter = get(env, object, "hasNoDeleter", 0) != 0 ? NULL : delete_unversioned;
  produced->versioned.dl_tensor = tensor;
  produced->versioned.manager_ctx = produced;
  produced->versioned.deleter = get(env, object, "hasNoDeleter", 0) != 0 ? NULL : delete_versioned;
  produced->versioned.version.major = (uint32_t)get(env, object, "major", 1);
  produced->versioned.version.minor = (uint32_t)get(env, object, "minor", 1);
  produced->versioned.flags = (uint64_t)get(env, object, "flags", 0);
  void** slot = malloc(sizeof *slot);
  *slot = is_versioned ? (void*)&produced->versioned : (void*)&produced->unversioned;
  napi_value capsule;
  napi_create_external(env, slot, is_versioned ? end_versioned : end_unversioned, NULL, &capsule);
  napi_type_tag_object(env, capsule, is_versioned ? &versioned_tag : &unversioned_tag);
  return capsule;
}

/* deletedCount(): how many of the produced tensors were deleted. */
static napi_value count_deleted(napi_env env, napi_callback_info info) {
  (void)info;
  pthread_mutex_lock(&mutex);
  const int count = deleted_count;
  pthread_mutex_unlock(&mutex);
  return number(env, count);
}

/* forgeries(): values that look like capsules and are none. */
static napi_value forgeries(napi_env env, napi_callback_info info) {
  (void)info;
  static int anything;
  napi_value array, value;
  uint32_t count = 0;
  napi_create_array(env, &array);
  napi_create_external(env, &anything, NULL, NULL, &value);
  napi_set_element(env, array, count++, value);
  napi_create_external(env, &anything, NULL, NULL, &value);
  napi_type_tag_object(env, value, &other_tag);
  napi_set_element(env, array, count++, value);
  napi_create_object(env, &value);
  napi_type_tag_object(env, value, &versioned_tag);
  napi_set_element(env, array, count++, value);
  napi_create_external(env, NULL, NULL, NULL, &value);
  napi_type_tag_object(env, value, &versioned_tag);
  napi_set_element(env, array, count++, value);
  return array;
}

NAPI_MODULE_INIT() {
  const struct {
    const char* name;
    napi_callback function;
  } functions[] = {
      {"describe", describe},
      {"consume", consume},
      {"bytes", bytes},
      {"release", release},
      {"releaseOnThread", release_on_thread},
      {"produce", produce},
      {"deletedCount", count_deleted},
      {"forgeries", forgeries},
  };
  for (size_t i = 0; i < sizeof functions / sizeof functions[0]; i++) {
    napi_value function;
    napi_create_function(env, functions[i].name, NAPI_AUTO_LENGTH, functions[i].function, NULL, &function);
    napi_set_named_property(env, exports, functions[i].name, function);
  }
  return exports;
}
