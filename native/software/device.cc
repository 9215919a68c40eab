#include "software/device.h"

#include <algorithm>

#include "platform/system.h"
#include "software/checkpoint.h"
#include "software/managed_memory.h"
#include "software/memory_pool.h"
#include "software/settings.h"
#include "software/software_device.h"

namespace cistern::software {

namespace {

// All of this is never destroyed: streams may still run while the process ends.
std::atomic<int> device_count{0};
Device* devices[kMaxDevices];
std::uint64_t configured_bytes = 0;
int configured_count = 1;

std::mutex& SetupMutex() {
  static std::mutex* mutex = new std::mutex;
  return *mutex;
}

// Evicts pages of managed memory so that the total can become smaller.
void EvictDownTo(Device& device, std::uint64_t total_bytes) {
  std::uint64_t free;
  std::uint64_t total;
  device.memory.GetInfo(&free, &total);
  if (total > total_bytes) RoomInMemory(device, total - total_bytes).Make();
}

}  // namespace

Status Initialize() {
  if (IsInitialized()) return kSuccess;
  std::lock_guard<std::mutex> guard(SetupMutex());
  if (IsInitialized()) return kSuccess;
  const std::uint64_t total_bytes = configured_bytes != 0 ? configured_bytes : std::min(MachineMemory() / 2, kMaxTotalBytes);
  for (int i = 0; i < configured_count; ++i) devices[i] = new Device(i, total_bytes);
  device_count.store(configured_count, std::memory_order_release);
  ServeCheckpoints();
  return kSuccess;
}

bool IsInitialized() { return DeviceCount() != 0; }
int DeviceCount() { return device_count.load(std::memory_order_acquire); }
Device* FindDevice(int ordinal) { return ordinal >= 0 && ordinal < DeviceCount() ? devices[ordinal] : nullptr; }

Device* FindDeviceOf(Context context) {
  for (int i = 0; i < DeviceCount(); ++i) {
    if (devices[i]->context() == context) return devices[i];
  }
  return nullptr;
}

Device* FindDeviceByAddress(std::uint64_t address) {
  int count = DeviceCount();
  for (int i = 0; i < count; ++i) {
    if (devices[i]->memory.Contains(address)) return devices[i];
  }
  return nullptr;
}

Status Configure(std::uint64_t total_bytes, int count) {
  if (total_bytes > kMaxTotalBytes || count < 0 || count > kMaxDevices) return kErrorInvalidValue;
  std::lock_guard<std::mutex> guard(SetupMutex());
  if (!IsInitialized()) {
    if (total_bytes != 0) configured_bytes = total_bytes;
    if (count != 0) configured_count = count;
    return kSuccess;
  }
  if (count != 0 && count != DeviceCount()) return kErrorNotPermitted;
  if (total_bytes == 0) return kSuccess;
  for (bool is_trial : {true, false}) {
    for (int i = 0; i < DeviceCount(); ++i) {
      if (is_trial) ReclaimPools(*devices[i], Reclaim::kAll);
      if (!is_trial) EvictDownTo(*devices[i], total_bytes);
      Status status = devices[i]->memory.SetTotal(total_bytes, is_trial);
      if (status != kSuccess) return status;
    }
  }
  return kSuccess;
}

void SetStrict(bool strict) { is_strict = strict; }

void SetFreesWait(bool waits) { frees_wait = waits; }
void SetConcurrentManagedAccess(bool has_access) { has_concurrent_managed_access = has_access; }
void SetCoherent(bool now_coherent) { is_coherent = now_coherent; }

void SetPageableAccess(bool has_access) { has_pageable_access = has_access; }
bool SetPeers(const char* text) { return SetReachablePeers(text); }
void SetMigrationCost(std::uint64_t nanoseconds) { migration_nanoseconds = nanoseconds; }

Status Device::Prepare() {
  std::lock_guard<std::mutex> guard(context_mutex_);
  if (is_prepared_) return kSuccess;
  Status status = memory.Reserve();
  if (status == kSuccess) status = CreateStream(*this, StreamRole::kLegacy, kStreamDefault, 0, &legacy_stream);
  is_prepared_ = status == kSuccess;
  return status;
}

Status Device::Retain() {
  Status status = Prepare();
  if (status == kSuccess) retain_count_.fetch_add(1, std::memory_order_relaxed);
  return status;
}

Status Device::Release() {
  std::lock_guard<std::mutex> guard(context_mutex_);
  if (!IsRetained()) return kErrorInvalidContext;
  retain_count_.fetch_sub(1, std::memory_order_relaxed);
  return kSuccess;
}

Status Device::EnablePeer(const Device& peer) {
  if (!CanReach(ordinal, peer.ordinal)) return kErrorPeerAccessUnsupported;
  const std::uint32_t bit = 1U << peer.ordinal;
  return (peers_.fetch_or(bit) & bit) == 0 ? kSuccess : Status{kErrorPeerAccessAlreadyEnabled};
}

Status Device::DisablePeer(const Device& peer) {
  const std::uint32_t bit = 1U << peer.ordinal;
  return (peers_.fetch_and(~bit) & bit) != 0 ? kSuccess : Status{kErrorPeerAccessNotEnabled};
}

void WaitToFree() {
  for (int i = 0; FreesWait() && i < DeviceCount(); ++i) FindDevice(i)->Synchronize();
}

void Device::Synchronize() {
  if (IsIdle()) return;
  for (Mark mark : PendingMarks(false)) WaitForMark(mark);
}

void Device::AddStream(StreamState* stream) {
  std::lock_guard<std::mutex> guard(streams_mutex_);
  streams_.push_back(stream);
}

void Device::RemoveStream(StreamState* stream) {
  std::lock_guard<std::mutex> guard(streams_mutex_);
  auto found = std::find(streams_.begin(), streams_.end(), stream);
  *found = streams_.back();
  streams_.pop_back();
}

std::vector<Mark> Device::PendingMarks(bool blocking_streams_only) {
  std::vector<Mark> marks;
  std::lock_guard<std::mutex> guard(streams_mutex_);
  for (const StreamState* stream : streams_) {
    if (blocking_streams_only && (!stream->is_blocking || stream->role == StreamRole::kLegacy)) continue;
    Mark mark = CurrentMark(*stream);
    if (!IsReached(mark)) marks.push_back(mark);
  }
  return marks;
}

}  // namespace cistern::software
