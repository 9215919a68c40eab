// A library that links with the driver.
#include <dlfcn.h>

#include "cuda/driver_table.h"

// Keeps compilers from making the call before it a jump, behind which this library would not be the caller.
static inline void BehindCall() { asm volatile("" ::: "memory"); }

extern "C" {
cistern::Status cuMemAlloc_v2(cistern::DevicePointer* pointer, std::size_t bytes);
cistern::Status cuMemFree_v2(cistern::DevicePointer pointer);

__attribute__((visibility("default"))) int linked_allocate(cistern::DevicePointer* pointer, std::size_t bytes) {
  const cistern::Status status = cuMemAlloc_v2(pointer, bytes);
  BehindCall();
  return status;
}
__attribute__((visibility("default"))) int linked_free(cistern::DevicePointer pointer) {
  const cistern::Status status = cuMemFree_v2(pointer);
  BehindCall();
  return status;
}
}

// The function of this name behind this library: there is none.
extern "C" __attribute__((visibility("default"))) void* linked_next() {
  void* next = dlsym(RTLD_NEXT, "linked_next");
  BehindCall();
  return next;
}
