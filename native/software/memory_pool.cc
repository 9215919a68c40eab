#include "software/memory_pool.h"

#include <algorithm>
#include <mutex>
#include <new>
#include <utility>

#include "software/device.h"
#include "software/host_memory.h"
#include "software/legacy_order.h"
#include "software/managed_memory.h"
#include "software/settings.h"

namespace cistern::software {
namespace {

constexpr std::uint64_t kSegmentBytes = std::uint64_t{2} << 20;
// How many pending blocks are examined one by one if a stream has waited for some of another's
// frees but not for all.
constexpr int kMaxPartialSearch = 64;

std::uint64_t Granules(std::uint64_t bytes) { return (bytes + kGranule - 1) / kGranule; }

// Of a segment for a block of this size.
std::uint64_t SegmentBytes(std::uint64_t granules) { return (granules * kGranule + kSegmentBytes - 1) / kSegmentBytes * kSegmentBytes; }

PendingBlocks& PendingOf(MemoryPool& pool, Mark mark) { return *pool.pending[MarkSlot(mark)]; }

FreeIndex& IndexOf(MemoryPool& pool, const Block& block) {
  return block.free_mark == 0 ? pool.general : PendingOf(pool, block.free_mark).index;
}

void LinkEmpty(MemoryPool& pool, Segment& segment, std::uint32_t block) {
  segment.is_empty = true;
  segment.empty_block = block;
  segment.previous_empty = nullptr;
  segment.next_empty = pool.first_empty;
  if (pool.first_empty != nullptr) pool.first_empty->previous_empty = &segment;
  pool.first_empty = &segment;
}

void UnlinkEmpty(MemoryPool& pool, Segment& segment) {
  segment.is_empty = false;
  (segment.previous_empty == nullptr ? pool.first_empty : segment.previous_empty->next_empty) = segment.next_empty;
  if (segment.next_empty != nullptr) segment.next_empty->previous_empty = segment.previous_empty;
}

// Appends the block to the frees of its stream. Its mark may grow: two threads may free on one
// stream and arrive here in the opposite order.
void AppendPending(MemoryPool& pool, std::uint32_t id) {
  Block* blocks = pool.source.blocks();
  Block& block = blocks[id];
  std::uint32_t slot = MarkSlot(block.free_mark);
  if (pool.pending.size() <= slot) pool.pending.resize(slot + 1);
  if (pool.pending[slot] == nullptr) pool.pending[slot] = std::make_unique<PendingBlocks>();
  PendingBlocks& pending = *pool.pending[slot];
  block.older = pending.newest;
  block.newer = 0;
  if (pending.newest == 0) {
    pending.oldest = id;
    pool.pending_slots.push_back(slot);
  } else {
    block.free_mark = std::max(block.free_mark, blocks[pending.newest].free_mark);
    blocks[pending.newest].newer = id;
  }
  pending.newest = id;
}

void UnlinkPending(MemoryPool& pool, std::uint32_t id) {
  Block* blocks = pool.source.blocks();
  const Block& block = blocks[id];
  PendingBlocks& pending = PendingOf(pool, block.free_mark);
  (block.older == 0 ? pending.oldest : blocks[block.older].newer) = block.newer;
  (block.newer == 0 ? pending.newest : blocks[block.newer].older) = block.older;
  if (pending.oldest != 0) return;
  auto slot = std::find(pool.pending_slots.begin(), pool.pending_slots.end(), MarkSlot(block.free_mark));
  *slot = pool.pending_slots.back();
  pool.pending_slots.pop_back();
}

// Takes a free block out of its index, and out of the other lists that may contain it.
void Detach(MemoryPool& pool, std::uint32_t id) {
  const Block& block = pool.source.blocks()[id];
  IndexOf(pool, block).Remove(pool.source.blocks(), id);
  if (block.free_mark != 0) {
    UnlinkPending(pool, id);
    return;
  }
  Segment& segment = *pool.segments[block.segment];
  if (segment.is_empty) UnlinkEmpty(pool, segment);
}

bool IsSameKind(const Block& block, Mark mark) { return block.state == BlockState::kFree && MarkSlot(block.free_mark) == MarkSlot(mark); }

// Makes a block free, for its stream if it has a mark, and merges it with its neighbours.
void Place(MemoryPool& pool, std::uint32_t id, Mark mark) {
  Block* blocks = pool.source.blocks();
  blocks[id].state = BlockState::kFree;
  std::uint32_t next = blocks[id].next;
  if (next != 0 && IsSameKind(blocks[next], mark)) {
    mark = std::max(mark, blocks[next].free_mark);
    Detach(pool, next);
    AbsorbNext(blocks, id);
    pool.source.Give(next);
  }
  std::uint32_t previous = blocks[id].previous;
  if (previous != 0 && IsSameKind(blocks[previous], mark)) {
    mark = std::max(mark, blocks[previous].free_mark);
    Detach(pool, previous);
    AbsorbNext(blocks, previous);
    pool.source.Give(id);
    id = previous;
  }
  Block& block = blocks[id];
  block.free_mark = mark;
  if (mark != 0) {
    AppendPending(pool, id);
  } else {
    Segment& segment = *pool.segments[block.segment];
    if (block.size == segment.size) LinkEmpty(pool, segment, id);
  }
  IndexOf(pool, block).Insert(blocks, id);
}

// Makes the blocks of one stream general if their frees have happened.
void PromoteReached(MemoryPool& pool, std::uint32_t slot) {
  const Block* blocks = pool.source.blocks();
  const PendingBlocks& pending = *pool.pending[slot];
  while (pending.oldest != 0 && IsReached(blocks[pending.oldest].free_mark)) {
    std::uint32_t id = pending.oldest;
    Detach(pool, id);
    Place(pool, id, 0);
  }
}

void PromoteReached(MemoryPool& pool) {
  // Backwards: a slot that becomes empty is replaced by the last one.
  for (std::size_t i = pool.pending_slots.size(); i-- > 0;) PromoteReached(pool, pool.pending_slots[i]);
}

bool HasPending(const MemoryPool& pool, std::uint32_t slot) {
  return slot < pool.pending.size() && pool.pending[slot] != nullptr && pool.pending[slot]->oldest != 0;
}

std::uint32_t Smaller(const Block* blocks, std::uint32_t a, std::uint32_t b) {
  if (a == 0 || b == 0) return a == 0 ? b : a;
  return blocks[b].size < blocks[a].size ? b : a;
}

// The best block among those freed on another stream that this stream's waits put before it.
std::uint32_t FindAmongWaitedFor(MemoryPool& pool, StreamState& stream, std::uint64_t granules) {
  const Block* blocks = pool.source.blocks();
  std::uint32_t best = 0;
  for (std::uint32_t slot : pool.pending_slots) {
    std::uint64_t count = OrderedAfterCount(stream, slot);
    const PendingBlocks& pending = *pool.pending[slot];
    if (count >= MarkCount(blocks[pending.newest].free_mark)) {
      best = Smaller(blocks, best, pending.index.FindBestFit(blocks, granules));
      continue;
    }
    std::uint32_t id = pending.oldest;
    for (int looked_at = 0; looked_at < kMaxPartialSearch && id != 0; ++looked_at, id = blocks[id].newer) {
      if (MarkCount(blocks[id].free_mark) > count) break;
      if (blocks[id].size >= granules) best = Smaller(blocks, best, id);
    }
  }
  return best;
}

// A block that needs no new memory and no new dependency, or 0.
std::uint32_t FindFree(MemoryPool& pool, StreamState& stream, std::uint64_t granules) {
  const Block* blocks = pool.source.blocks();
  std::uint32_t own = HasPending(pool, stream.index) ? pool.pending[stream.index]->index.FindBestFit(blocks, granules) : 0;
  std::uint32_t found = Smaller(blocks, own, pool.general.FindBestFit(blocks, granules));
  if (found != 0 || pool.pending_slots.empty()) return found;
  if (pool.follows_events) found = FindAmongWaitedFor(pool, stream, granules);
  if (found != 0 || !pool.is_opportunistic) return found;
  PromoteReached(pool);
  return pool.general.FindBestFit(blocks, granules);
}

// The best block that is free in the order of any stream, or 0.
std::uint32_t FindPending(const MemoryPool& pool, std::uint64_t granules) {
  const Block* blocks = pool.source.blocks();
  std::uint32_t best = 0;
  for (std::uint32_t slot : pool.pending_slots) best = Smaller(blocks, best, pool.pending[slot]->index.FindBestFit(blocks, granules));
  return best;
}

// Reserves a segment that holds a block of this size; false if the device or the pool's limit does
// not allow it.
bool Grow(MemoryPool& pool, std::uint64_t granules) {
  std::uint64_t bytes = SegmentBytes(granules);
  if (pool.max_bytes != 0 && bytes > pool.max_bytes - std::min(pool.reserved, pool.max_bytes)) return false;
  auto segment = std::make_unique<Segment>();
  if (!segment->used_starts.Allocate(bytes / kGranule)) return false;
  if (pool.free_segment_indexes.empty()) {
    pool.free_segment_indexes.push_back(static_cast<std::uint32_t>(pool.segments.size()));
    pool.segments.emplace_back();
  }
  segment->index = pool.free_segment_indexes.back();
  std::uint32_t id = pool.source.Take();
  if (id == 0) return false;
  const bool is_of_host = pool.kind != PoolKind::kDevice;
  const bool has_host_memory = !is_of_host || ChargeHostMemory(bytes);
  if (!has_host_memory ||
      pool.device->memory.AllocateSegment(bytes, {pool.index, segment->index}, is_of_host, &segment->device_block) != kSuccess) {
    if (is_of_host && has_host_memory) RefundHostMemory(bytes);
    pool.source.Give(id);
    return false;
  }
  if (pool.is_exportable && pool.device->memory.ShareSegment(segment->device_block) != kSuccess) {
    pool.device->memory.FreeSegment(segment->device_block, false);
    pool.source.Give(id);
    return false;
  }
  pool.free_segment_indexes.pop_back();
  const Block& reserved = pool.device->memory.blocks()[segment->device_block];
  segment->start = reserved.start;
  segment->size = reserved.size;
  if (pool.kind == PoolKind::kManaged) AddManagedRange(pool.device->memory.AddressOf(segment->start), bytes);
  Block& block = pool.source.blocks()[id];
  block.start = segment->start;
  block.size = segment->size;
  block.previous = 0;
  block.next = 0;
  block.segment = segment->index;
  pool.segments[segment->index] = std::move(segment);
  pool.reserved += bytes;
  pool.reserved_high = std::max(pool.reserved_high, pool.reserved);
  Place(pool, id, 0);
  return true;
}

// Turns the front of a free block into an allocation; 0 if block records have run out.
std::uint64_t Use(MemoryPool& pool, std::uint32_t id, std::uint64_t granules) {
  Block* blocks = pool.source.blocks();
  std::uint32_t used = id;
  if (blocks[id].size > granules) {
    used = pool.source.Take();
    if (used == 0) return 0;
    FreeIndex& index = IndexOf(pool, blocks[id]);
    index.Remove(blocks, id);
    CutFront(blocks, id, used, granules);
    index.Insert(blocks, id);
    // The rest keeps its place among its stream's frees, except that the segment is no longer
    // empty.
    Segment& segment = *pool.segments[blocks[id].segment];
    if (segment.is_empty) UnlinkEmpty(pool, segment);
  } else {
    Detach(pool, id);
  }
  Block& block = blocks[used];
  block.state = BlockState::kUsed;
  block.owner.store(pool.index, std::memory_order_relaxed);
  pool.device->memory.StartingAt(block.start).store(used, std::memory_order_release);
  const Segment& segment = *pool.segments[block.segment];
  pool.segments[block.segment]->used_starts.Set(block.start - segment.start);
  pool.used += granules * kGranule;
  pool.used_high = std::max(pool.used_high, pool.used);
  return pool.device->memory.AddressOf(block.start);
}

// Takes empty segments out of the pool, as long as it keeps `bytes_to_keep`; the caller gives them
// to the device, without the pool's lock.
void TakeEmptySegments(MemoryPool& pool, std::uint64_t bytes_to_keep, std::vector<std::unique_ptr<Segment>>* taken) {
  while (pool.first_empty != nullptr && pool.reserved > bytes_to_keep) {
    Segment& segment = *pool.first_empty;
    std::uint64_t bytes = segment.size * kGranule;
    Detach(pool, segment.empty_block);
    pool.source.Give(segment.empty_block);
    pool.reserved -= bytes;
    pool.free_segment_indexes.push_back(segment.index);
    taken->push_back(std::move(pool.segments[segment.index]));
  }
}

bool GiveBack(Device& device, PoolKind kind, const std::vector<std::unique_ptr<Segment>>& segments) {
  for (const auto& segment : segments) {
    if (kind == PoolKind::kManaged) RemoveManagedRange(device.memory.AddressOf(segment->start));
    if (kind != PoolKind::kDevice) RefundHostMemory(segment->size * kGranule);
    device.memory.FreeSegment(segment->device_block, segment->is_touched);
  }
  return !segments.empty();
}

// With `may_wait`, also from memory that the stream has to wait for.
Status TryToAllocate(MemoryPool& pool, StreamState& stream, std::uint64_t granules, bool may_wait, std::uint64_t* address) {
  std::lock_guard<SpinLock> guard(pool.lock);
  std::uint32_t id = FindFree(pool, stream, granules);
  if (id == 0 && Grow(pool, granules)) id = pool.general.FindBestFit(pool.source.blocks(), granules);
  if (id == 0 && may_wait && pool.inserts_dependencies) {
    id = FindPending(pool, granules);
    if (id != 0) {
      Status status = SubmitWait(stream, pool.source.blocks()[id].free_mark);
      if (status != kSuccess) return status;
    }
  }
  if (id == 0) return kErrorOutOfMemory;
  *address = Use(pool, id, granules);
  return *address != 0 ? kSuccess : kErrorOutOfMemory;
}

// Ends a pool that no longer holds anything. The device's pools_mutex and the pool's lock must be
// held.
void Finish(MemoryPool& pool) {
  pool.source.GiveAllBack();
  pool.general = FreeIndex();
  pool.pending.clear();
  pool.segments.clear();
  pool.free_segment_indexes.clear();
  Device& device = *pool.device;
  device.pools.erase(std::find(device.pools.begin(), device.pools.end(), &pool));
  device.pool_count.fetch_sub(1, std::memory_order_relaxed);
}

}  // namespace

Status CreatePool(Device& device, std::uint64_t max_bytes, PoolKind kind, bool is_exportable, MemoryPool** pool) {
  MemoryPool* state = pool_table.Take();
  if (state == nullptr) return kErrorOutOfMemory;
  std::lock_guard<std::mutex> device_guard(device.pools_mutex);
  {
    std::lock_guard<SpinLock> guard(state->lock);
    state->device = &device;
    state->kind = kind;
    state->is_exportable = is_exportable;
    state->follows_events = true;
    state->is_opportunistic = true;
    state->inserts_dependencies = true;
    state->is_closing = false;
    state->accessors = 0;
    state->release_threshold = 0;
    state->max_bytes = max_bytes;
    state->reserved = 0;
    state->reserved_high = 0;
    state->used = 0;
    state->used_high = 0;
    state->source.Attach(device.memory.block_table());
  }
  device.pools.push_back(state);
  device.pool_count.fetch_add(1, std::memory_order_relaxed);
  pool_table.Publish(*state);
  *pool = state;
  return kSuccess;
}

Status DefaultPool(Device& device, MemoryPool** pool) {
  std::lock_guard<std::mutex> guard(device.default_pool_mutex);
  Status status = kSuccess;
  if (device.default_pool == nullptr) status = CreatePool(device, 0, PoolKind::kDevice, false, &device.default_pool);
  *pool = device.default_pool;
  return status;
}

Status CurrentPool(Device& device, MemoryPool** pool) {
  {
    std::lock_guard<std::mutex> guard(device.default_pool_mutex);
    *pool = device.current_pool;
  }
  return *pool != nullptr ? kSuccess : DefaultPool(device, pool);
}

Status SetCurrentPool(Device& device, MemoryPool& pool) {
  if (pool.device != &device || pool.kind != PoolKind::kDevice) return kErrorInvalidValue;
  std::lock_guard<std::mutex> guard(device.default_pool_mutex);
  device.current_pool = &pool;
  return kSuccess;
}

Status DestroyPool(MemoryPool& pool, std::uint64_t handle) {
  {
    Device& device = *pool.device;
    std::lock_guard<std::mutex> guard(device.default_pool_mutex);
    if (device.default_pool == &pool) return kErrorInvalidValue;
    if (device.current_pool == &pool) device.current_pool = nullptr;
  }
  if (!PoolTable::Close(pool, handle)) return kErrorInvalidValue;
  Device& device = *pool.device;
  {
    std::lock_guard<SpinLock> guard(pool.lock);
    pool.is_closing = true;
  }
  ReclaimPools(device, Reclaim::kAboveThreshold);
  return kSuccess;
}

Status TrimPool(MemoryPool& pool, std::uint64_t bytes_to_keep) {
  // As CUDA does: such pools give nothing back.
  if (pool.is_exportable) return kSuccess;
  std::vector<std::unique_ptr<Segment>> released;
  {
    std::lock_guard<SpinLock> guard(pool.lock);
    PromoteReached(pool);
    TakeEmptySegments(pool, bytes_to_keep, &released);
  }
  GiveBack(*pool.device, pool.kind, released);
  return kSuccess;
}

Status SetPoolAccess(MemoryPool& pool, const AccessDescription& access) {
  if (pool.kind == PoolKind::kManaged || access.location.type != kLocationDevice) return kErrorInvalidValue;
  const int device = access.location.id;
  if (FindDevice(device) == nullptr) return kErrorInvalidDevice;
  if (access.flags == kAccessRead) return kErrorNotSupported;
  const bool has_access = access.flags == kAccessReadWrite;
  if (!has_access && access.flags != kAccessNone) return kErrorInvalidValue;
  // A device always has access to its own pools, and can be given access to the host's.
  if (pool.kind == PoolKind::kDevice) {
    if (device == pool.device->ordinal) return has_access ? kSuccess : Status{kErrorInvalidValue};
    if (has_access && !CanReach(device, pool.device->ordinal)) return kErrorInvalidDevice;
  }
  std::lock_guard<SpinLock> guard(pool.lock);
  pool.accessors = has_access ? pool.accessors | 1U << device : pool.accessors & ~(1U << device);
  return kSuccess;
}

Status SetPoolAttribute(MemoryPool& pool, int attribute, const void* value) {
  std::lock_guard<SpinLock> guard(pool.lock);
  switch (attribute) {
    case kPoolReuseFollowEventDependencies:
      pool.follows_events = *static_cast<const int*>(value) != 0;
      return kSuccess;
    case kPoolReuseAllowOpportunistic:
      pool.is_opportunistic = *static_cast<const int*>(value) != 0;
      return kSuccess;
    case kPoolReuseAllowInternalDependencies:
      pool.inserts_dependencies = *static_cast<const int*>(value) != 0;
      return kSuccess;
    case kPoolReleaseThreshold:
      pool.release_threshold = *static_cast<const std::uint64_t*>(value);
      return kSuccess;
    case kPoolReservedHigh:
    case kPoolUsedHigh:
      if (*static_cast<const std::uint64_t*>(value) != 0) return kErrorInvalidValue;
      (attribute == kPoolUsedHigh ? pool.used_high : pool.reserved_high) = attribute == kPoolUsedHigh ? pool.used : pool.reserved;
      return kSuccess;
    default:
      return kErrorInvalidValue;
  }
}

Status GetPoolAttribute(MemoryPool& pool, int attribute, void* value) {
  std::lock_guard<SpinLock> guard(pool.lock);
  int* flag = static_cast<int*>(value);
  std::uint64_t* bytes = static_cast<std::uint64_t*>(value);
  switch (attribute) {
    case kPoolReuseFollowEventDependencies:
      *flag = pool.follows_events;
      return kSuccess;
    case kPoolReuseAllowOpportunistic:
      *flag = pool.is_opportunistic;
      return kSuccess;
    case kPoolReuseAllowInternalDependencies:
      *flag = pool.inserts_dependencies;
      return kSuccess;
    case kPoolReleaseThreshold:
      *bytes = pool.release_threshold;
      return kSuccess;
    case kPoolReservedCurrent:
      *bytes = pool.reserved;
      return kSuccess;
    case kPoolReservedHigh:
      *bytes = pool.reserved_high;
      return kSuccess;
    case kPoolUsedCurrent:
      *bytes = pool.used;
      return kSuccess;
    case kPoolUsedHigh:
      *bytes = pool.used_high;
      return kSuccess;
    default:
      return kErrorInvalidValue;
  }
}

Status AllocateFromPool(MemoryPool& pool, StreamState& stream, std::uint64_t bytes, std::uint64_t* address) {
  if (bytes > kMaxTotalBytes) return kErrorOutOfMemory;
  std::uint64_t granules = Granules(bytes);
  Status status = TryToAllocate(pool, stream, granules, false, address);
  if (status != kErrorOutOfMemory) return status;
  ReclaimPools(*pool.device, Reclaim::kAll);
  RoomInMemory room(*pool.device, SegmentBytes(granules));
  while (status == kErrorOutOfMemory && pool.kind == PoolKind::kDevice && room.Make())
    status = TryToAllocate(pool, stream, granules, false, address);
  return status == kErrorOutOfMemory ? TryToAllocate(pool, stream, granules, true, address) : status;
}

bool StartsPoolAllocation(Device& device, std::uint64_t address) {
  if (address % kGranule != 0) return false;
  std::uint32_t id = device.memory.StartingAt(device.memory.GranuleOf(address)).load(std::memory_order_acquire);
  return id != 0 && device.memory.blocks()[id].owner.load(std::memory_order_relaxed) != 0;
}

Status FreeToPool(Device& device, std::uint64_t address, StreamState* stream) {
  if (address % kGranule != 0) return kErrorInvalidValue;
  std::uint64_t granule = device.memory.GranuleOf(address);
  std::uint32_t id = device.memory.StartingAt(granule).load(std::memory_order_acquire);
  if (id == 0) return kErrorInvalidValue;
  Block& block = device.memory.blocks()[id];
  std::uint32_t owner = block.owner.load(std::memory_order_relaxed);
  if (owner == 0) return kErrorInvalidValue;
  Mark mark = 0;
  if (stream != nullptr) {
    Status status = OrderWithLegacy(*stream);
    if (status != kSuccess) return status;
    mark = CurrentMark(*stream);
  }
  MemoryPool& pool = pool_table.At(owner);
  bool is_closing;
  {
    std::lock_guard<SpinLock> guard(pool.lock);
    // Another thread may have freed it since.
    if (device.memory.StartingAt(granule).load(std::memory_order_relaxed) != id || block.owner.load(std::memory_order_relaxed) != owner) {
      return kErrorInvalidValue;
    }
    if (mark != 0 && pool.is_opportunistic && IsReached(mark)) {
      // Older frees on the stream have happened too; if they become general here, they can merge.
      if (HasPending(pool, MarkSlot(mark))) PromoteReached(pool, MarkSlot(mark));
      mark = 0;
    }
    device.memory.StartingAt(granule).store(0, std::memory_order_relaxed);
    Segment& segment = *pool.segments[block.segment];
    segment.used_starts.Clear(block.start - segment.start);
    pool.used -= block.size * kGranule;
    Place(pool, id, mark);
    is_closing = pool.is_closing;
  }
  if (is_closing) ReclaimPools(device, Reclaim::kAboveThreshold);
  return kSuccess;
}

bool IsWithinPoolAllocation(Device& device, SegmentName name, std::uint64_t address, std::uint64_t bytes, bool will_write,
                            PoolMemoryInfo* info) {
  MemoryPool& pool = pool_table.At(name.pool);
  std::uint64_t granule = device.memory.GranuleOf(address);
  std::lock_guard<SpinLock> guard(pool.lock);
  // The segment may have gone since the caller got its name.
  if (pool.device != &device || name.index >= pool.segments.size() || pool.segments[name.index] == nullptr) return false;
  Segment& segment = *pool.segments[name.index];
  if (granule - segment.start >= segment.size) return false;
  std::uint64_t start = segment.used_starts.FindAtOrBelow(granule - segment.start);
  if (start == BitTree::kNone) return false;
  const Block& block = device.memory.blocks()[device.memory.StartingAt(segment.start + start).load(std::memory_order_relaxed)];
  std::uint64_t end = device.memory.AddressOf(block.start + block.size);
  if (address >= end || bytes > end - address) return false;
  if (will_write) segment.is_touched = true;
  *info = {pool.kind, pool.kind == PoolKind::kPinned ? pool.accessors : pool.accessors | 1U << device.ordinal};
  return true;
}

bool FindPoolAllocation(Device& device, std::uint64_t address, PoolAllocation* allocation) {
  AddressInfo info;
  if (!device.memory.Describe(address, 1, false, &info) || !info.is_segment) return false;
  MemoryPool& pool = pool_table.At(info.segment.pool);
  const std::uint64_t granule = device.memory.GranuleOf(address);
  std::lock_guard<SpinLock> guard(pool.lock);
  if (pool.device != &device || info.segment.index >= pool.segments.size() || pool.segments[info.segment.index] == nullptr) return false;
  const Segment& segment = *pool.segments[info.segment.index];
  if (granule - segment.start >= segment.size) return false;
  const std::uint64_t start = segment.used_starts.FindAtOrBelow(granule - segment.start);
  if (start == BitTree::kNone) return false;
  const Block& block = device.memory.blocks()[device.memory.StartingAt(segment.start + start).load(std::memory_order_relaxed)];
  *allocation = {&pool, device.memory.AddressOf(block.start), block.size * kGranule};
  return address - allocation->start < allocation->bytes;
}

bool ReclaimPools(Device& device, Reclaim what) {
  if (device.pool_count.load(std::memory_order_relaxed) == 0) return false;
  bool has_released = false;
  std::lock_guard<std::mutex> device_guard(device.pools_mutex);
  for (std::size_t i = device.pools.size(); i-- > 0;) {
    MemoryPool& pool = *device.pools[i];
    std::vector<std::unique_ptr<Segment>> released;
    bool is_finished = false;
    const PoolKind kind = pool.kind;
    {
      std::lock_guard<SpinLock> guard(pool.lock);
      std::uint64_t keep = what == Reclaim::kAll ? 0 : pool.release_threshold;
      if (pool.is_exportable) keep = pool.reserved;
      if (pool.is_closing) keep = 0;
      if (pool.reserved > keep) {
        PromoteReached(pool);
        TakeEmptySegments(pool, keep, &released);
      }
      is_finished = pool.is_closing && pool.reserved == 0;
      if (is_finished) Finish(pool);
    }
    has_released |= GiveBack(device, kind, released);
    if (is_finished) pool_table.Recycle(pool);
  }
  return has_released;
}

}  // namespace cistern::software
