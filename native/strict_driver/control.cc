// Functions for tests, in addition to the driver's. No real driver has these: a test looks for them
// with dlsym.
#include <cstdint>

#include "strict_driver/injection.h"
#include "strict_driver/stream.h"

using cistern::Status;
using namespace cistern::strict;

#define STRICT_DRIVER_EXPORT extern "C" __attribute__((visibility("default")))

STRICT_DRIVER_EXPORT bool strict_driver_fail_call(const char* function, unsigned long long nth, Status status) {
  const Lock lock(big_lock);
  return FailCall(function, nth, status);
}

STRICT_DRIVER_EXPORT void strict_driver_fail_call_after(const char* first, const char* function, unsigned long long nth, Status status) {
  const Lock lock(big_lock);
  FailCallAfter(first, function, nth, status);
}

STRICT_DRIVER_EXPORT void strict_driver_set_latency(const char* function, unsigned long long nanoseconds) {
  const Lock lock(big_lock);
  SetLatency(function, nanoseconds);
}

// False, with the state unchanged, if more than this is in use.
STRICT_DRIVER_EXPORT bool strict_driver_set_total_memory(unsigned long long bytes) {
  const Lock lock(big_lock);
  for (const DeviceMemory& memory : driver.memory) {
    if (!memory.CanHave(bytes)) return false;
  }
  for (DeviceMemory& memory : driver.memory) memory.Resize(bytes);
  return true;
}

// Whether a stream of this handle exists, which no call of the driver may be asked.
STRICT_DRIVER_EXPORT bool strict_driver_has_stream(unsigned long long handle) {
  const Lock lock(big_lock);
  return driver.streams.Find(reinterpret_cast<cistern::Stream>(static_cast<std::uintptr_t>(handle))) != nullptr;
}

STRICT_DRIVER_EXPORT int strict_driver_live_streams() {
  const Lock lock(big_lock);
  return static_cast<int>(driver.streams.size());
}

STRICT_DRIVER_EXPORT bool strict_driver_set_sticky_error(int device, Status status) {
  const Lock lock(big_lock);
  if (device < 0 || static_cast<std::size_t>(device) >= driver.contexts.size()) return false;
  Poison(driver.ContextOf(device), status);
  return true;
}

// A stream of a context that is not its device's primary one, as another library's. Zero if there is no
// such device.
STRICT_DRIVER_EXPORT unsigned long long strict_driver_create_stream_elsewhere(int device) {
  const Lock lock(big_lock);
  if (device < 0 || static_cast<std::size_t>(device) >= driver.contexts.size()) return 0;
  auto* context = new ContextState;
  context->device = device;
  context->retained = 1;
  const StreamRef stream = NewStream(context, Role::kCreated, cistern::kStreamNonBlocking, 0);
  return reinterpret_cast<std::uintptr_t>(driver.streams.Add(stream));
}
