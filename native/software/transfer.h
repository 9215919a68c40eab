// Copies and fills: what an address belongs to, and what follows for the call.
#ifndef CISTERN_SOFTWARE_TRANSFER_H_
#define CISTERN_SOFTWARE_TRANSFER_H_

#include <cstdint>

#include "cuda/driver_table.h"
#include "software/stream.h"

namespace cistern::software {

class Device;

enum class AddressKind { kInvalid, kDevice, kManaged, kPinned, kPageable };
struct AddressRange {
  AddressKind kind = AddressKind::kInvalid;
  int device = -1;
  // A bit for each device with access to memory of a pool, or to virtual memory. 0 for other memory:
  // whoever has access to the context's has access to it.
  std::uint32_t accessors = 0;
  bool is_pinned_pool = false;  // pinned memory that no device has access to without its bit
};
// kInvalid if the range starts in a device's memory, or in pinned or managed memory, and is not
// within one allocation there; or if it starts at a reserved address, and is not mapped throughout. Any other address is taken for
// ordinary, pageable host memory, as a real driver does.
AddressRange Classify(std::uint64_t address, std::uint64_t bytes, bool will_write);

// Whether streams of the device can use the memory.
bool HasAccess(const Device& device, const AddressRange& range);

// Copies between plain memory of two devices need no access: the driver copies through the host. Memory
// of pools, and virtual memory, is copied like that only by a copy between contexts.
Status Copy(std::uint64_t destination, std::uint64_t source, std::uint64_t bytes, StreamState& stream, bool is_between_contexts);
// Whether `Copy` would be refused for its addresses. Refuses a copy of no bytes.
Status CheckCopy(std::uint64_t destination, std::uint64_t source, std::uint64_t bytes, const StreamState& stream);
Status Fill(std::uint64_t destination, std::uint32_t value, bool is_bytes, std::uint64_t count, StreamState& stream);

}  // namespace cistern::software

#endif  // CISTERN_SOFTWARE_TRANSFER_H_
