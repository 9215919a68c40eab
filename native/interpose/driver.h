// The driver behind this library.
#ifndef CISTERN_INTERPOSE_DRIVER_H_
#define CISTERN_INTERPOSE_DRIVER_H_

#include <atomic>

#include "cuda/driver_table.h"

namespace cistern::interpose {

// A function of the driver that this library stands in front of.
struct Hook {
  const char* symbol;    // as cuGetProcAddress knows it
  const char* exported;  // as the library exports it
  int version;           // that introduced this form
  bool is_per_thread;    // the form for per-thread default streams
  void* stand_in;
  std::atomic<void*> real;
};

// The driver's own function, or null if there is no driver.
void* RealOf(Hook& hook);

// Whether the program has found one.
bool HasDriver();

// A function of the driver that is only asked something, or null.
void* FindInDriver(const char* symbol, const char* exported, int version);

// If a caller was about to get a function of the driver that is stood in for, it gets the stand-in.
void* Substitute(const char* exported, void* real);

// All hooks.
extern Hook* const* const kHooks;
extern const int kHookCount;

}  // namespace cistern::interpose

#endif  // CISTERN_INTERPOSE_DRIVER_H_
