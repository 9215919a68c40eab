// Resolves the handles of the driver's interface.
#ifndef CISTERN_SOFTWARE_RESOLVE_H_
#define CISTERN_SOFTWARE_RESOLVE_H_

#include <cstdint>

#include "software/capture.h"
#include "software/device.h"
#include "software/event.h"
#include "software/memory_pool.h"
#include "software/stream.h"

namespace cistern::software {

template <typename Handle>
std::uint64_t HandleBits(Handle handle) {
  return reinterpret_cast<std::uintptr_t>(handle);
}

template <typename Handle>
Handle HandleOf(const HandleSlot& slot) {
  return reinterpret_cast<Handle>(static_cast<std::uintptr_t>(slot.handle.load(std::memory_order_relaxed)));
}

inline Status ResolveDefaultStream(std::uint64_t bits, StreamState** state) {
  Device* device;
  Status status = RequireDevice(&device);
  if (status != kSuccess) return status;
  if (bits == HandleBits(PerThreadStream())) return PerThreadStreamOf(*device, state);
  *state = device->legacy_stream;
  return kSuccess;
}

inline Status ResolveStream(Stream stream, StreamState** state) {
  std::uint64_t bits = HandleBits(stream);
  if (bits <= HandleBits(PerThreadStream())) return ResolveDefaultStream(bits, state);
  *state = stream_table.Find(bits);
  return *state != nullptr ? kSuccess : kErrorInvalidHandle;
}

// For a call that uses the stream, and does not only read what it is.
inline Status ResolveStreamToUse(Stream stream, StreamState** state) {
  const Status status = ResolveStream(stream, state);
  if (__builtin_expect(open_captures.load(std::memory_order_relaxed) == 0, 1) || status != kSuccess) return status;
  return (*state)->role == StreamRole::kLegacy ? CheckUseOfLegacy(*(*state)->device) : kSuccess;
}

// For a call that no capture can record.
inline Status ResolveStreamOutsideCapture(Stream stream, StreamState** state) {
  const Status status = ResolveStreamToUse(stream, state);
  return status == kSuccess && IsCapturing(**state) ? RefuseInCapture(**state, kErrorCaptureUnsupported) : status;
}

inline Status ResolveEvent(Event event, EventState** state) {
  *state = event_table.Find(HandleBits(event));
  return *state != nullptr ? kSuccess : kErrorInvalidHandle;
}

inline Status ResolvePool(Pool pool, MemoryPool** state) {
  *state = pool_table.Find(HandleBits(pool));
  return *state != nullptr ? kSuccess : kErrorInvalidValue;
}

}  // namespace cistern::software

#endif  // CISTERN_SOFTWARE_RESOLVE_H_
