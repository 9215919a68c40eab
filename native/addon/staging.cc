#include "addon/staging.h"

#include <algorithm>

#include "cuda/native_status.h"

namespace cistern {
namespace {

constexpr std::uint64_t kMaxIdleBytes = std::uint64_t{64} << 20;
constexpr std::uint64_t kSmallestBlock = std::uint64_t{4} << 10;
constexpr std::uint64_t kLargeGranule = std::uint64_t{2} << 20;

std::uint64_t BlockBytes(std::uint64_t bytes) {
  if (bytes > kMaxIdleBytes) return (bytes + kLargeGranule - 1) / kLargeGranule * kLargeGranule;
  std::uint64_t block = kSmallestBlock;
  while (block < bytes) block *= 2;
  return block;
}

}  // namespace

StagingBlock* Staging::SmallestIdle(std::uint64_t bytes) {
  StagingBlock* smallest = nullptr;
  for (StagingBlock& idle : idle_) {
    if (idle.bytes >= bytes && (smallest == nullptr || idle.bytes < smallest->bytes)) smallest = &idle;
  }
  return smallest;
}

void Staging::Reserve(const DriverTable& driver) {
  constexpr std::size_t kBlocks = 16;
  constexpr std::uint64_t kBytes = std::uint64_t{64} << 10;
  std::size_t count = 0;
  for (const StagingBlock& idle : idle_) count += idle.bytes >= kBytes ? 1 : 0;
  for (StagingBlock block; count < kBlocks && Allocate(driver, kBytes, &block) == kSuccess; ++count) Release(block);
}

Status Staging::Acquire(const DriverTable& driver, std::uint64_t bytes, StagingBlock* block) {
  StagingBlock* idle = SmallestIdle(bytes);
  if (idle == nullptr) return Allocate(driver, BlockBytes(bytes), block);
  *block = *idle;
  idle_bytes_ -= idle->bytes;
  *idle = idle_.back();
  idle_.pop_back();
  return kSuccess;
}

Status Staging::Allocate(const DriverTable& driver, std::uint64_t block_bytes, StagingBlock* block) {
  // Make room in both lists now, also for blocks that come back, so that no block is lost, and neither Release nor Own
  // can fail.
  if (all_.size() + disowned_ == all_.capacity()) all_.reserve(2 * all_.capacity() + 8);
  idle_.reserve(all_.capacity());
  const Status status = driver.MemHostAlloc(&block->pointer, block_bytes, kHostAllocPortable);
  if (status != kSuccess) return status;
  block->bytes = block_bytes;
  all_.push_back(*block);
  return kSuccess;
}

void Staging::Release(const StagingBlock& block) {
  idle_.push_back(block);
  idle_bytes_ += block.bytes;
}

void Staging::Disown(const StagingBlock& block) {
  all_.erase(std::find_if(all_.begin(), all_.end(), [&](const StagingBlock& other) { return other.pointer == block.pointer; }));
  disowned_ += 1;
}

void Staging::Own(const StagingBlock& block) {
  all_.push_back(block);
  disowned_ -= 1;
  Release(block);
}

bool Staging::HasSurplus() const { return idle_bytes_ > kMaxIdleBytes; }

void Staging::FreeSurplus(const DriverTable& driver) {
  while (HasSurplus()) {
    const auto largest =
        std::max_element(idle_.begin(), idle_.end(), [](const StagingBlock& a, const StagingBlock& b) { return a.bytes < b.bytes; });
    const StagingBlock block = *largest;
    *largest = idle_.back();
    idle_.pop_back();
    idle_bytes_ -= block.bytes;
    Disown(block);
    driver.MemFreeHost(block.pointer);
  }
}

}  // namespace cistern
