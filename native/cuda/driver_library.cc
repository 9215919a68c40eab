#include "cuda/driver_library.h"

#include <cstdlib>

#ifdef _WIN32
#define WIN32_LEAN_AND_MEAN
#include <windows.h>
#else
#include <dlfcn.h>
#endif

namespace cistern::cuda {

#ifdef _WIN32

const char* const kDriverLibraryName = "nvcuda.dll";

void* OpenDriverLibrary(std::string* failure) {
  // Only the system's folder: the driver's installer puts the library there, and a file of that
  // name in the working directory must not be run.
  void* library = LoadLibraryExA(kDriverLibraryName, nullptr, LOAD_LIBRARY_SEARCH_SYSTEM32);
  if (library == nullptr) *failure = "in the system folder: error " + std::to_string(GetLastError());
  return library;
}

void* FindDriverSymbol(void* library, const char* name) {
  return reinterpret_cast<void*>(GetProcAddress(static_cast<HMODULE>(library), name));
}

#else

const char* const kDriverLibraryName = "libcuda.so.1";

void* OpenDriverLibrary(std::string* failure) {
  void* library = dlopen(kDriverLibraryName, RTLD_NOW | RTLD_LOCAL);
  if (library != nullptr) return library;
  const char* error = dlerror();
  const char* path = std::getenv("LD_LIBRARY_PATH");
  *failure = "on the dynamic linker's path (LD_LIBRARY_PATH ";
  *failure += path != nullptr && *path != '\0' ? "is '" + std::string(path) + "'" : "is not set";
  *failure += "): ";
  *failure += error != nullptr ? error : "unknown error";
  return nullptr;
}

void* FindDriverSymbol(void* library, const char* name) { return dlsym(library, name); }

#endif

}  // namespace cistern::cuda
