// Structures of the driver's functions that cistern itself does not call: the program passes them, and the driver of these tests reads
// them. native/interpose has its own declarations, which this compares by running.
#ifndef CISTERN_TEST_OUTSIDE_STRUCTURES_H_
#define CISTERN_TEST_OUTSIDE_STRUCTURES_H_

#include <cstddef>

#include "cuda/driver_table.h"

namespace outside {

struct ArrayShape {
  std::size_t width, height;
  int format;
  unsigned channels;
};
struct ArrayShape3D {
  std::size_t width, height, depth;
  int format;
  unsigned channels, flags;
};
struct ExternalMemory {
  int type;
  void* handle[2];
  unsigned long long bytes;
  unsigned flags;
};
struct AllocationNode {
  cistern::PoolProperties properties;
  const void* access;
  std::size_t access_count;
  std::size_t bytes;
  cistern::DevicePointer pointer;
};
struct NodeParameters {
  int type;
  int reserved[3];
  union {
    AllocationNode allocation;
    cistern::DevicePointer freed;
    long long padding[29];
  };
};

}  // namespace outside

#endif  // CISTERN_TEST_OUTSIDE_STRUCTURES_H_
