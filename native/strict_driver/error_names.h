#ifndef CISTERN_STRICT_DRIVER_ERROR_NAMES_H_
#define CISTERN_STRICT_DRIVER_ERROR_NAMES_H_

#include "cuda/driver_table.h"

namespace cistern::strict {

// CUDA's name of a status, or null if CUDA has no such status.
const char* ErrorName(Status status);

}  // namespace cistern::strict

#endif  // CISTERN_STRICT_DRIVER_ERROR_NAMES_H_
