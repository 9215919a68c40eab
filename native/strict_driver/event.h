#ifndef CISTERN_STRICT_DRIVER_EVENT_H_
#define CISTERN_STRICT_DRIVER_EVENT_H_

#include "strict_driver/state.h"

namespace cistern::strict {

// Finds the event of a handle.
Status FindEvent(Event handle, std::shared_ptr<EventState>* event);

}  // namespace cistern::strict

#endif  // CISTERN_STRICT_DRIVER_EVENT_H_
