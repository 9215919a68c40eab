// Shared libraries: the driver's, and this one.
#ifndef CISTERN_PLATFORM_LIBRARY_H_
#define CISTERN_PLATFORM_LIBRARY_H_

#include <string>

namespace cistern {

// The name under which the driver's library is searched for.
extern const char* const kDriverLibraryName;

// Opens the driver's library for the rest of the process's life. Null on failure; `failure` then says
// where it was searched for and why it could not be opened.
void* OpenDriverLibrary(std::string* failure);

// Opens another library for the rest of the process's life: by its name where libraries of the system are searched for, or by its
// whole path. Null on failure; `failure` then says why.
void* OpenLibrary(const std::string& name, std::string* failure);

// The address of an exported function, or null.
void* FindDriverSymbol(void* library, const char* name);

// The address of a function of any library that the program was started with, or null.
void* FindProgramSymbol(const char* name);

// The library that has this function stays loaded until the process ends.
void KeepLibraryLoaded();

}  // namespace cistern

#endif  // CISTERN_PLATFORM_LIBRARY_H_
