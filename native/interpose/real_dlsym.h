// The functions of the C library that this library replaces.
#ifndef CISTERN_INTERPOSE_REAL_DLSYM_H_
#define CISTERN_INTERPOSE_REAL_DLSYM_H_

namespace cistern::interpose {

using Dlsym = void* (*)(void* handle, const char* name);

Dlsym RealDlsym();

}  // namespace cistern::interpose

#endif  // CISTERN_INTERPOSE_REAL_DLSYM_H_
