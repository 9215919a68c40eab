// The software device: an implementation of the driver table over host memory and threads.
#ifndef CISTERN_SOFTWARE_SOFTWARE_DEVICE_H_
#define CISTERN_SOFTWARE_SOFTWARE_DEVICE_H_

#include <cstdint>

#include "cuda/driver_table.h"

namespace cistern::software {

// The table. It can be called from any thread at any time, even before Configure (defaults apply
// then).
const DriverTable& Table();

// Sets the memory of every software device, in bytes, and the number of devices (1 to 8). The first
// cuInit fixes the number of devices; later calls may only repeat it. The memory may change at any
// time, but not below what is in use. Zero leaves a value unchanged. Returns kErrorInvalidValue for
// a value out of range and kErrorNotPermitted for a change that comes too late; the state is then
// unchanged.
Status Configure(std::uint64_t total_bytes, int device_count);

// See is_strict in settings.h. May change at any time; initially false unless
// CISTERN_SOFTWARE_STRICT is 1.
void SetStrict(bool strict);

// Every later call of this function takes at least this long on the calling thread. Zero removes
// the latency.
void SetLatency(Call call, std::uint64_t nanoseconds);

// The nth call of this function from now on (1 is the next) returns `status` and does nothing else.
// Zero removes the failure. Returns whether an earlier failure was still pending; that one is
// cancelled.
bool FailCall(Call call, std::uint64_t nth, Status status);

// After the pending failure of `first` has happened, the nth call of a second function, which may
// be the same, fails. FailCall of `first` cancels it.
void FailCallAfter(Call first, Call call, std::uint64_t nth, Status status);

}  // namespace cistern::software

#endif  // CISTERN_SOFTWARE_SOFTWARE_DEVICE_H_
