#include "addon/queued_copies.h"

#include <atomic>
#include <cstring>
#include <memory>
#include <new>

#include "addon/captures.h"
#include "addon/completions.h"
#include "addon/host_functions.h"
#include "addon/order.h"
#include "addon/orphans.h"
#include "addon/user_objects.h"

namespace cistern {
namespace {

// The process's copies into pageable memory that are queued and have not run.
std::atomic<int> queued_host_writes{0};

struct HostCopy {
  std::uint64_t destination;
  std::uint64_t source;
  std::uint64_t bytes;
  bool writes_pageable;
};

// Runs on a driver thread.
void RunHostCopy(void* data) {
  const std::unique_ptr<HostCopy> copy(static_cast<HostCopy*>(data));
  std::memmove(reinterpret_cast<void*>(static_cast<std::uintptr_t>(copy->destination)),
               reinterpret_cast<const void*>(static_cast<std::uintptr_t>(copy->source)), static_cast<std::size_t>(copy->bytes));
  if (copy->writes_pageable) queued_host_writes -= 1;
}

Status QueueHostCopy(Environment& environment, Location destination, std::uint64_t source, std::uint64_t bytes, const StreamEntry& stream) {
  const bool writes_pageable = destination.place == Place::kPageableHost;
  auto copy = std::make_unique<HostCopy>(HostCopy{destination.address, source, bytes, writes_pageable});
  if (writes_pageable) queued_host_writes += 1;
  const Status status = environment.Counted<Call::kLaunchHostFunc>(stream.stream, RunHostCopy, static_cast<void*>(copy.get()));
  if (status != kSuccess) {
    if (writes_pageable) queued_host_writes -= 1;
    return status;
  }
  copy.release();
  NoteHostCopy(environment, stream.stream, destination.address, source, bytes);
  return kSuccess;
}

// The bytes of an array that a graph copies.
class GraphBytes final : public GraphPart {
 public:
  GraphBytes(const Environment& environment, const StagingBlock& block, int device)
      : GraphPart(environment), backend_(environment.backend), environment_(environment.id()), block_(block), device_(device) {}

  void End(Environment& environment) override {
    environment.staging.Own(block_);
    FreeStagingSurplus(environment, device_);
    delete this;
  }
  // Perhaps on a thread of the driver, where nothing may be thrown.
  void EndAlone() override {
    try {
      LeaveOrphans(backend_, {{OrphanKind::kPinnedMemory, device_, AddressOf(block_), 0, nullptr, environment_}});
    } catch (const std::bad_alloc&) {
      // The block stays until the process ends.
    }
    delete this;
  }

  static std::uint64_t AddressOf(const StagingBlock& block) { return reinterpret_cast<std::uintptr_t>(block.pointer); }

 private:
  const DriverTable* backend_;
  const std::uint64_t environment_;
  const StagingBlock block_;
  const int device_;
};

bool IsOfOther(const Location& location, const StreamEntry& stream) { return location.device >= 0 && location.device != stream.device; }

// Between the memory of two devices, or within that of another device than the stream's. The driver
// copies through the host if the devices have no access to each other's memory.
Status QueuePeerCopy(Environment& environment, const Location& destination, const Location& source, std::uint64_t bytes,
                     const StreamEntry& stream) {
  Context to, from;
  Status status = environment.ContextOf(destination.device, &to);
  if (status == kSuccess) status = environment.ContextOf(source.device, &from);
  if (status != kSuccess) return status;
  return environment.Counted<Call::kMemcpyPeerAsync>(DevicePointer{destination.address}, to, DevicePointer{source.address}, from,
                                                     static_cast<std::size_t>(bytes), stream.stream);
}

Status QueueDriverCopy(Environment& environment, std::uint64_t destination, std::uint64_t source, std::uint64_t bytes,
                       const StreamEntry& stream) {
  return environment.Counted<Call::kMemcpyAsync>(DevicePointer{destination}, DevicePointer{source}, static_cast<std::size_t>(bytes),
                                                 stream.stream);
}

}  // namespace

bool ReadsTooEarly(Place source) { return source == Place::kPageableHost && queued_host_writes > 0; }

Status QueueCopy(Environment& environment, Location destination, Location source, std::uint64_t bytes, const StreamEntry& stream) {
  const Status captured = CheckNotCapturedHere(environment, stream);
  if (captured != kSuccess && captured != kCapturing) return captured;
  const bool is_captured = captured == kCapturing;
  const bool pageable = destination.place == Place::kPageableHost || source.place == Place::kPageableHost;
  if (is_captured && pageable) return kCapturing;
  if (IsOfOther(destination, stream) || IsOfOther(source, stream)) {
    if (destination.device >= 0 && source.device >= 0) {
      return is_captured ? kCapturing : QueuePeerCopy(environment, destination, source, bytes, stream);
    }
    Status status = CheckAccess(environment, destination, stream);
    if (status == kSuccess) status = CheckAccess(environment, source, stream);
    if (status != kSuccess) return status;
  }
  if (is_captured || (!environment.MayStall() && !ReadsTooEarly(source.place))) {
    const Status status = QueueDriverCopy(environment, destination.address, source.address, bytes, stream);
    // A device that writes pageable memory itself does so later than others, but a copy from there may be read at the time of the call.
    const bool is_written_later = destination.place == Place::kPageableHost && environment.UsesPageableMemory(stream.device);
    return status == kSuccess && is_written_later ? environment.driver->StreamSynchronize(stream.stream) : status;
  }
  // The driver copies within host memory synchronously, even if both sides are pinned.
  if (destination.place != Place::kDevice && source.place != Place::kDevice) {
    return QueueHostCopy(environment, destination, source.address, bytes, stream);
  }
  if (!pageable) return QueueDriverCopy(environment, destination.address, source.address, bytes, stream);

  StagingBlock block;
  Status status = AcquireStaging(environment, bytes, &block);
  if (status != kSuccess) return status;
  const std::uint64_t staging = reinterpret_cast<std::uintptr_t>(block.pointer);
  const bool to_device = destination.place == Place::kDevice;
  status = to_device ? QueueHostCopy(environment, {staging, Place::kPinnedHost}, source.address, bytes, stream)
                     : QueueDriverCopy(environment, staging, source.address, bytes, stream);
  if (status != kSuccess) {
    environment.staging.Release(block);
    return status;
  }
  status = to_device ? QueueDriverCopy(environment, destination.address, staging, bytes, stream)
                     : QueueHostCopy(environment, destination, staging, bytes, stream);
  ReleaseStagingLater(environment, block, stream);
  return status;
}

Status CaptureCopyOfArray(Environment& environment, Graph graph, Location destination, const void* source, std::uint64_t bytes,
                          const StreamEntry& stream) {
  if (destination.place == Place::kPageableHost) return kCapturing;
  StagingBlock block;
  Status status = AcquireStaging(environment, bytes, &block);
  if (status != kSuccess) return status;
  std::memcpy(block.pointer, source, bytes);
  environment.staging.Disown(block);
  status = AttachToGraph(environment, graph, new GraphBytes(environment, block, stream.device));
  if (status != kSuccess) return status;
  return QueueCopy(environment, destination, {GraphBytes::AddressOf(block), Place::kPinnedHost}, bytes, stream);
}

Status StageForHost(Environment& environment, Location source, std::uint64_t bytes, const StreamEntry& stream, StagedCopy* copy) {
  Status status = AcquireStaging(environment, bytes, &copy->block);
  if (status != kSuccess) return status;
  const std::uint64_t staging = reinterpret_cast<std::uintptr_t>(copy->block.pointer);
  status = QueueCopy(environment, {staging, Place::kPinnedHost}, source, bytes, stream);
  if (status != kSuccess) {
    environment.staging.Release(copy->block);
    return status;
  }
  // If this fails, the block is written to at an unknown time, so it is never used again.
  return RecordInternalEvent(environment, stream, &copy->event);
}

Status AcquireStaging(Environment& environment, std::uint64_t bytes, StagingBlock* block) {
  if (!StartPoller(environment)) return kHostOutOfMemory;
  const Status status = environment.staging.HasIdle(bytes) ? kSuccess : BeforeAllocating(environment);
  if (status != kSuccess) return status;
  return environment.staging.Acquire(environment.own_calls(), bytes, block);
}

void ReleaseStagingLater(Environment& environment, const StagingBlock& block, const StreamEntry& stream) {
  StagedCopy copy{block, nullptr};
  // As above: without an event the block is simply never used again.
  if (RecordInternalEvent(environment, stream, &copy.event) == kSuccess) ReleaseLater(environment, copy, stream.device);
}

void ReleaseLater(Environment& environment, const StagedCopy& copy, int device) {
  auto completion = std::make_unique<Completion>();
  completion->event = copy.event;
  completion->device = device;
  completion->block = copy.block;
  Await(environment, std::move(completion));
}

}  // namespace cistern
