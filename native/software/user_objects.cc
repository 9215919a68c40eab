#include "software/user_objects.h"

#include <condition_variable>
#include <map>
#include <mutex>
#include <utility>

#include "platform/lasting.h"
#include "platform/thread.h"
#include "software/device.h"

namespace cistern::software {
namespace {

// The objects of which the program itself holds references, and destructors that are to run.
struct UserObjects {
  struct Held {
    std::shared_ptr<OwnedObject> object;
    unsigned references;
  };
  std::mutex mutex;
  std::map<UserObject, Held> held;
  std::uintptr_t last_handle = 0;

  std::mutex destructors_mutex;
  std::condition_variable arrived;
  Destructors destructors;
  bool has_thread = false;
};

// Never destroyed, like all that threads may still use while the process ends.
UserObjects& AllUserObjects() {
  static Lasting<UserObjects> objects;
  return *objects;
}

void* RunDestructors(void*) {
  UserObjects& objects = AllUserObjects();
  thread_state.is_in_host_function = true;
  std::unique_lock<std::mutex> lock(objects.destructors_mutex);
  for (;;) {
    objects.arrived.wait(lock, [&] { return !objects.destructors.empty(); });
    const auto [destroy, data] = objects.destructors.front();
    objects.destructors.pop_front();
    lock.unlock();
    destroy(data);
    lock.lock();
  }
  return nullptr;
}

// Takes references away; what was the program's last share of the object, or null.
Status TakeReferences(UserObject object, unsigned count, std::shared_ptr<OwnedObject>* last) {
  UserObjects& objects = AllUserObjects();
  const auto found = objects.held.find(object);
  if (found == objects.held.end() || count == 0 || found->second.references < count) return kErrorInvalidValue;
  found->second.references -= count;
  if (found->second.references > 0) return kSuccess;
  *last = std::move(found->second.object);
  objects.held.erase(found);
  return kSuccess;
}

}  // namespace

OwnedObject::~OwnedObject() {
  UserObjects& objects = AllUserObjects();
  const std::lock_guard<std::mutex> lock(objects.destructors_mutex);
  objects.destructors.splice(objects.destructors.end(), destructor_);
  if (!objects.has_thread) objects.has_thread = StartThread(RunDestructors, nullptr, "cistern-objects");
  objects.arrived.notify_one();
}

Status CreateUserObject(HostFunction destroy, void* data, unsigned references, UserObject* object) {
  UserObjects& objects = AllUserObjects();
  auto owned = std::make_shared<OwnedObject>(destroy, data);
  const std::lock_guard<std::mutex> lock(objects.mutex);
  objects.last_handle += 16;
  *object = reinterpret_cast<UserObject>(objects.last_handle);
  objects.held[*object] = {std::move(owned), references};
  return kSuccess;
}

Status ReleaseUserObject(UserObject object, unsigned count) {
  std::shared_ptr<OwnedObject> last;  // let go of after the lock
  const std::lock_guard<std::mutex> lock(AllUserObjects().mutex);
  return TakeReferences(object, count, &last);
}

Status ShareUserObject(UserObject object, unsigned count, bool takes_over, std::shared_ptr<OwnedObject>* shared) {
  UserObjects& objects = AllUserObjects();
  const std::lock_guard<std::mutex> lock(objects.mutex);
  const auto found = objects.held.find(object);
  if (found == objects.held.end() || count == 0) return kErrorInvalidValue;
  std::shared_ptr<OwnedObject> owned = found->second.object;
  std::shared_ptr<OwnedObject> last;
  const Status status = takes_over ? TakeReferences(object, count, &last) : kSuccess;
  if (status == kSuccess) *shared = std::move(owned);
  return status;
}

}  // namespace cistern::software
