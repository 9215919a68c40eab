// The driver's shared library: only this file knows how an operating system names, finds and opens
// it.
#ifndef CISTERN_CUDA_DRIVER_LIBRARY_H_
#define CISTERN_CUDA_DRIVER_LIBRARY_H_

#include <string>

namespace cistern::cuda {

// The name that is searched for.
extern const char* const kDriverLibraryName;

// Opens the library for the rest of the process's life. Null on failure; `failure` then says where
// it was searched for and why it could not be opened.
void* OpenDriverLibrary(std::string* failure);

// The address of an exported function, or null.
void* FindDriverSymbol(void* library, const char* name);

}  // namespace cistern::cuda

#endif  // CISTERN_CUDA_DRIVER_LIBRARY_H_
