// Failures and delays of calls that a test asks for, as it asks the software device for them.
#ifndef CISTERN_STRICT_DRIVER_INJECTION_H_
#define CISTERN_STRICT_DRIVER_INJECTION_H_

#include <cstdint>
#include <string>

#include "strict_driver/state.h"

namespace cistern::strict {

// The status that this call fails with. Under the lock, which is released for a delay.
Status Inject(Lock& lock, const std::string& function);

// The nth next call of the function fails; 0: none. True if a failure that was asked for before had not come yet.
bool FailCall(const std::string& function, std::uint64_t nth, Status status);

// Once the failure of the first function has come, the nth next call of the second fails.
void FailCallAfter(const std::string& first, const std::string& function, std::uint64_t nth, Status status);

void SetLatency(const std::string& function, std::uint64_t nanoseconds);

}  // namespace cistern::strict

#endif  // CISTERN_STRICT_DRIVER_INJECTION_H_
