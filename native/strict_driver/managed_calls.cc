// Managed memory, and the attributes of pointers.
#include <cstdint>

#include "strict_driver/allocation.h"
#include "strict_driver/call.h"
#include "strict_driver/calls.h"
#include "strict_driver/capture.h"
#include "strict_driver/pool.h"
#include "strict_driver/report.h"
#include "strict_driver/settings.h"
#include "strict_driver/stream.h"

namespace cistern::strict::calls {
namespace {

constexpr std::size_t kPage = kManagedPage;
constexpr int kHostBit = 31;

bool IsLocation(MemLocation location) {
  return location.type == kLocationHost || (location.type == kLocationDevice && location.id >= 0 && location.id < settings().devices);
}

int OrdinalOf(MemLocation location) { return location.type == kLocationHost ? int{kHostLocation} : location.id; }

MemLocation LocationOf(DeviceOrdinal device) { return {device == kHostLocation ? int{kLocationHost} : int{kLocationDevice}, device}; }

// Calls visit(page) for each page of a range of managed memory. Ordinary memory of the host, which a
// device with the host's page tables treats alike, has no pages here.
template <typename Visit>
Status ForPages(DevicePointer address, std::size_t bytes, Visit&& visit) {
  const AllocationRef allocation = bytes == 0 ? nullptr : FindAllocation(address);
  if (allocation == nullptr && bytes > 0 && settings().has_pageable_access) return kSuccess;
  if (allocation == nullptr || allocation->kind != Kind::kManaged || !allocation->Contains(address, bytes)) return kErrorInvalidValue;
  const std::size_t offset = address - allocation->start;
  for (std::size_t page = offset / kPage; page <= (offset + bytes - 1) / kPage; ++page) visit(allocation->pages[page]);
  return kSuccess;
}

Status Advise(DevicePointer address, std::size_t bytes, int advice, MemLocation location) {
  if (advice < kAdviseSetReadMostly || advice > kAdviseUnsetAccessedBy) return kErrorInvalidValue;
  const bool takes_location = advice == kAdviseSetPreferredLocation || advice == kAdviseSetAccessedBy || advice == kAdviseUnsetAccessedBy;
  if (takes_location) {
    if (!IsLocation(location)) return kErrorInvalidDevice;
    if (location.type == kLocationDevice && !settings().has_concurrent_managed_access) return kErrorInvalidDevice;
  }
  const int place = takes_location ? OrdinalOf(location) : 0;
  const unsigned bit = 1U << (place == kHostLocation ? kHostBit : place);
  return ForPages(address, bytes, [&](PageAdvice& page) {
    if (advice == kAdviseSetReadMostly || advice == kAdviseUnsetReadMostly) page.is_read_mostly = advice == kAdviseSetReadMostly;
    if (advice == kAdviseSetPreferredLocation) page.preferred = place;
    if (advice == kAdviseUnsetPreferredLocation) page.preferred = kNoLocation;
    if (advice == kAdviseSetAccessedBy) page.accessed_by |= bit;
    if (advice == kAdviseUnsetAccessedBy) page.accessed_by &= ~bit;
  });
}

Status Prefetch(ApiCall& call, DevicePointer address, std::size_t bytes, MemLocation location, unsigned flags, Stream handle) {
  StreamRef stream;
  Status status = FindStream(handle, &stream, true);
  if (status != kSuccess) return status;
  if (flags != 0) return kErrorInvalidValue;
  if (!IsLocation(location) || !settings().has_concurrent_managed_access) return kErrorInvalidDevice;
  status = ForPages(address, bytes, [](PageAdvice&) {});
  if (status == kSuccess) status = CheckUncaptured(*stream);
  if (status != kSuccess) return status;
  status = ForPages(address, bytes, [&](PageAdvice& page) { page.prefetched = OrdinalOf(location); });
  if (status != kSuccess) return status;
  Operation operation;
  operation.name = call.function;
  operation.run = [allocation = FindAllocation(address)] {
    if (allocation != nullptr) CheckLife(allocation, "a prefetch");
  };
  return Submit(stream, std::move(operation));
}

// What all pages of a range have in common.
struct Common {
  bool is_read_mostly = true;
  unsigned accessed_by = ~0U;
  int preferred = kNoLocation;
  int prefetched = kNoLocation;
  bool is_first = true;

  void Add(const PageAdvice& page) {
    is_read_mostly = is_read_mostly && page.is_read_mostly;
    accessed_by &= page.accessed_by;
    preferred = is_first || preferred == page.preferred ? page.preferred : int{kNoLocation};
    prefetched = is_first || prefetched == page.prefetched ? page.prefetched : int{kNoLocation};
    is_first = false;
  }
};

void WriteAccessors(unsigned accessed_by, int* values, std::size_t count) {
  std::size_t used = 0;
  for (DeviceOrdinal device = 0; device < settings().devices && used < count; ++device) {
    if ((accessed_by >> device & 1) != 0) values[used++] = device;
  }
  if ((accessed_by >> kHostBit & 1) != 0 && used < count) values[used++] = kHostLocation;
  while (used < count) values[used++] = kNoLocation;
}

}  // namespace

Status MemAdvise(DevicePointer pointer, std::size_t bytes, int advice, MemLocation location) {
  STRICT_DRIVER_ENTER_UNSAFE("cuMemAdvise", kContext, CheckPotentiallyUnsafe);
  return Advise(pointer, bytes, advice, location);
}

Status MemAdvise8000(DevicePointer pointer, std::size_t bytes, int advice, DeviceOrdinal device) {
  STRICT_DRIVER_ENTER_UNSAFE("cuMemAdvise", kContext, CheckPotentiallyUnsafe);
  return Advise(pointer, bytes, advice, LocationOf(device));
}

Status MemPrefetchAsync(DevicePointer pointer, std::size_t bytes, MemLocation location, unsigned flags, Stream stream) {
  STRICT_DRIVER_ENTER("cuMemPrefetchAsync", kContext);
  return Prefetch(call, pointer, bytes, location, flags, stream);
}

Status MemPrefetchAsync8000(DevicePointer pointer, std::size_t bytes, DeviceOrdinal device, Stream stream) {
  STRICT_DRIVER_ENTER("cuMemPrefetchAsync", kContext);
  return Prefetch(call, pointer, bytes, LocationOf(device), 0, stream);
}

Status MemRangeGetAttribute(void* data, std::size_t data_size, int attribute, DevicePointer pointer, std::size_t bytes) {
  STRICT_DRIVER_ENTER("cuMemRangeGetAttribute", kContext);
  if (data == nullptr || data_size == 0 || data_size % 4 != 0) return kErrorInvalidValue;
  if (attribute != kRangeAccessedBy && data_size != 4) return kErrorInvalidValue;
  Common common;
  const Status status = ForPages(pointer, bytes, [&](const PageAdvice& page) { common.Add(page); });
  if (status != kSuccess) return status;
  int* values = static_cast<int*>(data);
  switch (attribute) {
    case kRangeReadMostly:
      *values = common.is_read_mostly;
      return kSuccess;
    case kRangePreferredLocation:
      *values = common.preferred;
      return kSuccess;
    case kRangeLastPrefetchLocation:
      *values = common.prefetched;
      return kSuccess;
    case kRangeAccessedBy:
      WriteAccessors(common.accessed_by, values, data_size / 4);
      return kSuccess;
    default:
      return kErrorInvalidValue;
  }
}

Status PointerGetAttribute(void* data, int attribute, DevicePointer pointer) {
  STRICT_DRIVER_ENTER("cuPointerGetAttribute", kContext);
  const AllocationRef allocation = FindAllocation(pointer);
  if (data == nullptr || allocation == nullptr) return kErrorInvalidValue;
  const bool is_managed = allocation->kind == Kind::kManaged;
  const bool is_pinned = allocation->kind == Kind::kPinned;
  switch (attribute) {
    case kPointerMemoryType:
      *static_cast<unsigned*>(data) = is_pinned    ? unsigned{kMemoryTypeHost}
                                      : is_managed ? settings().managed_memory_type
                                                   : unsigned{kMemoryTypeDevice};
      return kSuccess;
    case kPointerIsManaged:
      // A boolean is one byte; the other three of a caller's integer are unchanged.
      *static_cast<unsigned char*>(data) = is_managed || (is_pinned && settings().pinned_memory_is_managed);
      return kSuccess;
    case kPointerDeviceOrdinal:
      *static_cast<int*>(data) = allocation->device;
      return kSuccess;
    case kPointerAccessFlags:
      *static_cast<int*>(data) = HasAccess(thread.current->device, *allocation) ? kAccessReadWrite : kAccessNone;
      return kSuccess;
    case kPointerRangeStart:
      if (is_pinned && !settings().pinned_memory_has_range) return kErrorInvalidValue;
      *static_cast<DevicePointer*>(data) = allocation->start;
      return kSuccess;
    case kPointerIsLegacyIpcCapable:
      *static_cast<unsigned char*>(data) = allocation->kind == Kind::kDevice;
      return kSuccess;
    case kPointerPool:
      *static_cast<Pool*>(data) = allocation->pool == nullptr ? nullptr : allocation->pool->handle;
      return kSuccess;
    default:
      Report("NOTE", "pointer attribute %d is not modelled", attribute);
      return kErrorInvalidValue;
  }
}

}  // namespace cistern::strict::calls
