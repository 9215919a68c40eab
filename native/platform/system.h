// What the machine and the environment provide.
#ifndef CISTERN_PLATFORM_SYSTEM_H_
#define CISTERN_PLATFORM_SYSTEM_H_

#include <cstdint>
#include <optional>
#include <string>

namespace cistern {

// The bytes of the machine's memory, or of this process's control group if that is less.
std::uint64_t MachineMemory();

// The present value of an environment variable, whoever set it, or nothing.
std::optional<std::string> EnvironmentVariable(const char* name);

}  // namespace cistern

#endif  // CISTERN_PLATFORM_SYSTEM_H_
