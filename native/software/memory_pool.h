// Stream-ordered memory pools.
//
// Structure: a pool reserves segments, multiples of 2 MiB, from its device's memory (device_memory.h). Blocks tile a segment:
//
//     segment      | used | free | used | freed on A, 7 | used |  freed on B, 3  | free |
//     indexes               general        pending[A]            pending[B]        general
//
// A free block without a mark may go to any stream. One with a mark was freed on a stream that was
// then busy, and may go
//   1. to that stream at once, whose order protects it;
//   2. to anyone once the mark has been reached           (reuse flag "opportunistic")
//   3. to a stream that has waited for a later mark        (reuse flag "follow event dependencies")
//   4. to any stream, which is made to wait for the mark   (reuse flag "internal dependencies"), when the device has no more to reserve.
// Blocks merge with free neighbours of the same kind: both general, or both of one stream (then the later mark counts).
//
// Invariants: Σ used blocks = used; Σ segments = reserved; within one stream's pending blocks,
// oldest to newest, marks do not descend; two free neighbours are never of the same kind; a segment
// is in the list of empty ones if and only if one general block fills it.
// Cost: allocation and free O(1) below 64 KiB, else O(log n) for n free blocks, and O(s) for s
// streams with pending blocks if neither the stream's own nor general blocks serve; making a mark's
// blocks general costs once per free.
#ifndef CISTERN_SOFTWARE_MEMORY_POOL_H_
#define CISTERN_SOFTWARE_MEMORY_POOL_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "cuda/driver_table.h"
#include "software/bit_tree.h"
#include "software/block.h"
#include "software/device_memory.h"
#include "software/free_index.h"
#include "software/handle_table.h"
#include "software/spin_lock.h"
#include "software/stream.h"

namespace cistern::software {

class Device;

// What a pool's segments are. Those of managed and of pinned memory take no memory of the device, only addresses.
enum class PoolKind { kDevice, kManaged, kPinned };

struct Segment {
  std::uint32_t device_block = 0;  // in the device's memory
  std::uint32_t index = 0;         // in the pool
  std::uint64_t start = 0;         // in granules
  std::uint64_t size = 0;          // in granules
  bool is_touched = false;
  bool is_empty = false;
  std::uint32_t empty_block = 0;  // the block that fills it, while it is empty
  Segment* previous_empty = nullptr;
  Segment* next_empty = nullptr;
  BitTree used_starts;  // relative to start
};

// Blocks freed on one stream whose frees are not known to have happened.
struct PendingBlocks {
  FreeIndex index;
  std::uint32_t oldest = 0;
  std::uint32_t newest = 0;
};

struct alignas(64) MemoryPool : HandleSlot {
  SpinLock lock;  // guards all below
  Device* device = nullptr;
  PoolKind kind = PoolKind::kDevice;
  bool is_exportable = false;  // its segments are shared pages
  bool follows_events = true;
  bool is_opportunistic = true;
  bool inserts_dependencies = true;
  bool is_closing = false;
  std::uint32_t accessors = 0;  // a bit for each device that was given access, which a pool's own needs only for pinned memory
  std::uint64_t release_threshold = 0;
  std::uint64_t max_bytes = 0;  // 0: no limit
  std::uint64_t reserved = 0;
  std::uint64_t reserved_high = 0;
  std::uint64_t used = 0;
  std::uint64_t used_high = 0;
  BlockSource source;
  FreeIndex general;
  std::vector<std::unique_ptr<PendingBlocks>> pending;  // by stream slot
  std::vector<std::uint32_t> pending_slots;             // those that are not empty
  std::vector<std::unique_ptr<Segment>> segments;       // by index
  std::vector<std::uint32_t> free_segment_indexes;
  Segment* first_empty = nullptr;
};

using PoolTable = HandleTable<MemoryPool, HandleKind::kPool>;
inline PoolTable pool_table;

Status CreatePool(Device& device, std::uint64_t max_bytes, PoolKind kind, bool is_exportable, MemoryPool** pool);
// The pool that the device has by itself, and that cannot be destroyed.
Status DefaultPool(Device& device, MemoryPool** pool);
// The pool that cuMemAllocAsync takes memory from: the default pool, unless another one was set.
Status CurrentPool(Device& device, MemoryPool** pool);
Status SetCurrentPool(Device& device, MemoryPool& pool);
// Allocations from the pool stay valid until they are freed; the pool ends with the last of them.
Status DestroyPool(MemoryPool& pool, std::uint64_t handle);
Status TrimPool(MemoryPool& pool, std::uint64_t bytes_to_keep);
// Whether another device has access to what is allocated from the pool, now and later.
Status SetPoolAccess(MemoryPool& pool, const AccessDescription& access);
Status SetPoolAttribute(MemoryPool& pool, int attribute, const void* value);
Status GetPoolAttribute(MemoryPool& pool, int attribute, void* value);

Status AllocateFromPool(MemoryPool& pool, StreamState& stream, std::uint64_t bytes, std::uint64_t* address);
// Whether an allocation of some pool starts at the address.
bool StartsPoolAllocation(Device& device, std::uint64_t address);
// Frees in the order of the stream, or at once if it is null. kErrorInvalidValue if no pool
// allocation starts at the address.
Status FreeToPool(Device& device, std::uint64_t address, StreamState* stream);
// What is known of pool memory.
struct PoolMemoryInfo {
  PoolKind kind;
  std::uint32_t accessors;  // a bit for each device with access
};
// Whether the range lies within one allocation in the segment; if so, *info says what it is.
bool IsWithinPoolAllocation(Device& device, SegmentName name, std::uint64_t address, std::uint64_t bytes, bool will_write,
                            PoolMemoryInfo* info);

struct PoolAllocation {
  MemoryPool* pool;
  std::uint64_t start;
  std::uint64_t bytes;
};
// False if the address is in no allocation of a pool.
bool FindPoolAllocation(Device& device, std::uint64_t address, PoolAllocation* allocation);

// Gives empty segments whose frees have happened back to the device: those above the pools' release
// thresholds, or all. False if there were none.
enum class Reclaim { kAboveThreshold, kAll };
bool ReclaimPools(Device& device, Reclaim what);

}  // namespace cistern::software

#endif  // CISTERN_SOFTWARE_MEMORY_POOL_H_
