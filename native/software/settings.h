// How much memory and how many devices: from Configure, from the environment, or from the machine, in this order.
#ifndef CISTERN_SOFTWARE_SETTINGS_H_
#define CISTERN_SOFTWARE_SETTINGS_H_

#include <cstdint>

#include "cuda/driver_table.h"

namespace cistern::software {

inline constexpr std::uint64_t kMaxTotalBytes = std::uint64_t{1} << 42;

struct Settings {
  std::uint64_t total_bytes;  // 0: not set
  int device_count;           // 0: not set
};

// Memory of the machine, or of the control group that this process lives in where that is less.
std::uint64_t MachineMemory();

// Fills in what is not set. kErrorInvalidValue where CISTERN_SOFTWARE_MEMORY or CISTERN_SOFTWARE_DEVICES is needed and malformed.
Status CompleteSettings(Settings* settings);

}  // namespace cistern::software

#endif  // CISTERN_SOFTWARE_SETTINGS_H_
