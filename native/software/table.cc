#include <new>

#include "software/calls.h"
#include "software/device.h"
#include "software/injection.h"
#include "software/software_device.h"

namespace cistern::software {
namespace {

// Wraps a function in what every call has in common.
template <Call call, auto function>
struct Entry;

template <Call call, typename... Arguments, Status (*function)(Arguments...)>
struct Entry<call, function> {
  static Status Invoke(Arguments... arguments) noexcept {
    // On a stream's thread: the driver allows no calls from host functions.
    if (__builtin_expect(thread_state.is_in_host_function, 0)) return kErrorNotPermitted;
    if (__builtin_expect(injection_count.load(std::memory_order_relaxed) != 0, 0)) {
      Status status = Inject(call);
      if (status != kSuccess) return status;
    }
#if defined(__cpp_exceptions)
    try {
      return function(arguments...);
    } catch (const std::bad_alloc&) {
      return kErrorOutOfMemory;
    } catch (...) {
      return kErrorUnknown;
    }
#else
    return function(arguments...);
#endif
  }
};

}  // namespace

const DriverTable& Table() {
#define CISTERN_ENTRY(member, symbol, version, parameters) Entry<Call::k##member, &calls::member>::Invoke,
  static constexpr DriverTable kTable = {CISTERN_DRIVER_FUNCTIONS(CISTERN_ENTRY)};
#undef CISTERN_ENTRY
  return kTable;
}

}  // namespace cistern::software
