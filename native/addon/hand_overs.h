// Memory, streams and events handed over from one environment of the process to others.
//
//     giver                              table of the process                     taker
//     HandOverMemory ── event, message ──► message ── AttachHandOver ──► the taker's stream waits for the event
//                                            │                              │
//     TakeReturned ◄── returned ◄────────────┴──── event ◄───────────── GiveBack
//
// Only the environment that allocated the memory, its home, can free it, because the resource may
// be a pool in JavaScript. So memory that is no longer used is put into a list of the home, with
// the events of its last uses, and the home's event loop is woken. If the home has ended, its
// memory is with the orphans, which are not freed while a hand-over covers them.
//
// A hand-over is live from HandOverMemory until its home has taken it back, or until it is no longer
// used and its home has ended. An open message can be attached. A shared hand-over has any number of
// attachments, of which the first is the sender's own buffer, and its message is open as long as
// that buffer lives. Any other hand-over has either an open message or one attachment.
//
// A stream or an event has no home: its last user destroys it. Unless it is shared, it leaves the
// table when it is attached, and is then like one that the receiver has created.
//
// One mutex guards the table, and no driver is called while it is held.
#ifndef CISTERN_ADDON_HAND_OVERS_H_
#define CISTERN_ADDON_HAND_OVERS_H_

#include <cstdint>
#include <vector>

#include "addon/environment.h"
#include "addon/orphans.h"

namespace cistern {

// The environment ends: its messages can no longer be attached, and the memory that it has attached
// is returned. Returns streams and events that are no longer needed. Does not call the driver.
std::vector<Orphan> EndHandOversOf(const Environment& environment);

// The environment no longer uses a shared stream or event. The last one destroys it.
void EndShare(Environment& environment, const SharedObject& shared);

// Calls JavaScript if memory has been returned. Called by the event loop.
void DeliverReturned(Environment& environment);

// Calls JavaScript if an environment whose memory this one has attached is short of memory. Called
// by the event loop.
void DeliverCollectionRequest(Environment& environment);

// Whether a part of a range is handed over to environments.
bool IsHandedOver(const DriverTable* backend, std::uint64_t address, std::uint64_t bytes);

struct AddressRange {
  std::uint64_t begin;
  std::uint64_t end;
};

// The memory of all live hand-overs, exported tensors and exports to other processes, by address. If one of its parts begins in
// an allocation, it overlaps that.
class HandedOverMemory {
 public:
  explicit HandedOverMemory(const DriverTable* backend);
  bool Overlaps(std::uint64_t address, std::uint64_t bytes) const;

 private:
  std::vector<AddressRange> ranges_;
};

}  // namespace cistern

#endif  // CISTERN_ADDON_HAND_OVERS_H_
