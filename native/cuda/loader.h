// Loads the CUDA driver at run time.
#ifndef CISTERN_CUDA_LOADER_H_
#define CISTERN_CUDA_LOADER_H_

#include <string>

#include "cuda/driver_table.h"

namespace cistern::cuda {

struct LoadResult {
  const DriverTable* table;  // null where no usable driver was found
  std::string reason;        // empty where table is set; else what was searched for, where, and what failed, in one sentence
};

// Loads libcuda, resolves the table and initialises the driver. What succeeded is kept for the process; what failed is tried again by the next
// call: the driver may be installed, or a device be made visible, meanwhile. Thread-safe.
LoadResult Load();

}  // namespace cistern::cuda

#endif  // CISTERN_CUDA_LOADER_H_
