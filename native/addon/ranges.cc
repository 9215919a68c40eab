#include "addon/ranges.h"

#include "addon/bindings.h"
#include "addon/host_memory.h"
#include "addon/memory.h"

namespace cistern {
namespace {

// kErrorInvalidValue is the driver's status for an address that it does not know.
Status MemoryTypeOf(Environment& environment, std::uint64_t address, unsigned* type) {
  *type = 0;
  return environment.driver->PointerGetAttribute(type, kPointerMemoryType, address);
}

// Two pieces of pinned memory may be adjacent, or have a hole between them. The driver refuses a
// copy of such a range, but if the driver might block, cistern itself copies. If a driver does not
// report where pieces begin, the range is accepted.
bool InOnePiece(Environment& environment, std::uint64_t first, std::uint64_t last) {
  DevicePointer start_of_first = 0;
  DevicePointer start_of_last = 0;
  return environment.driver->PointerGetAttribute(&start_of_first, kPointerRangeStart, first) != kSuccess ||
         environment.driver->PointerGetAttribute(&start_of_last, kPointerRangeStart, last) != kSuccess || start_of_first == start_of_last;
}

// Whether memory that the driver calls managed host memory is pinned memory of this environment, as it is with confidential computing.
bool IsOwnPinned(Environment& environment, std::uint64_t address) {
  bool is_pinned = false;
  environment.allocations.ForEach([&](const Allocation& allocation) {
    if (address - allocation.address >= allocation.bytes || (allocation.owner & kPlainOwnerFlag) == 0) return;
    const MemoryKind kind = KindOf(allocation);
    is_pinned = kind == MemoryKind::kPinnedHost || kind == MemoryKind::kRegisteredHost;
  });
  return is_pinned;
}

// Whether the range is memory that this environment has from the driver, of which nothing needs to be asked. Host memory is left to the
// driver, which another library may have told about it.
bool FindOwn(Environment& environment, std::uint64_t address, std::uint64_t bytes, Location* location) {
  int device = -1;
  bool is_managed = false;
  if (const Allocation* allocation = FindAround(environment, address, bytes)) {
    if ((allocation->owner & kPlainOwnerFlag) == 0) {
      const PoolEntry* pool = environment.pools.Peek(allocation->owner);
      if (pool == nullptr || !pool->is_on_device) return false;
      device = pool->device;
    } else {
      const MemoryKind kind = KindOf(*allocation);
      if (kind == MemoryKind::kHost) return false;
      if (kind == MemoryKind::kPinnedHost || kind == MemoryKind::kRegisteredHost) location->place = Place::kPinnedHost;
      is_managed = kind == MemoryKind::kManaged;
      device = static_cast<int>(allocation->owner & 0xFFFFFFFF);
    }
  } else {
    environment.address_spaces.ForEach([&](std::uint64_t, const std::shared_ptr<AddressSpace>& space) {
      if (device < 0 && space->IsMapped(address, bytes)) device = space->device;
    });
    if (device < 0) return false;
  }
  if (location->place == Place::kDevice && !is_managed && environment.device_count() > 1) location->device = device;
  return true;
}

}  // namespace

Status CheckRange(Environment& environment, std::uint64_t address, std::uint64_t bytes, Location* location) {
  *location = {address, Place::kDevice};
  Place* const place = &location->place;
  if (FindOwn(environment, address, bytes, location)) return kSuccess;
  if (address == 0 || bytes > kMaxSafeInteger || bytes - 1 > kMaxSafeInteger - address) return kInvalidRange;
  unsigned type;
  unsigned managed = 0;
  Status status = MemoryTypeOf(environment, address, &type);
  if (status == kErrorInvalidValue) {
    *place = Place::kPageableHost;
    return InHostMemory(address, bytes) ? kSuccess : kInvalidRange;
  }
  if (status == kSuccess) status = environment.driver->PointerGetAttribute(&managed, kPointerIsManaged, address);
  if (status != kSuccess) return status;
  const bool is_pinned = type == kMemoryTypeHost && (managed == 0 || IsOwnPinned(environment, address));
  *place = is_pinned ? Place::kPinnedHost : Place::kDevice;
  if (*place == Place::kDevice && managed == 0 && environment.device_count() > 1) {
    DeviceOrdinal ordinal;
    status = environment.driver->PointerGetAttribute(&ordinal, kPointerDeviceOrdinal, address);
    if (status != kSuccess) return status;
    location->device = environment.IndexOf(ordinal);
  }
  const std::uint64_t last = address + bytes - 1;
  status = MemoryTypeOf(environment, last, &type);
  if (status == kSuccess && *place == Place::kPinnedHost && !InOnePiece(environment, address, last)) return kInvalidRange;
  return status == kErrorInvalidValue ? kInvalidRange : status;
}

bool IsOnePiece(Environment& environment, std::uint64_t address, std::uint64_t bytes) {
  Location location{address, Place::kDevice};
  return FindOwn(environment, address, bytes, &location);
}

Status CheckAccess(Environment& environment, const Location& location, const StreamEntry& stream) {
  if (location.device < 0 || location.device == stream.device) return kSuccess;
  int flags = kAccessNone;
  // A driver that cannot say it refuses the use itself.
  const Status status = environment.driver->PointerGetAttribute(&flags, kPointerAccessFlags, location.address);
  return status == kSuccess && flags != kAccessReadWrite ? kNoAccess : kSuccess;
}

Status PointerInfo(Environment& environment, const Napi::CallbackInfo& info) {
  std::uint64_t address;
  if (!ReadInteger(info[0], &address)) return kInvalidArgument;
  if (environment.driver == nullptr) return kNoBackend;
  const RelaxedContextScope context(environment, 0);
  if (context.status() != kSuccess) return context.status();
  unsigned type = 0;
  unsigned managed = 0;
  int device = -1;
  Status status =
      environment.Counted<Call::kPointerGetAttribute>(static_cast<void*>(&type), int{kPointerMemoryType}, DevicePointer{address});
  if (status == kErrorInvalidValue) {
    environment.Out(1, InHostMemory(address, 1) ? static_cast<double>(MemoryKind::kHost) : -1);
    environment.Out(2, -1);
    return kSuccess;
  }
  if (status == kSuccess) {
    status = environment.Counted<Call::kPointerGetAttribute>(static_cast<void*>(&managed), int{kPointerIsManaged}, DevicePointer{address});
  }
  if (status == kSuccess) {
    status =
        environment.Counted<Call::kPointerGetAttribute>(static_cast<void*>(&device), int{kPointerDeviceOrdinal}, DevicePointer{address});
  }
  if (status != kSuccess) return status;
  MemoryKind kind = type == kMemoryTypeHost ? MemoryKind::kPinnedHost : MemoryKind::kDevice;
  if (managed != 0 && !(type == kMemoryTypeHost && IsOwnPinned(environment, address))) kind = MemoryKind::kManaged;
  environment.Out(1, static_cast<double>(kind));
  environment.Out(2, device);
  return kSuccess;
}

}  // namespace cistern
