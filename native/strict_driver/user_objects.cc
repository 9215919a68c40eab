#include "strict_driver/user_objects.h"

#include "strict_driver/host_functions.h"
#include "strict_driver/report.h"

namespace cistern::strict {
namespace {

// When the last object of these data was destroyed, counted in destroyed objects.
std::map<const void*, std::uint64_t>& destroyed_at = *new std::map<const void*, std::uint64_t>;
std::uint64_t destroyed = 0;

}  // namespace

UserObjects::UserObjects(const UserObjects& other) {
  for (const auto& [object, count] : other.counts_) Add(object, count);
}

UserObjects::~UserObjects() {
  for (const auto& [object, count] : counts_) ReleaseReferences(object, count);
}

void UserObjects::Add(const UserObjectRef& object, std::uint64_t count) {
  counts_[object] += count;
  object->references += count;
}

void ReleaseReferences(const UserObjectRef& object, std::uint64_t count) {
  object->references -= count;
  if (object->references != 0) return;
  driver.user_objects.Remove(object->handle);
  destroyed_at[object->data] = ++destroyed;
  CallLater(object->destroy, object->data);
}

std::uint64_t TimeOfObjects() { return destroyed; }

void CheckHostData(const void* data, std::uint64_t captured_at) {
  const Lock lock(big_lock);
  const auto found = destroyed_at.find(data);
  if (found != destroyed_at.end() && found->second > captured_at)
    Report("MISUSE", "a host function of a graph runs after its data %p were destroyed", data);
}

}  // namespace cistern::strict
