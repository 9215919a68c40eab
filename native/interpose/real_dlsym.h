// The functions of the C library that this library replaces.
#ifndef CISTERN_INTERPOSE_REAL_DLSYM_H_
#define CISTERN_INTERPOSE_REAL_DLSYM_H_

#include <dlfcn.h>

namespace cistern::interpose {

using Dlsym = void* (*)(void* handle, const char* name);

Dlsym RealDlsym();

// What is looked for and not found is not told to the program, which may ask dlerror after calls of its own.
class WithoutError {
 public:
  WithoutError() = default;
  ~WithoutError() { dlerror(); }
  WithoutError(const WithoutError&) = delete;
};

}  // namespace cistern::interpose

#endif  // CISTERN_INTERPOSE_REAL_DLSYM_H_
