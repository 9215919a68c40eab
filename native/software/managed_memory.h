// Managed memory: the advice about it, and where its pages are.
//
// A range is divided into pages of 2 MiB; the last one may be shorter. A page is at no place before
// its first use, then at the host or a device, and at several places if it is read-mostly and was
// read from them. The bytes themselves never move, since the software device shares the host's
// memory; what moves is the account of them: a page at a device counts against that device's
// total, and a full device gives up the page that was used longest ago.
//
//     range       [ page 0: host | page 1: device 0 | page 2: host, device 0, device 1 | nowhere ]
//     uses of device 0    page 1 <-> page 2       from the page used longest ago to the latest
//
// Pages change places when an operation runs on its stream, not when it is queued. Advice takes
// effect at once, as in CUDA. It is kept per page of 4 KiB as runs of equal pages; a page of 2 MiB
// follows the advice for the first byte that an access uses in it.
//
//     runs (start)        0: {device 0}       10: {host}      64: {}
//
// An access from a processor, if the page is
//   1. there: needs nothing; a write ends the copies elsewhere
//   2. nowhere: the page begins at the processor, or at its preferred place if the processor can map that
//   3. read-mostly, and the access reads: a copy is made
//   4. at its preferred place, or advised as accessed by the processor, and can be mapped: stays; in
//      the first case, the first access since the page moved is a fault
//   5. anything else: moves to the processor
// A device can map the host's memory and that of other devices; the host can map only its own. If
// nothing can be evicted to make room on a device, the page stays, or begins at the host, and is
// mapped.
//
// Moves are noted while somebody asks for them (BeginManagedMoves): each arrival of a page, with the
// reason and the stream, and each departure. A fault that moves nothing is noted as a departure and an
// arrival at the place where the page is. The notes wait in order until they are taken. If they
// are not taken as fast as pages move, there is a most (kMostNotes): further moves are counted and
// otherwise lost. When the notes that wait are taken, all pages are listed anew:
//
//     moves     a b c d e f g h
//     notes     a b c     lost(5), pages that left and pages that are present, at the time of h
//
// The same happens if memory is exhausted, since a stream's thread could report that to nobody.
//
// Invariants: the first run starts at page 0; neighbouring runs may be equal (a query folds them),
// none is empty; a page is among a device's uses if and only if it is there, and then its bytes
// are charged to the device's memory. According to all notes in order, a page is where its `noted`
// says, which is where it is unless moves are lost.
// Cost: O(log r) to find a range among r, O(runs touched) to advise or query, O(1) for each page
// touched or moved.
#ifndef CISTERN_SOFTWARE_MANAGED_MEMORY_H_
#define CISTERN_SOFTWARE_MANAGED_MEMORY_H_

#include <cstddef>
#include <cstdint>

#include "cuda/driver_table.h"
#include "software/software_device.h"

namespace cistern::software {

class Device;

void AddManagedRange(std::uint64_t address, std::uint64_t bytes);
void RemoveManagedRange(std::uint64_t address);

Status AdviseManaged(std::uint64_t address, std::uint64_t bytes, int advice, MemLocation location);
// kErrorInvalidValue unless the range is managed memory and the location exists.
Status NotePrefetch(std::uint64_t address, std::uint64_t bytes, MemLocation location);
Status QueryManaged(void* data, std::size_t data_size, int attribute, std::uint64_t address, std::uint64_t bytes);

// The stream whose work uses pages, as ManagedMove names it.
struct PageUser {
  int device = 0;
  std::uint64_t stream = 0;
};

// A processor is a device's ordinal, or kHostPlace. These run when the operation itself does; memory
// that is not managed is left alone. Each takes as long as the pages that it moves cost.
inline constexpr int kHostPlace = -1;
void AccessManaged(int processor, std::uint64_t address, std::uint64_t bytes, bool is_write, PageUser user);
void MoveManaged(int destination, std::uint64_t address, std::uint64_t bytes, PageUser user);

// Room in a device's memory for an allocation that failed. What it costs to move the pages is spent
// when this ends, after the allocation: meanwhile, other streams would bring pages to the room.
class RoomInMemory {
 public:
  RoomInMemory(Device& device, std::uint64_t bytes) : device_(device), bytes_(bytes) {}
  ~RoomInMemory();
  RoomInMemory(const RoomInMemory&) = delete;
  RoomInMemory& operator=(const RoomInMemory&) = delete;

  // Moves pages off the device until the bytes fit. False if there is no reason to allocate again: no
  // page was moved and, the last time too, nothing else made room.
  bool Make();

 private:
  Device& device_;
  const std::uint64_t bytes_;
  std::uint64_t moved_pages_ = 0;
  bool may_have_room_ = true;
};

}  // namespace cistern::software

#endif  // CISTERN_SOFTWARE_MANAGED_MEMORY_H_
