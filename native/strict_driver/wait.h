// Waits of calls, which are reported if they last long.
#ifndef CISTERN_STRICT_DRIVER_WAIT_H_
#define CISTERN_STRICT_DRIVER_WAIT_H_

#include <functional>
#include <vector>

#include "strict_driver/state.h"

namespace cistern::strict {

// Waits until `done`. An error of the context (if any) ends the wait, too, and is returned.
Status Wait(Lock& lock, ContextState* context, const char* function, const std::function<bool()>& done);

Status WaitForPlace(Lock& lock, ContextState* context, const char* function, const Place& place);

// Waits for what is queued on the context's streams now. If `may_lock` and the settings say so, every other call of the context waits, too.
Status WaitForContext(Lock& lock, ContextState* context, const char* function, bool may_lock);

}  // namespace cistern::strict

#endif  // CISTERN_STRICT_DRIVER_WAIT_H_
