// Copies and fills.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "strict_driver/allocation.h"
#include "strict_driver/call.h"
#include "strict_driver/calls.h"
#include "strict_driver/capture.h"
#include "strict_driver/report.h"
#include "strict_driver/settings.h"
#include "strict_driver/stream.h"
#include "strict_driver/virtual_memory.h"
#include "strict_driver/wait.h"

namespace cistern::strict::calls {
namespace {

// A side of a copy.
struct Side {
  AllocationRef allocation;          // null: pageable memory
  std::vector<AllocationRef> spans;  // of virtual memory: everything that is mapped there
  char* view = nullptr;
  bool IsHost() const { return allocation == nullptr || allocation->kind == Kind::kPinned; }
};

Status Resolve(DevicePointer address, std::size_t bytes, bool allows_pageable, bool will_write, Side* side) {
  side->allocation = FindAllocation(address);
  if (side->allocation != nullptr && side->allocation->kind == Kind::kVirtual) {
    side->spans = FindMappings(address, bytes, will_write);
    if (side->spans.empty()) {
      Report("MISUSE", "%zu bytes at %#llx are not all mapped and accessible%s", bytes, address, will_write ? ", to write" : "");
      return kErrorInvalidValue;
    }
    side->view = HostView(*side->allocation, address);
    return kSuccess;
  }
  if (side->allocation != nullptr) {
    if (!side->allocation->Contains(address, bytes)) {
      Report("MISUSE", "%zu bytes at %#llx go past the end of an allocation", bytes, address);
      return kErrorInvalidValue;
    }
    side->view = HostView(*side->allocation, address);
    return kSuccess;
  }
  for (const DeviceMemory& memory : driver.memory) {
    if (!memory.Owns(address)) continue;
    Report("MISUSE", "%#llx is not allocated", address);
    return kErrorInvalidValue;
  }
  if (IsReserved(address)) {
    Report("MISUSE", "%#llx is reserved, and nothing is mapped there", address);
    return kErrorInvalidValue;
  }
  if (!allows_pageable || FindAllocation(address + bytes - 1) != nullptr) return kErrorInvalidValue;
  side->view = reinterpret_cast<char*>(address);
  return kSuccess;
}

void CheckLife(const Side& side, const char* use) {
  strict::CheckLife(side.allocation, use);
  for (const AllocationRef& each : side.spans) {
    if (each != side.allocation) strict::CheckLife(each, use);
  }
}

// Whether the device of a stream has access to a side, which pageable memory needs no rule for here.
bool CanUse(const StreamRef& stream, const Side& side) {
  const DeviceOrdinal device = stream->context->device;
  if (side.allocation == nullptr) return true;
  bool has_access = HasAccess(device, *side.allocation);
  for (const AllocationRef& each : side.spans) has_access = has_access && HasAccess(device, *each);
  if (!has_access) {
    Report("MISUSE", "%s: a stream of device %d uses memory of device %d, and has no access to it", thread.function, device,
           side.allocation->device);
  }
  return has_access;
}

// Whether memory is that of a context's device.
bool IsMemoryOf(Context context, const Side& side) {
  const auto* state = reinterpret_cast<const ContextState*>(context);
  const bool is_known = std::find(driver.contexts.begin(), driver.contexts.end(), state) != driver.contexts.end();
  if (is_known && state->retained > 0 && side.allocation != nullptr && !side.IsHost() && side.allocation->device == state->device)
    return true;
  Report("MISUSE", "%s: %p is not the context of memory that is copied", thread.function, static_cast<void*>(context));
  return false;
}

// The operation of a copy whose arguments have been checked: only the memory can have changed.
Status MakeCopy(DevicePointer destination, DevicePointer source, std::size_t bytes, Operation* operation) {
  Side to;
  Side from;
  Status status = Resolve(destination, bytes, true, true, &to);
  if (status == kSuccess) status = Resolve(source, bytes, true, false, &from);
  if (status != kSuccess) return status;
  operation->name = "cuMemcpyAsync";
  operation->uses = {to.allocation, from.allocation};
  operation->run = [to, from, bytes] {
    CheckLife(to, "a copy to memory");
    CheckLife(from, "a copy from memory");
    std::memmove(to.view, from.view, bytes);
  };
  return kSuccess;
}

// A copy of a batch.
struct BatchCopy {
  Side to;
  Side from;
  DevicePointer destination;
  DevicePointer source;
  std::size_t bytes;
};

bool Meet(DevicePointer first, std::size_t first_bytes, DevicePointer second, std::size_t second_bytes) {
  return first < second + second_bytes && second < first + first_bytes;
}

// Each attribute is that of the copies from its first on.
bool AreAttributes(const CopyAttributes* attributes, const std::size_t* first_copies, std::size_t attribute_count, std::size_t count) {
  if (attributes == nullptr || first_copies == nullptr || attribute_count == 0 || attribute_count > count) return false;
  for (std::size_t i = 0; i < attribute_count; ++i) {
    const bool is_after = i == 0 ? first_copies[0] == 0 : first_copies[i] > first_copies[i - 1];
    if (!is_after || first_copies[i] >= count) return false;
    if (attributes[i].source_order < kSourceOrderStream || attributes[i].source_order > kSourceOrderAny) return false;
  }
  return true;
}

// All or none are queued, as one piece of work; they run in another order than that of the list. `failed` stays as it is if the reason
// is no single copy.
Status CopyBatch(ApiCall& call, const DevicePointer* destinations, const DevicePointer* sources, const std::size_t* sizes,
                 std::size_t count, const CopyAttributes* attributes, const std::size_t* first_copies, std::size_t attribute_count,
                 std::size_t* failed, Stream handle) {
  StreamRef stream;
  Status status = FindStream(handle, &stream, true);
  if (status != kSuccess) return status;
  if (stream->role == Role::kLegacy) {
    Report("MISUSE", "%s: the legacy default stream takes no batches", call.function);
    return kErrorInvalidValue;
  }
  if (destinations == nullptr || sources == nullptr || sizes == nullptr ||
      !AreAttributes(attributes, first_copies, attribute_count, count)) {
    Report("MISUSE", "%s: no batch of %zu copies with %zu attributes", call.function, count, attribute_count);
    return kErrorInvalidValue;
  }
  status = CheckUncaptured(*stream);
  if (status != kSuccess) return status;
  std::vector<BatchCopy> copies(count);
  for (std::size_t i = 0; i < count; ++i) {
    *failed = i;
    BatchCopy& copy = copies[i];
    copy.destination = destinations[i];
    copy.source = sources[i];
    copy.bytes = sizes[i];
    if (copy.bytes == 0) {
      Report("MISUSE", "%s: copy %zu of a batch has no bytes", call.function, i);
      return kErrorInvalidValue;
    }
    // What a batch does with pageable memory is not modelled.
    status = Resolve(copy.destination, copy.bytes, false, true, &copy.to);
    if (status == kSuccess) status = Resolve(copy.source, copy.bytes, false, false, &copy.from);
    if (status != kSuccess) return status;
    if (!CanUse(stream, copy.to) || !CanUse(stream, copy.from)) return kErrorInvalidValue;
    for (std::size_t other = 0; other < i; ++other) {
      const BatchCopy& before = copies[other];
      if (Meet(copy.destination, copy.bytes, before.destination, before.bytes) ||
          Meet(copy.destination, copy.bytes, before.source, before.bytes) ||
          Meet(copy.source, copy.bytes, before.destination, before.bytes)) {
        Report("MISUSE", "%s: copies %zu and %zu of a batch depend on each other", call.function, other, i);
      }
    }
  }
  *failed = SIZE_MAX;
  Operation operation;
  operation.name = call.function;
  operation.run = [copies = std::move(copies)] {
    for (auto copy = copies.rbegin(); copy != copies.rend(); ++copy) {
      CheckLife(copy->to, "a copy to memory");
      CheckLife(copy->from, "a copy from memory");
      std::memmove(copy->to.view, copy->from.view, copy->bytes);
    }
  };
  return Submit(stream, std::move(operation));
}

template <typename Word>
Status Set(ApiCall& call, DevicePointer destination, Word value, std::size_t count, Stream handle) {
  StreamRef stream;
  Status status = FindStream(handle, &stream, true);
  if (status != kSuccess || count == 0) return status;
  if (destination % sizeof(Word) != 0) return kErrorInvalidValue;
  return SubmitOrCapture(stream, kNodeFill, [=, name = call.function](Operation* operation) -> Status {
    Side to;
    const Status found = Resolve(destination, count * sizeof(Word), false, true, &to);
    if (found != kSuccess) return found;
    if (!CanUse(stream, to)) return kErrorInvalidValue;
    operation->name = name;
    operation->uses = {to.allocation};
    operation->run = [to, value, count] {
      CheckLife(to, "a fill");
      std::fill_n(reinterpret_cast<Word*>(to.view), count, value);
    };
    return kSuccess;
  });
}

}  // namespace

Status MemcpyAsync(DevicePointer destination, DevicePointer source, std::size_t bytes, Stream handle) {
  STRICT_DRIVER_ENTER("cuMemcpyAsync", kContext);
  StreamRef stream;
  Status status = FindStream(handle, &stream, true);
  if (status != kSuccess || bytes == 0) return status;
  Side to;
  Side from;
  status = Resolve(destination, bytes, true, true, &to);
  if (status == kSuccess) status = Resolve(source, bytes, true, false, &from);
  if (status != kSuccess) return status;
  if (!CanUse(stream, to) || !CanUse(stream, from)) return kErrorInvalidValue;
  const bool is_pageable = to.allocation == nullptr || from.allocation == nullptr;
  status = is_pageable && !settings().captures_are_mild ? CheckUncaptured(*stream) : CheckWork(*stream);
  if (status != kSuccess) return status;
  if (stream->capture != nullptr) {
    return SubmitOrCapture(stream, kNodeCopy, [=](Operation* operation) { return MakeCopy(destination, source, bytes, operation); });
  }
  std::shared_ptr<char[]> staged;
  // With access to pageable memory, every other copy reads it at the time of the call, without waiting, and so misses earlier copies.
  static std::atomic<unsigned> copies{0};
  const bool has_access = settings().has_pageable_access;
  if (from.allocation == nullptr && !to.IsHost() && (!has_access || copies++ % 2 == 0)) {
    if (!has_access && settings().copy_from_pageable_waits) {
      status = WaitForPlace(call.lock, stream->context, call.function, {stream, stream->submitted});
      if (status != kSuccess) return status;
    }
    staged.reset(new char[bytes]);
    std::memcpy(staged.get(), from.view, bytes);
  }
  Operation operation;
  operation.name = call.function;
  operation.run = [to, from, staged, bytes] {
    CheckLife(to, "a copy to memory");
    CheckLife(from, "a copy from memory");
    std::memmove(to.view, staged != nullptr ? staged.get() : from.view, bytes);
  };
  Place place;
  status = Submit(stream, std::move(operation), &place);
  // A copy from host to host is synchronous, and one to pageable memory may be.
  const bool is_synchronous = (to.IsHost() && from.IsHost()) || (to.allocation == nullptr && !has_access);
  return status == kSuccess && is_synchronous ? WaitForPlace(call.lock, stream->context, call.function, place) : status;
}

// Copies without access of one device to the other too, through the host.
Status MemcpyPeerAsync(DevicePointer destination, Context destination_context, DevicePointer source, Context source_context,
                       std::size_t bytes, Stream handle) {
  STRICT_DRIVER_ENTER("cuMemcpyPeerAsync", kContext);
  StreamRef stream;
  Status status = FindStream(handle, &stream, true);
  if (status != kSuccess || bytes == 0) return status;
  Side to;
  Side from;
  status = Resolve(destination, bytes, false, true, &to);
  if (status == kSuccess) status = Resolve(source, bytes, false, false, &from);
  if (status != kSuccess) return status;
  if (!IsMemoryOf(destination_context, to) || !IsMemoryOf(source_context, from)) return kErrorInvalidContext;
  Operation operation;
  operation.name = call.function;
  operation.run = [to, from, bytes] {
    CheckLife(to, "a copy to memory");
    CheckLife(from, "a copy from memory");
    std::memmove(to.view, from.view, bytes);
  };
  return Submit(stream, std::move(operation));
}

Status MemcpyBatchAsync(DevicePointer* destinations, DevicePointer* sources, std::size_t* sizes, std::size_t count,
                        CopyAttributes* attributes, std::size_t* first_copies, std::size_t attribute_count, Stream stream) {
  STRICT_DRIVER_ENTER("cuMemcpyBatchAsync", kContext);
  std::size_t failed;
  return CopyBatch(call, destinations, sources, sizes, count, attributes, first_copies, attribute_count, &failed, stream);
}

Status MemcpyBatchAsync12080(DevicePointer* destinations, DevicePointer* sources, std::size_t* sizes, std::size_t count,
                             CopyAttributes* attributes, std::size_t* first_copies, std::size_t attribute_count, std::size_t* failed,
                             Stream stream) {
  STRICT_DRIVER_ENTER("cuMemcpyBatchAsync", kContext);
  if (failed == nullptr) return kErrorInvalidValue;
  *failed = SIZE_MAX;
  return CopyBatch(call, destinations, sources, sizes, count, attributes, first_copies, attribute_count, failed, stream);
}

Status MemsetD8Async(DevicePointer destination, unsigned char value, std::size_t bytes, Stream stream) {
  STRICT_DRIVER_ENTER("cuMemsetD8Async", kContext);
  return Set(call, destination, value, bytes, stream);
}

Status MemsetD32Async(DevicePointer destination, unsigned value, std::size_t count, Stream stream) {
  STRICT_DRIVER_ENTER("cuMemsetD32Async", kContext);
  return Set(call, destination, value, count, stream);
}

}  // namespace cistern::strict::calls
