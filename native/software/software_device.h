// The software device: an implementation of the driver table over host memory and threads.
#ifndef CISTERN_SOFTWARE_SOFTWARE_DEVICE_H_
#define CISTERN_SOFTWARE_SOFTWARE_DEVICE_H_

#include <cstdint>

#include "cuda/driver_table.h"

namespace cistern::software {

// The table. It can be called from any thread at any time, before Configure too (defaults apply then).
const DriverTable& Table();

// Sets the memory of every software device, in bytes, and how many devices there are (1 to 8).
// The device count is fixed by the first cuInit; later calls may only repeat it. The memory may change at any time, but not below what is
// in use. Zero leaves a value as it is. Returns kErrorInvalidValue for a value out of range and kErrorNotPermitted for a change that
// comes too late; nothing is changed then.
Status Configure(std::uint64_t total_bytes, int device_count);

// See IsStrict in settings.h. May change at any time; false at first unless CISTERN_SOFTWARE_STRICT is 1.
void SetStrict(bool strict);

// Every later call of this function takes at least this long on the calling thread. Zero ends it.
void SetLatency(Call call, std::uint64_t nanoseconds);

// The nth call of this function from now on (1 is the next) returns `status` and does nothing else. Zero ends it. Returns whether a failure
// that was asked for before has not come yet; it does not come any more.
bool FailCall(Call call, std::uint64_t nth, Status status);

// Once the failure that was asked for of `first` has come, the nth call of a second function, which may be the same, fails. FailCall of
// `first` takes it back.
void FailCallAfter(Call first, Call call, std::uint64_t nth, Status status);

}  // namespace cistern::software

#endif  // CISTERN_SOFTWARE_SOFTWARE_DEVICE_H_
