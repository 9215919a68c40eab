// The legacy default stream's rules: it waits for what blocking streams were given before, and they
// wait for it.
#ifndef CISTERN_SOFTWARE_LEGACY_ORDER_H_
#define CISTERN_SOFTWARE_LEGACY_ORDER_H_

#include "software/device.h"
#include "software/stream.h"

namespace cistern::software {

Status OrderLegacyAfterBlocking(StreamState& legacy);

// Submits the waits that an operation on this stream needs first. Costs two loads if there are
// none.
inline Status OrderWithLegacy(StreamState& stream) {
  Device& device = *stream.device;
  if (stream.role == StreamRole::kLegacy) {
    return device.busy_blocking_streams.load(std::memory_order_acquire) == 0 ? kSuccess : OrderLegacyAfterBlocking(stream);
  }
  if (!stream.is_blocking || IsIdle(*device.legacy_stream)) return kSuccess;
  return SubmitWait(stream, CurrentMark(*device.legacy_stream));
}

}  // namespace cistern::software

#endif  // CISTERN_SOFTWARE_LEGACY_ORDER_H_
