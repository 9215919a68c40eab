// Events that cistern records for its own use, kept for reuse.
#ifndef CISTERN_ADDON_INTERNAL_EVENTS_H_
#define CISTERN_ADDON_INTERNAL_EVENTS_H_

#include <vector>

#include "cuda/driver_table.h"

namespace cistern {

struct DeviceEvent {
  Event event;
  int device;
};

class InternalEvents {
 public:
  // The device's context must be current.
  Status Acquire(const DriverTable& driver, int device, Event* event) {
    for (DeviceEvent& idle : idle_) {
      if (idle.device != device) continue;
      *event = idle.event;
      idle = idle_.back();
      idle_.pop_back();
      return kSuccess;
    }
    // Make room in both lists now, so that this event is not lost and Release cannot fail.
    if (all_.size() == all_.capacity()) all_.reserve(2 * all_.size() + 8);
    idle_.reserve(all_.capacity());
    const Status status = driver.EventCreate(event, kEventDisableTiming);
    if (status == kSuccess) all_.push_back({*event, device});
    return status;
  }
  void Release(Event event, int device) { idle_.push_back({event, device}); }

  const std::vector<DeviceEvent>& all() const { return all_; }

 private:
  std::vector<DeviceEvent> all_;
  std::vector<DeviceEvent> idle_;
};

}  // namespace cistern

#endif  // CISTERN_ADDON_INTERNAL_EVENTS_H_
