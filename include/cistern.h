/*
 * cistern's interface for addons, in C. It needs only Node's headers (Node-API 6 or newer) and
 * cistern_resource.h next to it: every function is defined here. A build finds this folder with
 *
 *     node -p "require('cistern/include')"
 *
 * Call the functions on the JavaScript thread, inside a call from JavaScript; those of the table from
 * cistern_get_thread_safe_resource, on any thread. They return a napi_status. If it is not napi_ok, a
 * JavaScript exception is pending, with one of cistern's codes (docs/errors.md): return to
 * JavaScript. Addresses, sizes and handles are integers below 2^53.
 *
 * Every structure begins with its size, which you set to sizeof the structure. Later versions of
 * this header only append members, and the functions touch only those that the size covers.
 */
#ifndef CISTERN_H_
#define CISTERN_H_

#include <node_api.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include "cistern_resource.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The version of addonInterface that this header needs. */
#define CISTERN_INTERFACE_VERSION 1

/*
 * DLPack capsules: Node-API externals with one of these type tags. The data of the external points
 * to a pointer to the tensor (DLManagedTensorVersioned*, or DLManagedTensor* for the second tag).
 * To consume the capsule, read that pointer and store NULL there, on the JavaScript thread; when
 * you are done, call the tensor's deleter, on any thread. A capsule that is never consumed calls
 * the deleter when it is collected.
 */
static const napi_type_tag cistern_dlpack_versioned_tag = {0x7f1c9bd9b2d64f2bULL, 0x9a3e5f0c61d84ea7ULL};
static const napi_type_tag cistern_dlpack_unversioned_tag = {0x2b8d0c7e94f14a65ULL, 0x8c5790ab3de2f146ULL};

/* Keep one for each environment; see cistern_open. */
typedef struct cistern_interface {
  size_t size;
  napi_ref functions;
} cistern_interface;

/* A DeviceBuffer, as it is now. */
typedef struct cistern_buffer {
  size_t size;
  uint64_t pointer;        /* 0 if the capacity is 0 */
  uint64_t byte_length;    /* of the contents */
  uint64_t capacity_bytes; /* of the memory */
  uint64_t stream;         /* the driver's handle of the stream that the memory is ordered on */
  int32_t device;          /* the ordinal of the memory's device */
  int32_t memory_kind;     /* enum cistern_memory_kind */
} cistern_buffer;

/*
 * A MemoryResource, valid until the call from JavaScript returns. Use memory on `stream`, and on
 * streams ordered after it; a free is ordered on `stream`, too. `stream` is the driver's handle.
 */
typedef struct cistern_resource {
  size_t size;
  int32_t device;
  int32_t memory_kind;
  /* At least `bytes` bytes, at a multiple of 256; zero bytes give 0. */
  napi_status (*allocate)(const struct cistern_resource* resource, uint64_t bytes, uint64_t stream, uint64_t* pointer);
  /* `bytes`: as requested at the allocation. */
  napi_status (*deallocate)(const struct cistern_resource* resource, uint64_t pointer, uint64_t bytes, uint64_t stream);
  napi_env env;
  napi_value value;     /* the JavaScript object */
  napi_value functions; /* for this header */
} cistern_resource;

/* The addon's own memory, for cistern_wrap. */
typedef struct cistern_foreign_memory {
  size_t size;
  uint64_t pointer;
  uint64_t byte_length;
  uint64_t stream; /* that the memory is ordered on */
  int32_t device;  /* the ordinal of the stream's device */
  /*
   * Called exactly once, on the JavaScript thread, after the buffer has ended and the stream's work
   * has run; not called in a worker that is terminated. NULL: the memory is borrowed.
   */
  void (*release)(void* data, uint64_t pointer, uint64_t byte_length);
  void* data;
} cistern_foreign_memory;

/* The rest of this file is their implementation, and the functions that an addon calls. */

static inline napi_status cistern_fail_(napi_env env, napi_status status, const char* message) {
  bool is_pending = false;
  if (status == napi_ok) return status;
  if (napi_is_exception_pending(env, &is_pending) == napi_ok && !is_pending) napi_throw_type_error(env, "ERR_INVALID_ARG_TYPE", message);
  return status;
}

static inline napi_status cistern_number_(napi_env env, uint64_t number, napi_value* value) {
  if (number > ((uint64_t)1 << 53) - 1) {
    napi_throw_range_error(env, "ERR_OUT_OF_RANGE", "an address, a size or a handle must be an integer from 0 to 2^53 - 1");
    return napi_pending_exception;
  }
  return napi_create_double(env, (double)number, value);
}

/* Calls a function of addonInterface. */
static inline napi_status cistern_call_(napi_env env, napi_value functions, const char* name, size_t count, const napi_value* arguments,
                                        napi_value* result) {
  napi_value function;
  napi_status status = napi_get_named_property(env, functions, name, &function);
  if (status == napi_ok) status = napi_call_function(env, functions, function, count, arguments, result);
  return cistern_fail_(env, status, "cistern's addonInterface could not be called");
}

/* Calls one that returns numbers: as many as it has, and zero for the rest. */
static inline napi_status cistern_read_(napi_env env, napi_value functions, const char* name, napi_value argument, double* numbers,
                                        size_t count) {
  napi_value array;
  napi_typedarray_type type;
  size_t length = 0;
  size_t i;
  void* data = NULL;
  napi_status status = cistern_call_(env, functions, name, 1, &argument, &array);
  if (status != napi_ok) return status;
  status = napi_get_typedarray_info(env, array, &type, &length, &data, NULL, NULL);
  if (status == napi_ok && type != napi_float64_array) status = napi_invalid_arg;
  for (i = 0; i < count; i++) numbers[i] = status == napi_ok && i < length ? ((const double*)data)[i] : 0;
  return cistern_fail_(env, status, "cistern's addonInterface has an unknown form");
}

static inline napi_status cistern_functions_(napi_env env, const cistern_interface* opened, napi_value* functions) {
  return cistern_fail_(env, napi_get_reference_value(env, opened->functions, functions), "cistern_open was not called");
}

/* Opens the package's `addonInterface`. Call it once in each environment that loads the addon. */
static inline napi_status cistern_open(napi_env env, napi_value addon_interface, cistern_interface* opened) {
  napi_value value;
  napi_valuetype type = napi_undefined;
  double version = 0;
  napi_status status = napi_typeof(env, addon_interface, &type);
  if (status == napi_ok && type != napi_object) status = napi_invalid_arg;
  if (status == napi_ok) status = napi_get_named_property(env, addon_interface, "version", &value);
  if (status == napi_ok) status = napi_get_value_double(env, value, &version);
  if (status == napi_ok && version < CISTERN_INTERFACE_VERSION) status = napi_invalid_arg;
  if (status == napi_ok) status = napi_create_reference(env, addon_interface, 1, &opened->functions);
  return cistern_fail_(env, status, "the argument must be cistern's addonInterface, of the version that this addon was built for or newer");
}

/* Ends what cistern_open began. */
static inline napi_status cistern_close(napi_env env, cistern_interface* opened) {
  return cistern_fail_(env, napi_delete_reference(env, opened->functions), "cistern_open was not called");
}

#define CISTERN_HAS_(structure, type, member) ((structure)->size >= offsetof(type, member) + sizeof((structure)->member))

/* Describes a DeviceBuffer. Fails for a disposed one, and for any other value. */
static inline napi_status cistern_get_buffer(napi_env env, const cistern_interface* opened, napi_value value, cistern_buffer* buffer) {
  double numbers[6];
  napi_value functions;
  napi_status status = cistern_functions_(env, opened, &functions);
  if (status == napi_ok) status = cistern_read_(env, functions, "describeBuffer", value, numbers, 6);
  if (status != napi_ok) return status;
  if (CISTERN_HAS_(buffer, cistern_buffer, pointer)) buffer->pointer = (uint64_t)numbers[0];
  if (CISTERN_HAS_(buffer, cistern_buffer, byte_length)) buffer->byte_length = (uint64_t)numbers[1];
  if (CISTERN_HAS_(buffer, cistern_buffer, capacity_bytes)) buffer->capacity_bytes = (uint64_t)numbers[2];
  if (CISTERN_HAS_(buffer, cistern_buffer, stream)) buffer->stream = (uint64_t)numbers[3];
  if (CISTERN_HAS_(buffer, cistern_buffer, device)) buffer->device = (int32_t)numbers[4];
  if (CISTERN_HAS_(buffer, cistern_buffer, memory_kind)) buffer->memory_kind = (int32_t)numbers[5];
  return napi_ok;
}

static inline napi_status cistern_allocate_(const cistern_resource* resource, uint64_t bytes, uint64_t stream, uint64_t* pointer) {
  const napi_env env = resource->env;
  napi_value arguments[3];
  napi_value result;
  double address = 0;
  napi_status status;
  arguments[0] = resource->value;
  status = cistern_number_(env, bytes, &arguments[1]);
  if (status == napi_ok) status = cistern_number_(env, stream, &arguments[2]);
  if (status == napi_ok) status = cistern_call_(env, resource->functions, "allocate", 3, arguments, &result);
  if (status == napi_ok) status = napi_get_value_double(env, result, &address);
  *pointer = status == napi_ok ? (uint64_t)address : 0;
  return cistern_fail_(env, status, "the resource did not return an address");
}

static inline napi_status cistern_deallocate_(const cistern_resource* resource, uint64_t pointer, uint64_t bytes, uint64_t stream) {
  const napi_env env = resource->env;
  napi_value arguments[4];
  napi_value result;
  napi_status status;
  arguments[0] = resource->value;
  status = cistern_number_(env, pointer, &arguments[1]);
  if (status == napi_ok) status = cistern_number_(env, bytes, &arguments[2]);
  if (status == napi_ok) status = cistern_number_(env, stream, &arguments[3]);
  if (status == napi_ok) status = cistern_call_(env, resource->functions, "deallocate", 4, arguments, &result);
  return status;
}

/* Describes a MemoryResource, of cistern or of the program. Fails for any other value. */
static inline napi_status cistern_get_resource(napi_env env, const cistern_interface* opened, napi_value value,
                                               cistern_resource* resource) {
  double numbers[2];
  napi_value functions;
  napi_status status = cistern_functions_(env, opened, &functions);
  if (status == napi_ok) status = cistern_read_(env, functions, "describeResource", value, numbers, 2);
  if (status != napi_ok) return status;
  if (!CISTERN_HAS_(resource, cistern_resource, functions))
    return cistern_fail_(env, napi_invalid_arg, "the size of a cistern_resource is not set");
  resource->device = (int32_t)numbers[0];
  resource->memory_kind = (int32_t)numbers[1];
  resource->allocate = cistern_allocate_;
  resource->deallocate = cistern_deallocate_;
  resource->env = env;
  resource->value = value;
  resource->functions = functions;
  return napi_ok;
}

/*
 * The table of a ThreadSafeArenaMemoryResource, whose functions any thread may call until release. Fails for
 * any other resource, and with an older version of cistern, which has no table.
 */
static inline napi_status cistern_get_thread_safe_resource(napi_env env, const cistern_interface* opened, napi_value value,
                                                           const cistern_thread_safe_resource** resource) {
  double address = 0;
  napi_value functions;
  napi_status status = cistern_functions_(env, opened, &functions);
  *resource = NULL;
  if (status == napi_ok) status = cistern_read_(env, functions, "threadSafeResource", value, &address, 1);
  if (status != napi_ok) return status;
  *resource = (const cistern_thread_safe_resource*)(uintptr_t)address;
  return napi_ok;
}

/*
 * Makes a DeviceBuffer with memory that was allocated from the resource with `bytes` bytes. The buffer
 * frees it there. If this fails, you still own the memory, unless a buffer of this thread owns it already
 * (`ERR_CISTERN_INVALID_STATE`). Memory of a thread-safe resource may come from any thread; pass the result
 * of cistern_get_resource for the same object.
 */
static inline napi_status cistern_adopt(const cistern_resource* resource, uint64_t pointer, uint64_t bytes, uint64_t stream,
                                        napi_value* buffer) {
  const napi_env env = resource->env;
  napi_value arguments[4];
  napi_status status;
  arguments[0] = resource->value;
  status = cistern_number_(env, pointer, &arguments[1]);
  if (status == napi_ok) status = cistern_number_(env, bytes, &arguments[2]);
  if (status == napi_ok) status = cistern_number_(env, stream, &arguments[3]);
  if (status == napi_ok) status = cistern_call_(env, resource->functions, "adopt", 4, arguments, buffer);
  return status;
}

static inline napi_value cistern_release_(napi_env env, napi_callback_info info) {
  cistern_foreign_memory* memory = NULL;
  void* data = NULL;
  napi_get_cb_info(env, info, NULL, NULL, NULL, &data);
  memory = (cistern_foreign_memory*)data;
  if (memory != NULL && memory->release != NULL) {
    void (*release)(void*, uint64_t, uint64_t) = memory->release;
    memory->release = NULL;
    release(memory->data, memory->pointer, memory->byte_length);
  }
  return NULL;
}

static inline void cistern_forget_(napi_env env, void* data, void* hint) {
  (void)env;
  (void)hint;
  free(data);
}

/*
 * Makes a DeviceBuffer over the addon's own memory, which the driver must know, as
 * wrapMemory does. If this fails, you still own the memory, and it is not released.
 */
static inline napi_status cistern_wrap(napi_env env, const cistern_interface* opened, const cistern_foreign_memory* memory,
                                       napi_value* buffer) {
  napi_value arguments[5];
  napi_value functions;
  cistern_foreign_memory* copy = NULL;
  napi_status status = cistern_functions_(env, opened, &functions);
  if (status == napi_ok && !CISTERN_HAS_(memory, cistern_foreign_memory, data)) status = napi_invalid_arg;
  if (status == napi_ok) status = cistern_number_(env, memory->pointer, &arguments[0]);
  if (status == napi_ok) status = cistern_number_(env, memory->byte_length, &arguments[1]);
  if (status == napi_ok) status = napi_create_int32(env, memory->device, &arguments[2]);
  if (status == napi_ok) status = cistern_number_(env, memory->stream, &arguments[3]);
  if (status == napi_ok) status = napi_get_undefined(env, &arguments[4]);
  if (status == napi_ok && memory->release != NULL) {
    copy = (cistern_foreign_memory*)malloc(sizeof *copy);
    if (copy == NULL) status = napi_generic_failure;
    if (status == napi_ok) {
      *copy = *memory;
      status = napi_create_function(env, "release", NAPI_AUTO_LENGTH, cistern_release_, copy, &arguments[4]);
    }
    if (status == napi_ok) status = napi_add_finalizer(env, arguments[4], copy, cistern_forget_, NULL, NULL);
    if (status != napi_ok) free(copy);
  }
  if (status != napi_ok) return cistern_fail_(env, status, "the memory could not be described to cistern");
  return cistern_call_(env, functions, "wrap", 5, arguments, buffer);
}

#undef CISTERN_HAS_

#ifdef __cplusplus
}
#endif

#endif /* CISTERN_H_ */
