// Failures and delays of calls, requested by tests in the same way as from the software device.
#ifndef CISTERN_STRICT_DRIVER_INJECTION_H_
#define CISTERN_STRICT_DRIVER_INJECTION_H_

#include <cstdint>
#include <string>

#include "strict_driver/state.h"

namespace cistern::strict {

// The status with which this call fails. Takes the lock, and releases it for a delay.
Status Inject(Lock& lock, const std::string& function);

// Makes the nth next call of the function fail; 0: none. True if an earlier failure was still
// pending.
bool FailCall(const std::string& function, std::uint64_t nth, Status status);

// Once the failure of the first function has happened, the nth next call of the second fails.
void FailCallAfter(const std::string& first, const std::string& function, std::uint64_t nth, Status status);

void SetLatency(const std::string& function, std::uint64_t nanoseconds);

}  // namespace cistern::strict

#endif  // CISTERN_STRICT_DRIVER_INJECTION_H_
