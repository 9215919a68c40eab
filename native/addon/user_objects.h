// Parts of graphs, which end with the last graph, executable graph and launch that uses them.
//
// The driver reports the end on a thread of its own, which must not call the driver, and there is no
// way to wait for it. The part is passed to the event loop of the environment that attached it, which
// ends it on the JavaScript thread.
#ifndef CISTERN_ADDON_USER_OBJECTS_H_
#define CISTERN_ADDON_USER_OBJECTS_H_

#include <memory>

#include "addon/environment.h"

namespace cistern {

class GraphPart {
 public:
  explicit GraphPart(const Environment& environment) : loop(environment.loop) {}
  GraphPart(const GraphPart&) = delete;
  GraphPart& operator=(const GraphPart&) = delete;

  // One of these is called in the end. On the JavaScript thread:
  virtual void End(Environment& environment) = 0;
  // If the environment ends before, or the process does; on any thread, without any driver call.
  virtual void EndAlone() { delete this; }

  const std::shared_ptr<EventLoop> loop;
  GraphPart* next = nullptr;

 protected:
  virtual ~GraphPart() = default;
};

// Gives a graph, whose context must be current, a part. If this fails, the part ends as well.
Status AttachToGraph(Environment& environment, Graph graph, GraphPart* part);

// Ends the parts of graphs that have ended. Called on the JavaScript thread.
void EndGraphParts(Environment& environment);
// The same, and tells JavaScript of those that it has numbered.
void DeliverEndedParts(Environment& environment);

// The environment ends, and its event loop is closed.
void ForgetEndedParts(Environment& environment);

}  // namespace cistern

#endif  // CISTERN_ADDON_USER_OBJECTS_H_
