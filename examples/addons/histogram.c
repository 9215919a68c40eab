/*
 * An addon in C with cistern.h alone: histogram(buffer, resource) counts the bytes of a buffer, and
 * returns the 256 counts in a buffer with memory of the resource. Both must be memory that the host
 * can use; an addon for device memory would launch a kernel on the buffer's stream instead.
 */
#include <cistern.h>
#include <string.h>

static void close_interface(napi_env env, void* data, void* hint) {
  (void)hint;
  cistern_close(env, data);
  free(data);
}

/* open(addonInterface): must be called first. */
static napi_value open_interface(napi_env env, napi_callback_info info) {
  size_t count = 1;
  napi_value argument;
  cistern_interface* opened = calloc(1, sizeof *opened);
  napi_get_cb_info(env, info, &count, &argument, NULL, NULL);
  opened->size = sizeof *opened;
  if (cistern_open(env, argument, opened) != napi_ok) {
    free(opened);
    return NULL;
  }
  napi_set_instance_data(env, opened, close_interface, NULL);
  return NULL;
}

static napi_value histogram(napi_env env, napi_callback_info info) {
  cistern_interface* opened = NULL;
  cistern_buffer buffer = {.size = sizeof buffer};
  cistern_resource resource = {.size = sizeof resource};
  const uint64_t bytes = 256 * sizeof(uint32_t);
  uint64_t pointer;
  size_t count = 2;
  napi_value arguments[2];
  napi_value result = NULL;
  napi_get_cb_info(env, info, &count, arguments, NULL, NULL);
  napi_get_instance_data(env, (void**)&opened);
  if (opened == NULL) {
    napi_throw_error(env, NULL, "open was not called");
    return NULL;
  }
  if (cistern_get_buffer(env, opened, arguments[0], &buffer) != napi_ok) return NULL;
  if (cistern_get_resource(env, opened, arguments[1], &resource) != napi_ok) return NULL;
  if (buffer.memory_kind == CISTERN_DEVICE || resource.memory_kind == CISTERN_DEVICE) {
    napi_throw_type_error(env, NULL, "the host cannot use device memory");
    return NULL;
  }
  if (resource.allocate(&resource, bytes, buffer.stream, &pointer) != napi_ok) return NULL;
  uint32_t* counts = (uint32_t*)(uintptr_t)pointer;
  memset(counts, 0, bytes);
  for (uint64_t i = 0; i < buffer.byte_length; i++) counts[((const uint8_t*)(uintptr_t)buffer.pointer)[i]]++;
  if (cistern_adopt(&resource, pointer, bytes, buffer.stream, &result) != napi_ok) {
    /* The exception of cistern_adopt stays pending, so nothing more can be called here. */
    return NULL;
  }
  return result;
}

NAPI_MODULE_INIT() {
  napi_value function;
  napi_create_function(env, "open", NAPI_AUTO_LENGTH, open_interface, NULL, &function);
  napi_set_named_property(env, exports, "open", function);
  napi_create_function(env, "histogram", NAPI_AUTO_LENGTH, histogram, NULL, &function);
  napi_set_named_property(env, exports, "histogram", function);
  return exports;
}
