// Waits inside calls, which are reported if they take long.
#ifndef CISTERN_STRICT_DRIVER_WAIT_H_
#define CISTERN_STRICT_DRIVER_WAIT_H_

#include <functional>
#include <vector>

#include "strict_driver/state.h"

namespace cistern::strict {

// Waits until `done`. An error of the context (if there is a context) also ends the wait, and is
// returned.
Status Wait(Lock& lock, ContextState* context, const char* function, const std::function<bool()>& done);

Status WaitForPlace(Lock& lock, ContextState* context, const char* function, const Place& place);

// Waits for everything now queued on the context's streams. With `may_lock`, and if the settings
// say so, every other call of the context waits, too.
Status WaitForContext(Lock& lock, ContextState* context, const char* function, bool may_lock);

}  // namespace cistern::strict

#endif  // CISTERN_STRICT_DRIVER_WAIT_H_
