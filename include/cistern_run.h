/*
 * For libraries and programs that want to help `cistern run`, in C: what a thread allocates from CUDA between these two calls
 * belongs to the account `name`, such as that of a model, instead of the library that allocates.
 *
 *     const unsigned before = cistern_enter_account("model-a");
 *     load(model);
 *     cistern_leave_account(before);
 *
 * Each thread has its own account. Work that napi_create_async_work creates in between has the account, too. Without
 * `cistern run`, both do nothing. This file needs nothing else of cistern.
 */
#ifndef CISTERN_RUN_H_
#define CISTERN_RUN_H_

#include <string.h>

#ifdef __linux__
#include <dlfcn.h>
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* The function of the library that `cistern run` preloads; NULL without it. */
static inline void* cistern_run_function_(const char* name) {
#ifdef __linux__
  void* self = dlopen(NULL, RTLD_LAZY);
  void* function = self == NULL ? NULL : dlsym(self, name);
  if (self != NULL) dlclose(self);
  return function;
#else
  (void)name;
  return NULL;
#endif
}

/* Returns what cistern_leave_account needs. An empty name or NULL: the library that allocates, as without any account. */
static inline unsigned cistern_enter_account(const char* name) {
  unsigned (*enter)(const char*) = NULL;
  void* function = cistern_run_function_("cistern_run_enter_account");
  memcpy(&enter, &function, sizeof(enter));
  return enter == NULL ? 0 : enter(name);
}

static inline void cistern_leave_account(unsigned before) {
  void (*leave)(unsigned) = NULL;
  void* function = cistern_run_function_("cistern_run_leave_account");
  memcpy(&leave, &function, sizeof(leave));
  if (leave != NULL) leave(before);
}

#ifdef __cplusplus
}
#endif

#endif /* CISTERN_RUN_H_ */
