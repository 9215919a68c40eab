// User objects: what belongs to graphs. It is destroyed with its last reference, some time later, on the
// thread of the host functions, and no call can wait for that.
#ifndef CISTERN_STRICT_DRIVER_USER_OBJECTS_H_
#define CISTERN_STRICT_DRIVER_USER_OBJECTS_H_

#include "strict_driver/state.h"

namespace cistern::strict {

struct UserObjectState {
  UserObject handle = nullptr;
  void* data = nullptr;
  HostFunction destroy = nullptr;
  std::uint64_t of_caller = 0;  // references
  std::uint64_t references = 0;
};
using UserObjectRef = std::shared_ptr<UserObjectState>;

// The references that a graph, an executable graph or an update owns. A copy owns as many again.
class UserObjects {
 public:
  UserObjects() = default;
  UserObjects(const UserObjects& other);
  ~UserObjects();
  UserObjects& operator=(const UserObjects&) = delete;

  void Add(const UserObjectRef& object, std::uint64_t count);

 private:
  std::map<UserObjectRef, std::uint64_t> counts_;
};

void ReleaseReferences(const UserObjectRef& object, std::uint64_t count);

// Reports a host function, queued or captured at a time of `TimeOfObjects`, whose data have been destroyed
// by a user object since. Takes the lock.
std::uint64_t TimeOfObjects();
void CheckHostData(const void* data, std::uint64_t captured_at);

}  // namespace cistern::strict

#endif  // CISTERN_STRICT_DRIVER_USER_OBJECTS_H_
