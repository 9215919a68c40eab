/*
 * An addon in C that launches kernels of its own: step(resource, stream, words, value) queues them on a
 * stream, with memory of the resource, and returns a buffer. While the stream is captured, the kernels
 * become a part of the graph, and a GraphMemoryResource serves the memory; nothing here differs.
 *
 * The driver's functions come from the libcuda.so.1 that cistern has loaded, as this addon links with
 * nothing. On Windows, that is GetModuleHandle("nvcuda.dll").
 */
#include <cistern.h>
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

/* Of cuda.h, which an addon with CUDA's toolkit would include. */
typedef int CUresult;
typedef CUresult (*get_proc_address)(const char* symbol, void** function, int version, uint64_t flags, int* status);
typedef CUresult (*primary_context)(void** context, int device);
typedef CUresult (*set_context)(void* context);
typedef CUresult (*get_context)(void** context);
typedef CUresult (*load_module)(void** module, const void* image);
typedef CUresult (*get_function)(void** function, void* module, const char* name);
typedef CUresult (*launch_kernel)(void* function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,
                                  unsigned block_z, unsigned shared_bytes, void* stream, void** parameters, void** extra);

enum { version = 12000, device = 0, block_threads = 256 };

typedef struct {
  cistern_interface cistern;
  get_context get_current;
  set_context set_current;
  launch_kernel launch;
  void* context;
  void* fill;
} addon;

static void close_addon(napi_env env, void* data, void* hint) {
  addon* closed = data;
  (void)hint;
  cistern_close(env, &closed->cistern);
  free(closed);
}

static napi_value fail(napi_env env, const char* call, CUresult result) {
  char message[64];
  snprintf(message, sizeof message, "%s: CUDA error %d", call, result);
  napi_throw_error(env, NULL, message);
  return NULL;
}

static void* find(get_proc_address get, const char* name) {
  void* function = NULL;
  int status = 0;
  return get(name, &function, version, 0, &status) == 0 ? function : NULL;
}

/* Loads the module, and gets its kernel `fill`. Returns the name of what failed. */
static const char* load(addon* opened, const char* image, CUresult* result) {
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  get_proc_address get = library == NULL ? NULL : (get_proc_address)dlsym(library, "cuGetProcAddress_v2");
  void* module = NULL;
  *result = 0;
  if (get == NULL) return "the process has loaded no driver of CUDA";
  primary_context retain = (primary_context)find(get, "cuDevicePrimaryCtxRetain");
  load_module load_data = (load_module)find(get, "cuModuleLoadData");
  get_function function = (get_function)find(get, "cuModuleGetFunction");
  opened->get_current = (get_context)find(get, "cuCtxGetCurrent");
  opened->set_current = (set_context)find(get, "cuCtxSetCurrent");
  opened->launch = (launch_kernel)find(get, "cuLaunchKernel");
  if (!retain || !load_data || !function || !opened->get_current || !opened->set_current || !opened->launch) return "the driver is too old";
  void* before = NULL;
  if ((*result = retain(&opened->context, device)) != 0) return "cuDevicePrimaryCtxRetain";
  opened->get_current(&before);
  opened->set_current(opened->context);
  const char* failed = (*result = load_data(&module, image)) != 0 ? "cuModuleLoadData" : NULL;
  if (failed == NULL && (*result = function(&opened->fill, module, "fill")) != 0) failed = "cuModuleGetFunction";
  opened->set_current(before);
  return failed;
}

/* open(addonInterface, module): must be called first, and not while a stream is captured. The module is PTX. */
static napi_value open_addon(napi_env env, napi_callback_info info) {
  size_t count = 2;
  size_t length = 0;
  napi_value arguments[2];
  CUresult result = 0;
  addon* opened = calloc(1, sizeof *opened);
  opened->cistern.size = sizeof opened->cistern;
  napi_get_cb_info(env, info, &count, arguments, NULL, NULL);
  if (cistern_open(env, arguments[0], &opened->cistern) != napi_ok) {
    free(opened);
    return NULL;
  }
  napi_set_instance_data(env, opened, close_addon, NULL);
  if (napi_get_value_string_utf8(env, arguments[1], NULL, 0, &length) != napi_ok) {
    napi_throw_type_error(env, NULL, "module must be a string");
    return NULL;
  }
  char* image = malloc(length + 1);
  napi_get_value_string_utf8(env, arguments[1], image, length + 1, NULL);
  const char* failed = load(opened, image, &result);
  free(image);
  if (failed == NULL) return NULL;
  if (result != 0) return fail(env, failed, result);
  napi_throw_error(env, NULL, failed);
  return NULL;
}

/* Queues a kernel that sets words. */
static CUresult fill(const addon* opened, uint64_t pointer, uint64_t words, uint32_t value, uint64_t stream) {
  void* before = NULL;
  void* parameters[] = {&pointer, &words, &value};
  const unsigned blocks = (unsigned)((words + block_threads - 1) / block_threads);
  opened->get_current(&before);
  opened->set_current(opened->context);
  const CUresult result =
      opened->launch(opened->fill, blocks, 1, 1, block_threads, 1, 1, 0, (void*)(uintptr_t)stream, parameters, NULL);
  opened->set_current(before);
  return result;
}

static napi_value step(napi_env env, napi_callback_info info) {
  addon* opened = NULL;
  cistern_resource resource = {.size = sizeof resource};
  size_t count = 4;
  napi_value arguments[4];
  napi_value buffer = NULL;
  int64_t stream = 0;
  uint32_t words = 0;
  uint32_t value = 0;
  uint64_t scratch;
  uint64_t output;
  napi_get_cb_info(env, info, &count, arguments, NULL, NULL);
  napi_get_instance_data(env, (void**)&opened);
  if (opened == NULL || opened->fill == NULL) {
    napi_throw_error(env, NULL, "open was not called");
    return NULL;
  }
  if (cistern_get_resource(env, &opened->cistern, arguments[0], &resource) != napi_ok) return NULL;
  if (napi_get_value_int64(env, arguments[1], &stream) != napi_ok || napi_get_value_uint32(env, arguments[2], &words) != napi_ok ||
      napi_get_value_uint32(env, arguments[3], &value) != napi_ok || words == 0) {
    napi_throw_type_error(env, NULL, "stream, words and value must be numbers, and there must be words");
    return NULL;
  }
  const uint64_t bytes = (uint64_t)words * sizeof(uint32_t);
  if (resource.allocate(&resource, bytes, (uint64_t)stream, &scratch) != napi_ok) return NULL;
  CUresult result = fill(opened, scratch, words, value + 1, (uint64_t)stream);
  if (resource.deallocate(&resource, scratch, bytes, (uint64_t)stream) != napi_ok) return NULL;
  if (result != 0) return fail(env, "cuLaunchKernel", result);
  /* The stream has freed the scratch memory, so the output may lie in it. */
  if (resource.allocate(&resource, bytes, (uint64_t)stream, &output) != napi_ok) return NULL;
  result = fill(opened, output, words, value, (uint64_t)stream);
  if (result != 0) {
    resource.deallocate(&resource, output, bytes, (uint64_t)stream);
    return fail(env, "cuLaunchKernel", result);
  }
  /* If this fails, its exception stays pending, so nothing more can be called here. */
  return cistern_adopt(&resource, output, bytes, (uint64_t)stream, &buffer) == napi_ok ? buffer : NULL;
}

NAPI_MODULE_INIT() {
  napi_value function;
  napi_create_function(env, "open", NAPI_AUTO_LENGTH, open_addon, NULL, &function);
  napi_set_named_property(env, exports, "open", function);
  napi_create_function(env, "step", NAPI_AUTO_LENGTH, step, NULL, &function);
  napi_set_named_property(env, exports, "step", function);
  return exports;
}
