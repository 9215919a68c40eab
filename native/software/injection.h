// Latencies and failures requested by tests. While there are none, a call pays one load.
#ifndef CISTERN_SOFTWARE_INJECTION_H_
#define CISTERN_SOFTWARE_INJECTION_H_

#include <atomic>
#include <chrono>

#include "cuda/driver_table.h"

namespace cistern::software {

// The number of latencies and failures that are set, and of locks of the process (checkpoint.h).
extern std::atomic<int> injection_count;

// Waits, and returns the status with which the call fails; with kSuccess the call proceeds.
Status Inject(Call call);

// Waits at least this long.
void Delay(std::chrono::nanoseconds duration);

}  // namespace cistern::software

#endif  // CISTERN_SOFTWARE_INJECTION_H_
