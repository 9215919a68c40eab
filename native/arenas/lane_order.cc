#include "arenas/lane_order.h"

#include <algorithm>

namespace cistern::arenas {
namespace {

std::uint64_t NumberOfThread() {
  static std::atomic<std::uint64_t> last{0};
  thread_local const std::uint64_t number = ++last;
  return number;
}

}  // namespace

Status LaneOrder::RefuseCaptured(Stream stream) const {
  int capture = kCaptureNone;
  const Status status = driver_->StreamIsCapturing(stream, &capture);
  if (status == kErrorCaptureImplicit || (status == kSuccess && capture != kCaptureNone)) return kCapturing;
  return status == kErrorNotSupported ? Status{kSuccess} : status;
}

Status LaneOrder::Identify(Stream stream, std::uint64_t* key) const {
  const Status captured = RefuseCaptured(stream);
  if (captured != kSuccess) return captured;
  *key = kLegacyKey;
  if (stream == LegacyStream()) return kSuccess;
  *key = NumberOfThread() << 2 | 3;
  if (stream == PerThreadStream()) return kSuccess;
  unsigned long long id = 0;
  const Status status = driver_->StreamGetId(stream, &id);
  *key = id << 2 | 2;
  return status;
}

Status LaneOrder::AwaitAll(Stream stream, const std::vector<EventUse>& uses) const {
  const DriverTable* table = driver_;
  for (const EventUse& use : uses) {
    const Status status = table->StreamWaitEvent(stream, use.event->event, 0);
    if (status != kSuccess) return status;
  }
  return kSuccess;
}

bool LaneOrder::RecordsAtFree(Stream stream) const {
  if (policy_ == DeallocationEvents::kOff) return false;
  return policy_ == DeallocationEvents::kEager || stream != LegacyStream();
}

void LaneOrder::NoteOrder(Lane& lane, std::uint64_t number, ArenaEvent* event) {
  if (event == nullptr) {
    lane.last_free = std::max(lane.last_free, number);
    return;
  }
  std::size_t kept = 0;
  for (const EventUse& use : lane.before) {
    if (use.is_awaited && use.number < number) {
      events_.Release(use.event);  // the newer one covers it
    } else {
      lane.before[kept++] = use;
    }
  }
  lane.before.resize(kept);
  lane.before.push_back({event, number, true});
}

void LaneOrder::NoteFrees(ThreadArena& arena, Lane& lane, std::uint64_t number, ArenaEvent* event) {
  NoteOrder(lane, number, event);
  if (event != nullptr) {
    // It covers what the driver has refused one for.
    if (lane.last_free < number) Hold(arena, lane, false);
  } else if (policy_ == DeallocationEvents::kDeferred && lane.key == kLegacyKey) {
    lane.is_unrecorded = true;
  } else {
    Hold(arena, lane, true);
  }
}

Status LaneOrder::AwaitOwn(ThreadArena& arena, Lane& lane, Stream stream, std::unique_lock<std::mutex>& lock) {
  for (;;) {
    std::vector<EventUse> uses;
    for (const EventUse& use : lane.before) {
      if (!use.is_awaited) uses.push_back(use);
    }
    if (uses.empty()) return kSuccess;
    Retain(uses);
    lane.pins += 1;
    lock.unlock();
    const Status status = AwaitAll(stream, uses);
    const std::uint64_t number = ++arena.last_number;
    lock.lock();
    lane.pins -= 1;
    for (const EventUse& use : uses) {
      for (EventUse& each : lane.before) {
        if (status != kSuccess || each.event != use.event) continue;
        each.is_awaited = true;
        each.number = number;
      }
      events_.Release(use.event);
    }
    if (status != kSuccess) return status;
  }
}

Status LaneOrder::RecordLate(ThreadArena& arena, Lane& lane, std::unique_lock<std::mutex>& lock) {
  lane.pins += 1;
  lock.unlock();
  ArenaEvent* event = nullptr;
  Status status = RefuseCaptured(LegacyStream());
  if (status == kSuccess) status = Guarded([&] { return events_.Acquire(&event); });
  const std::uint64_t number = ++arena.last_number;
  if (status == kSuccess) {
    status = driver_->EventRecord(event->event, LegacyStream());
    if (status != kSuccess) events_.Release(event);
  }
  lock.lock();
  lane.pins -= 1;
  if (status != kSuccess) return status;
  status = Guarded([&] { return MakeRoom(lane, 1), kSuccess; });
  if (status != kSuccess) {
    events_.Release(event);
    return status;
  }
  NoteOrder(lane, number, event);
  if (lane.last_free < number) lane.is_unrecorded = false;
  return kSuccess;
}

Status LaneOrder::JoinEvents(Lane& common, Stream joining, std::unique_lock<std::mutex>& lock) {
  const std::vector<EventUse> uses = common.before;
  Retain(uses);
  common.pins += 1;
  lock.unlock();
  ArenaEvent* event = nullptr;
  Status status = Guarded([&] { return events_.Acquire(&event); });
  if (status == kSuccess) status = AwaitAll(joining, uses);
  if (status == kSuccess) status = driver_->EventRecord(event->event, joining);
  lock.lock();
  common.pins -= 1;
  std::size_t kept = 0;
  for (const EventUse& each : common.before) {
    const bool is_covered = std::any_of(uses.begin(), uses.end(), [&](const EventUse& use) { return use.event == each.event; });
    if (status == kSuccess && is_covered) {
      events_.Release(each.event);
    } else {
      common.before[kept++] = each;
    }
  }
  // Meanwhile another call may have joined the lane's memory with its stream's.
  const bool is_needed = kept < common.before.size();
  common.before.resize(kept);
  if (is_needed) common.before.push_back({event, 0, false});
  if (!is_needed && event != nullptr) events_.Release(event);
  for (const EventUse& use : uses) events_.Release(use.event);
  return status;
}

}  // namespace cistern::arenas
