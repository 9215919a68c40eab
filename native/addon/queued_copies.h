// Copies that never block the JavaScript thread.
//
// The driver waits for a stream before it touches pageable host memory or copies within host memory, which is harmless until a stream waits
// for this very thread (a host function, a hold). Then a native host function in the stream's order copies within host memory, and a copy
// between a device and pageable memory goes through pinned staging memory. As long as such a write of pageable memory is queued, copies
// from there are made in the same way, whatever stalls: the driver would read it too early.
#ifndef CISTERN_ADDON_QUEUED_COPIES_H_
#define CISTERN_ADDON_QUEUED_COPIES_H_

#include <cstdint>

#include "addon/environment.h"
#include "addon/ranges.h"
#include "addon/staging.h"

namespace cistern {

struct Location {
  std::uint64_t address;
  Place place;
};

// Everywhere below the stream's context is current, and ranges are checked.

// Queues a copy. It blocks on host memory only where nothing can stall.
Status QueueCopy(Environment& environment, Location destination, Location source, std::uint64_t bytes, const StreamEntry& stream);

// A copy into staging memory that is under way: the block holds the bytes once the event has happened.
struct StagedCopy {
  StagingBlock block;
  Event event = nullptr;
};
Status StageForHost(Environment& environment, Location source, std::uint64_t bytes, const StreamEntry& stream, StagedCopy* copy);

// A block of staging memory, and the thread that will give it back. kHostFunctionReady if one must be allocated and host functions come
// first; nothing is queued then, and the call can be made again.
Status AcquireStaging(Environment& environment, std::uint64_t bytes, StagingBlock* block);

// Give a block back once what uses it, queued on the stream by now, has run.
void ReleaseStagingLater(Environment& environment, const StagingBlock& block, const StreamEntry& stream);
void ReleaseLater(Environment& environment, const StagedCopy& copy, int device);

}  // namespace cistern

#endif  // CISTERN_ADDON_QUEUED_COPIES_H_
