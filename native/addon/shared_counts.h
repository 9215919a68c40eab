// Counts of memory that adaptors of several environments share by name.
//
//     environment 1            environment 2                 process
//     Share: 3 MiB live        Share: 5 MiB live             SharedCounts "training": 9 MiB live
//            └────────────────────────┴───── added to ─────► ended: 1 MiB of environment 3
//
//     current = Σ shares + Σ ended
//
// The process counts with atomic operations, so a limit is never exceeded and no peak is missed,
// whatever environments do at the same time. Each environment also keeps its own share. When it ends,
// the share stays counted until the memory that the environment left has been freed, but for no more
// bytes than are left.
//
// A native call runs to its end even if its worker is terminated, so the process and the share never
// disagree; JavaScript could be stopped between two steps.
#ifndef CISTERN_ADDON_SHARED_COUNTS_H_
#define CISTERN_ADDON_SHARED_COUNTS_H_

#include <cstdint>
#include <memory>
#include <string>

namespace cistern {

class Environment;
struct SharedCounts;

// What one environment has counted under a name.
struct Share {
  std::shared_ptr<SharedCounts> counts;
  std::int64_t bytes = 0;
  std::int64_t allocations = 0;
  std::uint64_t opens = 0;
};

// Counts memory of ended environments only as far as it is not freed yet, and forgets unused
// counts.
void SettleShares();

// The environment has ended, and left its memory to the orphans.
void EndSharesOf(Environment& environment);

}  // namespace cistern

#endif  // CISTERN_ADDON_SHARED_COUNTS_H_
