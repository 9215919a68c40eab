// Host functions "may be serialized", so by default one thread runs those of every stream.
#ifndef CISTERN_STRICT_DRIVER_HOST_FUNCTIONS_H_
#define CISTERN_STRICT_DRIVER_HOST_FUNCTIONS_H_

#include "strict_driver/state.h"

namespace cistern::strict {

// Runs an operation's host function and waits for its return. If the context is in error, the
// function is not called. Takes the lock, and releases it meanwhile.
void RunHostFunction(Lock& lock, ContextState& context, const Operation& operation);

// Calls a function some time later. Takes the lock.
void CallLater(HostFunction function, void* data);

}  // namespace cistern::strict

#endif  // CISTERN_STRICT_DRIVER_HOST_FUNCTIONS_H_
