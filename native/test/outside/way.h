// The driver's functions as a program has found them, in one way or another.
#ifndef CISTERN_TEST_OUTSIDE_WAY_H_
#define CISTERN_TEST_OUTSIDE_WAY_H_

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#include <cstring>

#include "cuda/driver_table.h"

namespace outside {

using namespace cistern;

// Opens the driver as cudart does.
inline void* Driver() {
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    fprintf(stderr, "%s\n", dlerror());
    exit(3);
  }
  return library;
}

struct Way {
  enum Kind { kDlsym, kLegacy, kPerThread, kOldProcAddress } kind;

  // A function by both of its names, and the version that introduced it.
  template <typename Function>
  Function Find(const char* symbol, const char* exported, int version) const {
    void* library = Driver();
    void* address = nullptr;
    if (kind == kDlsym) {
      address = dlsym(library, exported);
    } else if (kind == kOldProcAddress) {
      using Get = Status (*)(const char*, void**, int, unsigned long long);
      reinterpret_cast<Get>(dlsym(library, "cuGetProcAddress"))(symbol, &address, version, 1);
    } else {
      using Get = Status (*)(const char*, void**, int, unsigned long long, int*);
      const auto first = reinterpret_cast<Get>(dlsym(library, "cuGetProcAddress_v2"));
      // cudart asks cuGetProcAddress for itself, too.
      void* get = nullptr;
      first("cuGetProcAddress", &get, 12000, 0, nullptr);
      reinterpret_cast<Get>(get)(symbol, &address, version, kind == kPerThread ? 2 : 1, nullptr);
    }
    if (address == nullptr) {
      fprintf(stderr, "no %s\n", symbol);
      exit(4);
    }
    return reinterpret_cast<Function>(address);
  }
};

}  // namespace outside

#endif  // CISTERN_TEST_OUTSIDE_WAY_H_
