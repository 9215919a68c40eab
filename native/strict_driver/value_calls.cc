// Stream memory operations: a stream waits until a word in memory has a value, or writes one.
#include <atomic>
#include <cstdint>
#include <utility>

#include "strict_driver/allocation.h"
#include "strict_driver/call.h"
#include "strict_driver/calls.h"
#include "strict_driver/report.h"
#include "strict_driver/settings.h"
#include "strict_driver/stream.h"

namespace cistern::strict::calls {
namespace {

using Word = std::atomic<std::uint32_t>;
static_assert(sizeof(Word) == 4);

// The word at an address, which must not be in managed memory.
Status FindWord(DevicePointer address, AllocationRef* allocation, Word** word) {
  *allocation = FindAllocation(address);
  if (*allocation == nullptr || !(*allocation)->Contains(address, 4) || address % 4 != 0 || (*allocation)->kind == Kind::kManaged) {
    Report("MISUSE", "%s: %#llx is not a word that a stream can wait for or write", thread.function, address);
    return kErrorInvalidValue;
  }
  if ((*allocation)->kind == Kind::kPinned && settings().pinned_memory_is_managed) return kErrorInvalidValue;
  *word = reinterpret_cast<Word*>(HostView(**allocation, address));
  return kSuccess;
}

bool IsMet(std::uint32_t found, std::uint32_t value, unsigned condition) {
  switch (condition) {
    case kWaitValueGreaterOrEqual:
      return static_cast<std::int32_t>(found - value) >= 0;
    case kWaitValueEqual:
      return found == value;
    case kWaitValueAnd:
      return (found & value) != 0;
    default:
      return ~(found | value) != 0;
  }
}

}  // namespace

Status StreamWaitValue32(Stream stream, DevicePointer address, std::uint32_t value, unsigned flags) {
  STRICT_DRIVER_ENTER("cuStreamWaitValue32", kContext);
  if (!settings().has_stream_memory_operations) return kErrorNotSupported;
  StreamRef state;
  AllocationRef allocation;
  Word* word;
  Status status = FindStream(stream, &state, true);
  if (status != kSuccess) return status;
  if (flags > kWaitValueNor) return kErrorInvalidValue;
  status = FindWord(address, &allocation, &word);
  if (status != kSuccess) return status;
  Operation operation;
  operation.name = call.function;
  operation.condition = [allocation = std::move(allocation), word, value, flags] {
    CheckLife(allocation, "a wait for a value");
    return allocation->is_freed || IsMet(word->load(std::memory_order_acquire), value, flags);
  };
  return Submit(state, std::move(operation));
}

Status StreamWriteValue32(Stream stream, DevicePointer address, std::uint32_t value, unsigned flags) {
  STRICT_DRIVER_ENTER("cuStreamWriteValue32", kContext);
  if (!settings().has_stream_memory_operations) return kErrorNotSupported;
  StreamRef state;
  AllocationRef allocation;
  Word* word;
  Status status = FindStream(stream, &state, true);
  if (status != kSuccess) return status;
  if (flags > kWriteValueNoMemoryBarrier) return kErrorInvalidValue;
  status = FindWord(address, &allocation, &word);
  if (status != kSuccess) return status;
  Operation operation;
  operation.name = call.function;
  operation.run = [allocation = std::move(allocation), word, value] {
    CheckLife(allocation, "a write of a value");
    if (!allocation->is_freed) word->store(value, std::memory_order_release);
  };
  return Submit(state, std::move(operation));
}

}  // namespace cistern::strict::calls
