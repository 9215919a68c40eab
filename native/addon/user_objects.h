// What belongs to a graph: objects that the driver destroys with the last graph, executable graph and
// launch that uses them.
//
// The driver does so on a thread of its own, which must not call it, and nobody can wait for that. An
// object of JavaScript has a number; its end posts the number to the event loop of the environment that
// attached it. If that has ended, nobody needs the number.
#ifndef CISTERN_ADDON_USER_OBJECTS_H_
#define CISTERN_ADDON_USER_OBJECTS_H_

#include <cstdint>
#include <memory>

#include "addon/environment.h"

namespace cistern {

struct NumberedObject {
  NumberedObject* next = nullptr;
  std::shared_ptr<EventLoop> loop;
  std::uint64_t number = 0;
};

// Takes over an object that is destroyed with the graph, or before this returns if it fails. The
// graph's context must be current.
Status AttachToGraph(Environment& environment, Graph graph, HostFunction destroy, void* object);

// Tells JavaScript if objects have ended. Called on the JavaScript thread.
void DeliverEndedObjects(Environment& environment);

// The environment ends, and its event loop is closed.
void ForgetEndedObjects(EventLoop& loop);

}  // namespace cistern

#endif  // CISTERN_ADDON_USER_OBJECTS_H_
