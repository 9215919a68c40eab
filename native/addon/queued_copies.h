// Copies that never block the JavaScript thread.
//
// The driver waits for a stream before it touches pageable host memory or copies within host
// memory. That is harmless until a stream waits for this very thread (a host function, a hold).
// Then a native host function in stream order copies within host memory, and a copy between a
// device and pageable memory goes through pinned staging memory. While such a write of pageable
// memory is queued, copies from that memory are made in the same way, even if nothing stalls: the
// driver would read it too early.
#ifndef CISTERN_ADDON_QUEUED_COPIES_H_
#define CISTERN_ADDON_QUEUED_COPIES_H_

#include <cstdint>

#include "addon/environment.h"
#include "addon/ranges.h"
#include "addon/staging.h"

namespace cistern {

// Whether the driver's copy from there would miss queued writes: it reads pageable memory at the
// time of the call.
bool ReadsTooEarly(Place source);

// For everything below, the stream's context must be current and ranges must be checked.

// Queues a copy, which becomes a node on a captured stream: then only the driver's copy will do, and
// kCapturing says that it will not. It blocks on host memory only if nothing can stall.
Status QueueCopy(Environment& environment, Location destination, Location source, std::uint64_t bytes, const StreamEntry& stream);

// Copies the bytes of an array, as they are now, at each launch of the graph that work on the stream is
// recorded in. kHostFunctionReady as for AcquireStaging.
Status CaptureCopyOfArray(Environment& environment, Graph graph, Location destination, const void* source, std::uint64_t bytes,
                          const StreamEntry& stream);

// A copy into staging memory in progress: the block holds the bytes once the event is complete.
struct StagedCopy {
  StagingBlock block;
  Event event = nullptr;
};
Status StageForHost(Environment& environment, Location source, std::uint64_t bytes, const StreamEntry& stream, StagedCopy* copy);

// Gets a block of staging memory, and makes sure that a thread will give it back.
// kHostFunctionReady if one must be allocated and host functions come first; then nothing is
// queued, and the call can be repeated.
Status AcquireStaging(Environment& environment, std::uint64_t bytes, StagingBlock* block);

// These give a block back once the work that uses it, already queued on the stream, has run.
void ReleaseStagingLater(Environment& environment, const StagingBlock& block, const StreamEntry& stream);
void ReleaseLater(Environment& environment, const StagedCopy& copy, int device);

}  // namespace cistern

#endif  // CISTERN_ADDON_QUEUED_COPIES_H_
