// Loads the CUDA driver at run time.
#ifndef CISTERN_CUDA_LOADER_H_
#define CISTERN_CUDA_LOADER_H_

#include <string>

#include "cuda/driver_table.h"

namespace cistern::cuda {

struct LoadResult {
  const DriverTable* table;  // null if no usable driver was found
  std::string missing;       // a line for each function that the driver lacks: its name, a tab, and what that costs
  std::string reason;        // empty if table is set; else one sentence with what was searched for, where, and what failed
};

// Loads libcuda, resolves the table and initialises the driver. A success is kept for the process;
// after a failure the next call tries again, since the driver may be installed, or a device made
// visible, in the meantime. Thread-safe.
LoadResult Load();

}  // namespace cistern::cuda

#endif  // CISTERN_CUDA_LOADER_H_
