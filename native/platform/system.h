// Properties of the machine.
#ifndef CISTERN_PLATFORM_SYSTEM_H_
#define CISTERN_PLATFORM_SYSTEM_H_

#include <cstdint>

namespace cistern {

// The bytes of the machine's memory, or of this process's control group if that is less.
std::uint64_t MachineMemory();
#ifndef _WIN32
// What is left of it, as far as the system tells.
std::uint64_t AvailableMemory();
#endif

}  // namespace cistern

#endif  // CISTERN_PLATFORM_SYSTEM_H_
