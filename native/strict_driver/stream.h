// Streams: each stream with work has a thread, which runs its operations in order, each as soon as
// its dependencies have run.
#ifndef CISTERN_STRICT_DRIVER_STREAM_H_
#define CISTERN_STRICT_DRIVER_STREAM_H_

#include <functional>
#include <vector>

#include "strict_driver/state.h"

namespace cistern::strict {

// Finds the stream of a handle. `gets_work`: the call queues work, which requires a stream of the
// current context.
Status FindStream(Stream handle, StreamRef* stream, bool gets_work);

StreamRef NewStream(ContextState* context, Role role, unsigned flags, int priority);

// Queues an operation; `place` is then the place right after it.
Status Submit(const StreamRef& stream, Operation operation, Place* place = nullptr);

// The stream has no handle any more, and ends once its work has run.
void EndStream(const StreamRef& stream);

// The ends of the context's streams that have work; with `only_blocking`, only of those that the
// legacy default stream waits for.
std::vector<Place> PendingOf(const ContextState& context, bool only_blocking);
bool AreReached(const std::vector<Place>& places);

// A sticky error: every later call of the context fails with it, and nothing that is queued runs
// any more.
void Poison(ContextState* context, Status error);

// A detached thread that takes no signals.
void StartThread(std::function<void()> body);

}  // namespace cistern::strict

#endif  // CISTERN_STRICT_DRIVER_STREAM_H_
