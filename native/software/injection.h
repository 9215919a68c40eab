// Latency and failures that a test asks for. While none is asked for, a call pays one load.
#ifndef CISTERN_SOFTWARE_INJECTION_H_
#define CISTERN_SOFTWARE_INJECTION_H_

#include <atomic>

#include "cuda/driver_table.h"

namespace cistern::software {

// How many latencies and failures are set.
extern std::atomic<int> injection_count;

// Waits, and says with what status the call fails; kSuccess lets it happen.
Status Inject(Call call);

}  // namespace cistern::software

#endif  // CISTERN_SOFTWARE_INJECTION_H_
