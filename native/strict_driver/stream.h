// Streams: each with work has a thread, which runs its operations in order, each once what it depends on has run.
#ifndef CISTERN_STRICT_DRIVER_STREAM_H_
#define CISTERN_STRICT_DRIVER_STREAM_H_

#include <functional>
#include <vector>

#include "strict_driver/state.h"

namespace cistern::strict {

// The stream that a handle means. `gets_work`: the call queues work, which takes a stream of the current context.
Status FindStream(Stream handle, StreamRef* stream, bool gets_work);

StreamRef NewStream(ContextState* context, Role role, unsigned flags, int priority);

// Queues an operation; `place` is then the place right after it.
Status Submit(const StreamRef& stream, Operation operation, Place* place = nullptr);

// The ends of the context's streams that have work; only of those that the legacy default stream waits for, if `only_blocking`.
std::vector<Place> PendingOf(const ContextState& context, bool only_blocking);
bool AreReached(const std::vector<Place>& places);

// A sticky error: every later call of the context fails with it, and nothing queued runs any more.
void Poison(ContextState* context, Status error);

// A thread that takes no signals and that nobody waits for.
void StartThread(std::function<void()> body);

}  // namespace cistern::strict

#endif  // CISTERN_STRICT_DRIVER_STREAM_H_
