// User objects: what belongs to graphs, and is destroyed with the last graph, executable graph or
// launch that uses it.
//
// Each owner has a shared pointer. The last one to let go leaves the destructor to a thread of its
// own: "The destructor … is not synchronized by any CUDA handle", so nobody may rely on when it runs,
// and like a host function it may not call the driver.
#ifndef CISTERN_SOFTWARE_USER_OBJECTS_H_
#define CISTERN_SOFTWARE_USER_OBJECTS_H_

#include <list>
#include <memory>
#include <utility>
#include <vector>

#include "cuda/driver_table.h"

namespace cistern::software {

using Destructors = std::list<std::pair<HostFunction, void*>>;

class OwnedObject {
 public:
  OwnedObject(HostFunction destroy, void* data) : destructor_{{destroy, data}} {}
  ~OwnedObject();
  OwnedObject(const OwnedObject&) = delete;
  OwnedObject& operator=(const OwnedObject&) = delete;

 private:
  Destructors destructor_;  // a node of the list of those that are to run, so that the end needs no memory
};

using OwnedObjects = std::vector<std::shared_ptr<OwnedObject>>;

// The program's own references. kErrorInvalidValue for an object that has none, or fewer than `count`.
Status CreateUserObject(HostFunction destroy, void* data, unsigned references, UserObject* object);
Status ReleaseUserObject(UserObject object, unsigned count);
// What a graph keeps. With `takes_over`, `count` of the program's references go away.
Status ShareUserObject(UserObject object, unsigned count, bool takes_over, std::shared_ptr<OwnedObject>* shared);

}  // namespace cistern::software

#endif  // CISTERN_SOFTWARE_USER_OBJECTS_H_
