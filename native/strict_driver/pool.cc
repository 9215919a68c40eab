#include "strict_driver/pool.h"

#include <sys/mman.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "strict_driver/allocation.h"
#include "strict_driver/ipc.h"
#include "strict_driver/report.h"
#include "strict_driver/settings.h"
#include "strict_driver/stream.h"

namespace cistern::strict {
namespace {

constexpr std::size_t kChunk = std::size_t{32} << 20;
constexpr std::size_t kLargest = std::size_t{1} << 46;
constexpr std::size_t kLargestOfHost = std::size_t{1} << 44;

void MergeWithNeighbours(PoolChunk& chunk, std::size_t offset) {
  const auto block = chunk.free_blocks.find(offset);
  const auto next = std::next(block);
  if (next != chunk.free_blocks.end() && !next->second.is_pending && block->first + block->second.bytes == next->first) {
    block->second.bytes += next->second.bytes;
    chunk.free_blocks.erase(next);
  }
  if (block == chunk.free_blocks.begin()) return;
  const auto before = std::prev(block);
  if (before->second.is_pending || before->first + before->second.bytes != block->first) return;
  before->second.bytes += block->second.bytes;
  chunk.free_blocks.erase(block);
}

void Observe(PoolState& pool) {
  for (auto& [start, chunk] : pool.chunks) {
    std::vector<std::size_t> seen;
    for (const auto& [offset, block] : chunk.free_blocks) {
      if (block.is_pending && block.freed_at.IsReached()) seen.push_back(offset);
    }
    for (const std::size_t offset : seen) {
      FreeBlock& block = chunk.free_blocks[offset];
      block.is_pending = false;
      block.freed_at = {};
      if (!settings().used_memory_falls_at_once) pool.used -= block.bytes;
      MergeWithNeighbours(chunk, offset);
    }
  }
}

void DropIfDestroyedAndEmpty(const PoolRef& pool) {
  if (!pool->is_destroyed || pool->live != 0) return;
  Observe(*pool);
  ReleaseChunks(*pool, 0);
  if (pool->chunks.empty()) driver.all_pools.erase(pool);
}

// What the offsets of a pool's chunks count from.
std::uintptr_t OriginOf(const PoolState& pool) { return pool.IsOnDevice() ? driver.MemoryOf(pool.device).start() : 0; }

bool TakeChunk(const PoolState& pool, std::size_t bytes, std::size_t* start) {
  if (pool.IsOnDevice()) return driver.MemoryOf(pool.device).TakeGranules(bytes, start);
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  *start = reinterpret_cast<std::size_t>(memory);
  return memory != MAP_FAILED;
}

void GiveChunk(const PoolState& pool, std::size_t start, std::size_t bytes) {
  if (pool.IsOnDevice()) {
    driver.MemoryOf(pool.device).GiveGranules(start, bytes);
  } else {
    munmap(reinterpret_cast<void*>(start), bytes);
  }
}

// The free blocks that an allocation may take.
enum class Reuse { kFree, kSameStream, kCompleted, kByWaiting };

bool Fits(const FreeBlock& block, const StreamRef& stream, Reuse reuse) {
  switch (reuse) {
    case Reuse::kFree:
      return !block.is_pending;
    case Reuse::kSameStream:
      return block.is_pending && block.freed_at.stream == stream;
    case Reuse::kCompleted:
      return block.is_pending && block.freed_at.IsReached();
    case Reuse::kByWaiting:
      return block.is_pending;
  }
  return false;
}

// Takes the front of the first free block that fits.
bool TakeBlock(PoolState& pool, std::size_t bytes, const StreamRef& stream, Reuse reuse, std::size_t* offset, Place* after) {
  for (auto& [start, chunk] : pool.chunks) {
    for (const auto& [at, block] : chunk.free_blocks) {
      if (block.bytes < bytes || !Fits(block, stream, reuse)) continue;
      *offset = at;
      if (block.is_pending && !settings().used_memory_falls_at_once) pool.used -= bytes;
      if (reuse == Reuse::kByWaiting) *after = block.freed_at;
      FreeBlock rest = block;
      rest.bytes -= bytes;
      chunk.free_blocks.erase(at);
      if (rest.bytes != 0) chunk.free_blocks[*offset + bytes] = std::move(rest);
      return true;
    }
  }
  return false;
}

bool Grow(PoolState& pool, std::size_t bytes) {
  const std::size_t chunk = std::max(RoundUp(bytes, kGranule), kChunk);
  if (pool.max_bytes != 0 && pool.reserved + chunk > pool.max_bytes) return false;
  std::size_t start;
  if (!TakeChunk(pool, chunk, &start)) return false;
  pool.chunks[start].bytes = chunk;
  pool.chunks[start].free_blocks[start].bytes = chunk;
  pool.reserved += chunk;
  pool.reserved_high = std::max(pool.reserved_high, pool.reserved);
  return true;
}

}  // namespace

Status AllocateFromPool(const PoolRef& pool, std::size_t bytes, const StreamRef& stream, DevicePointer* pointer) {
  if (bytes > (pool->IsOnDevice() ? kLargest : kLargestOfHost)) return kErrorOutOfMemory;
  const std::size_t rounded = RoundUp(bytes, kUnit);
  std::size_t offset = 0;
  Place after;
  const auto take = [&](Reuse reuse) { return TakeBlock(*pool, rounded, stream, reuse, &offset, &after); };
  const auto grow = [&] { return Grow(*pool, rounded) && take(Reuse::kFree); };
  const bool is_found = take(Reuse::kSameStream) || take(Reuse::kFree) || (pool->is_opportunistic != 0 && take(Reuse::kCompleted)) ||
                        grow() || (ReclaimFromPools(pool->device) != 0 && grow()) ||
                        (pool->adds_dependencies != 0 && take(Reuse::kByWaiting));
  if (!is_found) return kErrorOutOfMemory;
  pool->used += rounded;
  pool->used_high = std::max(pool->used_high, pool->used);
  pool->live += 1;
  const bool is_managed = pool->IsManaged();
  const DeviceOrdinal device = pool->IsOnDevice() ? pool->device : thread.current->device;
  const Kind of_host = is_managed ? Kind::kManaged : Kind::kPinned;
  const AllocationRef allocation = Publish(OriginOf(*pool) + offset, bytes, rounded, pool->IsOnDevice() ? Kind::kPool : of_host, device);
  allocation->pool = pool;
  if (is_managed) {
    allocation->pages.resize(RoundUp(rounded, kManagedPage) / kManagedPage);
    for (PageAdvice& page : allocation->pages) page.preferred = pool->preferred;
  }
  allocation->is_allocated = false;
  Operation operation;
  operation.name = "cuMemAllocFromPoolAsync";
  if (after.stream != nullptr) operation.after.push_back(std::move(after));
  operation.run = [allocation] {
    allocation->is_allocated = true;
    FillWithGarbage(HostView(*allocation, allocation->start), allocation->bytes);
  };
  *pointer = allocation->start;
  return Submit(stream, std::move(operation));
}

Status FreeToPool(const AllocationRef& allocation, const StreamRef& stream) {
  const PoolRef pool = allocation->pool;
  Place place;
  if (stream != nullptr) {
    Operation operation;
    operation.name = "cuMemFreeAsync";
    operation.run = [allocation] {
      if (!allocation->is_allocated) Report("ORDER", "memory is freed before its allocation has run");
      allocation->is_freed = true;
    };
    const Status status = Submit(stream, std::move(operation), &place);
    if (status != kSuccess) return status;
  } else {
    allocation->is_freed = true;
  }
  driver.allocations.erase(allocation->start);
  if (allocation->slot != 0) {
    EndSlot(allocation->slot);
    if (IsOpenElsewhere(allocation->slot))
      Report("MISUSE", "the memory %#lx is freed while another process has it open", allocation->start);
  }
  const std::size_t offset = allocation->start - OriginOf(*pool);
  PoolChunk& chunk = std::prev(pool->chunks.upper_bound(offset))->second;
  chunk.free_blocks[offset] = {allocation->reserved, stream != nullptr, place};
  if (stream == nullptr || settings().used_memory_falls_at_once) pool->used -= allocation->reserved;
  if (stream == nullptr) MergeWithNeighbours(chunk, offset);
  pool->live -= 1;
  DropIfDestroyedAndEmpty(pool);
  return kSuccess;
}

std::size_t ReleaseChunks(PoolState& pool, std::size_t keep) {
  std::size_t released = 0;
  for (auto chunk = pool.chunks.begin(); chunk != pool.chunks.end();) {
    auto& [start, state] = *chunk;
    const FreeBlock* only = state.free_blocks.size() == 1 ? &state.free_blocks.begin()->second : nullptr;
    const bool is_unused = only != nullptr && !only->is_pending && only->bytes == state.bytes;
    if (!is_unused || pool.reserved - state.bytes < keep) {
      ++chunk;
      continue;
    }
    GiveChunk(pool, start, state.bytes);
    pool.reserved -= state.bytes;
    released += state.bytes;
    chunk = pool.chunks.erase(chunk);
  }
  return released;
}

void ObserveFrees(DeviceOrdinal device) {
  const std::set<PoolRef> pools = driver.all_pools;
  for (const PoolRef& pool : pools) {
    if (pool->device != device && pool->IsOnDevice()) continue;
    Observe(*pool);
    if (!pool->is_exportable && pool->reserved > pool->release_threshold) ReleaseChunks(*pool, pool->release_threshold);
    DropIfDestroyedAndEmpty(pool);
  }
}

std::size_t ReclaimFromPools(DeviceOrdinal device) {
  std::size_t released = 0;
  for (const PoolRef& pool : driver.all_pools) {
    if (pool->device != device || pool->is_exportable) continue;
    Observe(*pool);
    released += ReleaseChunks(*pool, 0);
  }
  return released;
}

void DestroyPool(const PoolRef& pool) {
  pool->is_destroyed = true;
  pool->release_threshold = 0;
  DropIfDestroyedAndEmpty(pool);
}

}  // namespace cistern::strict
