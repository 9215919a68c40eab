#include "software/transfer.h"

#include <cstdlib>
#include <cstring>

#include "software/capture.h"
#include "software/device.h"
#include "software/host_memory.h"
#include "software/ipc.h"
#include "software/legacy_order.h"
#include "software/memory_pool.h"
#include "software/settings.h"
#include "software/virtual_memory.h"

namespace cistern::software {
namespace {

constexpr std::uint64_t kMostReadAtOnce = std::uint64_t{64} << 10;

Status ClassifyCopy(std::uint64_t destination, std::uint64_t source, std::uint64_t bytes, const StreamState& stream,
                    bool is_between_contexts, AddressRange* to, AddressRange* from) {
  if (destination == 0 || source == 0) return kErrorInvalidValue;
  *to = Classify(destination, bytes, true);
  *from = Classify(source, bytes, false);
  if (to->kind == AddressKind::kInvalid || from->kind == AddressKind::kInvalid) return kErrorInvalidValue;
  for (const AddressRange* range : {to, from}) {
    const bool is_checked = range->accessors != 0 || range->is_pinned_pool;
    if (!is_between_contexts && is_checked && !HasAccess(*stream.device, *range)) return kErrorInvalidValue;
  }
  return kSuccess;
}

}  // namespace

AddressRange Classify(std::uint64_t address, std::uint64_t bytes, bool will_write) {
  if (Device* device = FindDeviceByAddress(address)) {
    AddressInfo info;
    bool is_valid = device->memory.Describe(address, bytes, will_write, &info);
    PoolMemoryInfo pool{PoolKind::kDevice, 0};
    if (is_valid && info.is_segment) is_valid = IsWithinPoolAllocation(*device, info.segment, address, bytes, will_write, &pool);
    if (!is_valid) return {AddressKind::kInvalid, device->ordinal};
    switch (pool.kind) {
      case PoolKind::kManaged:
        return {AddressKind::kManaged, device->ordinal, pool.accessors};
      case PoolKind::kPinned:
        return {AddressKind::kPinned, device->ordinal, pool.accessors, true};
      default:
        return {AddressKind::kDevice, device->ordinal, pool.accessors};
    }
  }
  VirtualRangeInfo range;
  if (FindVirtualMemory(address, bytes, &range)) {
    const bool is_valid = range.accessors != 0 && !(will_write && range.is_read_only);
    return {is_valid ? AddressKind::kDevice : AddressKind::kInvalid, range.device, range.accessors};
  }
  ImportedRangeInfo imported;
  if (FindImportedRange(address, &imported)) {
    const bool is_within = bytes <= imported.bytes - (address - imported.start);
    return {is_within ? AddressKind::kDevice : AddressKind::kInvalid, imported.device};
  }
  HostRangeInfo info;
  if (!FindHostMemory(address, &info)) return {AddressKind::kPageable, -1};
  if (bytes > info.bytes_left) return {AddressKind::kInvalid, info.device};
  return {info.kind == HostMemoryKind::kManaged ? AddressKind::kManaged : AddressKind::kPinned, info.device};
}

bool HasAccess(const Device& device, const AddressRange& range) {
  if (range.is_pinned_pool) return (range.accessors >> device.ordinal & 1) != 0;
  if (range.kind != AddressKind::kDevice) return true;
  if (range.accessors != 0) return (range.accessors >> device.ordinal & 1) != 0;
  return range.device == device.ordinal || device.HasPeer(range.device);
}

Status Copy(std::uint64_t destination, std::uint64_t source, std::uint64_t bytes, StreamState& stream, bool is_between_contexts) {
  if (bytes == 0) return kSuccess;
  AddressRange to_range, from_range;
  Status status = ClassifyCopy(destination, source, bytes, stream, is_between_contexts, &to_range, &from_range);
  if (status != kSuccess) return status;
  const AddressKind to = to_range.kind;
  const AddressKind from = from_range.kind;
  CopyWork work{reinterpret_cast<void*>(destination), reinterpret_cast<const void*>(source), bytes, nullptr,
                to == AddressKind::kManaged,          from == AddressKind::kManaged};
  bool is_pageable = to == AddressKind::kPageable || from == AddressKind::kPageable;
  // Whether a graph reads pageable memory at each launch is not documented.
  if (IsCapturing(stream)) return is_pageable ? RefuseInCapture(stream, kErrorCaptureUnsupported) : CaptureWork(stream, kNodeCopy, work);
  status = OrderWithLegacy(stream);
  if (status != kSuccess) return status;
  const bool is_within_host = to >= AddressKind::kPinned && from >= AddressKind::kPinned;
  const bool uses_pageable = HasPageableAccess() && !is_within_host;
  if (is_pageable && IsIdle(stream) && !uses_pageable) {
    // Pageable memory is read, or written, before the call returns; if nothing precedes it the copy
    // can be made right here.
    Run(work, stream);
    return kSuccess;
  }
  bool must_wait = to == AddressKind::kPageable && !uses_pageable;
  // A device that reads pageable memory itself may still read little of it at the time of the call, and so misses earlier copies there.
  const bool reads_now = !uses_pageable || bytes <= kMostReadAtOnce;
  if (from == AddressKind::kPageable && to != AddressKind::kPageable && reads_now) {
    work.staged = std::malloc(bytes);
    if (work.staged != nullptr) {
      std::memcpy(work.staged, work.source, bytes);
      work.source = work.staged;
    }
    must_wait = work.staged == nullptr;
  }
  Mark mark;
  status = Submit(stream, work, &mark);
  if (status != kSuccess) {
    std::free(work.staged);
  } else if (must_wait) {
    WaitForMark(mark);
  }
  return status;
}

Status CheckCopy(std::uint64_t destination, std::uint64_t source, std::uint64_t bytes, const StreamState& stream) {
  AddressRange to, from;
  return bytes == 0 ? Status{kErrorInvalidValue} : ClassifyCopy(destination, source, bytes, stream, false, &to, &from);
}

Status Fill(std::uint64_t destination, std::uint32_t value, bool is_bytes, std::uint64_t count, StreamState& stream) {
  if (count == 0) return kSuccess;
  std::uint64_t width = is_bytes ? 1 : sizeof value;
  if (destination % width != 0 || count > ~std::uint64_t{0} / width) return kErrorInvalidValue;
  const AddressRange range = Classify(destination, count * width, true);
  const AddressKind to = range.kind;
  if (to == AddressKind::kInvalid || to == AddressKind::kPageable || !HasAccess(*stream.device, range)) return kErrorInvalidValue;
  const FillWork work{reinterpret_cast<void*>(destination), value, count, is_bytes, to == AddressKind::kManaged};
  return IsCapturing(stream) ? CaptureWork(stream, kNodeFill, work) : Submit(stream, work, nullptr);
}

}  // namespace cistern::software
