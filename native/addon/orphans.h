// Memory and objects that ended environments left behind, and memory that could not be freed
// immediately because JavaScript stalls a stream.
//
// A worker that ends does not call the driver: its memory, streams, events and pools are put into
// one list of the process. Living environments free them during calls that are slow anyway, or when
// memory runs out. At the end of the process they are not freed; the driver reclaims everything.
#ifndef CISTERN_ADDON_ORPHANS_H_
#define CISTERN_ADDON_ORPHANS_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "addon/address_space.h"
#include "cuda/driver_table.h"

namespace cistern {

namespace arenas {
class ThreadSafeArena;
}

class Environment;
class ImportedTensor;

// In the order in which they are freed.
enum class OrphanKind {
  kEvent,
  kArenaMemory,
  kThreadArena,
  kPoolMemory,
  kPool,
  kMemory,
  kPages,
  kMemoryHandle,
  kAddressSpace,
  kPinnedMemory,
  kRegisteredMemory,
  kHostMemory,
  kStream,
  kTensor,
  kImport,
  kGraphExec,
  kGraph
};

struct Orphan {
  OrphanKind kind;
  int device;
  std::uint64_t address;                          // or the driver's handle
  std::uint64_t bytes = 0;                        // of memory and addresses that another environment may be using; see hand_overs.h
  std::shared_ptr<AddressSpace> space = nullptr;  // of virtual memory
  std::uint64_t environment = 0;                  // the id of the one that left it
  std::shared_ptr<ImportedTensor> tensor = nullptr;
  std::shared_ptr<arenas::ThreadSafeArena> arena = nullptr;
};

// A driver's handle, for an orphan.
template <typename Handle>
std::uint64_t AsAddress(Handle handle) {
  return reinterpret_cast<std::uintptr_t>(handle);
}

// Leaves all of them, or throws std::bad_alloc and leaves none.
void LeaveOrphans(const Environment& environment, std::vector<Orphan> orphans);
// The same for those that another user still had when their environment ended; `environment` is set.
// Any thread.
void LeaveOrphans(const DriverTable* backend, const std::vector<Orphan>& orphans);

// Frees the orphans of the environment's driver, and counts the calls for those that it left itself.
// Waits for the work queued on the devices of the process. While JavaScript stalls a stream that wait
// could last forever, so it then does nothing. If the wait fails, everything stays, and JavaScript is
// told (Environment::NoteWaitToFree). What stays, and what the driver refuses to free, is tried again
// at the next call. Memory of which a part is handed over, or exported as a tensor, stays. True if
// anything was freed.
bool FreeOrphans(Environment& environment);

// How many bytes an ended environment left that are not freed yet, in superblocks of global arenas
// too.
std::uint64_t BytesLeftBy(std::uint64_t environment);

// The bytes of memory and addresses among the orphans of the environment's driver.
std::uint64_t OrphanedBytes(const Environment& environment);

// Tells JavaScript if a wait before orphans are freed has failed. Called on the JavaScript thread.
void DeliverKeptOrphans(Environment& environment);

// Waits for all work queued on the devices that this process uses: on any of them there may be work
// that uses memory filed under another. Returns the first failure.
Status SynchronizeDevices(Environment& environment);

// Waits for other environments that are freeing orphans.
void AwaitFrees();

// Waits for all work queued on the devices of the process. False if JavaScript stalls a stream, so
// that the wait could last forever, or if a device cannot be reached.
bool AwaitDevices(Environment& environment);

}  // namespace cistern

#endif  // CISTERN_ADDON_ORPHANS_H_
