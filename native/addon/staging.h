// Pinned host memory in which copies wait for their turn. Blocks are kept for reuse, up to a total;
// none of the driver calls is counted.
#ifndef CISTERN_ADDON_STAGING_H_
#define CISTERN_ADDON_STAGING_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cuda/driver_table.h"

namespace cistern {

struct StagingBlock {
  void* pointer = nullptr;
  std::uint64_t bytes = 0;
};

class Staging {
 public:
  // Whether a block is available without an allocation.
  bool HasIdle(std::uint64_t bytes) { return SmallestIdle(bytes) != nullptr; }
  // Allocates some blocks ahead, for copies made while no allocation is allowed. A context must be
  // current.
  void Reserve(const DriverTable& driver);
  // A context must be current.
  Status Acquire(const DriverTable& driver, std::uint64_t bytes, StagingBlock* block);
  // Blocks beyond the total are kept as well until FreeSurplus.
  void Release(const StagingBlock& block);
  bool HasSurplus() const;
  // Freeing pinned memory can wait for the device: call it only while nothing stalls a stream.
  void FreeSurplus(const DriverTable& driver);

  // Takes a block out, and takes one back.
  void Disown(const StagingBlock& block);
  void Own(const StagingBlock& block);

  // Blocks in use and idle ones.
  const std::vector<StagingBlock>& all() const { return all_; }

 private:
  StagingBlock* SmallestIdle(std::uint64_t bytes);
  Status Allocate(const DriverTable& driver, std::uint64_t block_bytes, StagingBlock* block);

  std::vector<StagingBlock> all_;
  std::vector<StagingBlock> idle_;
  std::uint64_t idle_bytes_ = 0;
  std::size_t disowned_ = 0;
};

}  // namespace cistern

#endif  // CISTERN_ADDON_STAGING_H_
