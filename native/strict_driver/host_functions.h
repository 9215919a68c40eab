// Host functions: "may be serialized", so that by default one thread runs those of every stream.
#ifndef CISTERN_STRICT_DRIVER_HOST_FUNCTIONS_H_
#define CISTERN_STRICT_DRIVER_HOST_FUNCTIONS_H_

#include "strict_driver/state.h"

namespace cistern::strict {

// Runs an operation's host function and returns once that has returned, unless the context is in error: then it is not called. Under the
// lock, which is released meanwhile.
void RunHostFunction(Lock& lock, ContextState& context, const Operation& operation);

}  // namespace cistern::strict

#endif  // CISTERN_STRICT_DRIVER_HOST_FUNCTIONS_H_
