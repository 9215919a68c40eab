// The software device: an implementation of the driver table over host memory and threads.
#ifndef CISTERN_SOFTWARE_SOFTWARE_DEVICE_H_
#define CISTERN_SOFTWARE_SOFTWARE_DEVICE_H_

#include <cstddef>
#include <cstdint>

#include "cuda/driver_table.h"

namespace cistern::software {

// The table. It can be called from any thread at any time, even before Configure (defaults apply
// then).
const DriverTable& Table();

// Sets the memory of every software device, in bytes, and the number of devices (1 to 8). The first
// cuInit fixes the number of devices; later calls may only repeat it. The memory may change at any
// time, but not below what is in use. Zero leaves a value unchanged; the first values are half of the
// machine's memory, and one device. Returns kErrorInvalidValue for a value out of range and
// kErrorNotPermitted for a change that comes too late; the state is then unchanged.
Status Configure(std::uint64_t total_bytes, int device_count);

// See is_strict in settings.h. May change at any time; initially false.
void SetStrict(bool strict);

// Whether plain frees and unmappings wait for the work that may use the memory. May change at any
// time; initially true.
void SetFreesWait(bool waits);

// Every later call of this function takes at least this long on the calling thread. Zero removes
// the latency.
void SetLatency(Call call, std::uint64_t nanoseconds);

// The nth call of this function from now on (1 is the next) returns `status` and does nothing else.
// Zero removes the failure. Returns whether an earlier failure was still pending; that one is
// cancelled.
bool FailCall(Call call, std::uint64_t nth, Status status);

// After the pending failure of `first` has happened, the nth call of a second function, which may
// be the same, fails. FailCall of `first` cancels it.
void FailCallAfter(Call first, Call call, std::uint64_t nth, Status status);

// How many streams there are that were created and not destroyed, on all devices.
int LiveStreams();

// Whether the devices have concurrent managed access: without it they cannot prefetch, and take no
// advice that names them. May change at any time; initially true.
void SetConcurrentManagedAccess(bool has_access);

// Whether the host and the devices are coherent, as on Grace Hopper: the devices use the host's page
// tables, so that ordinary host memory can be prefetched and advised, and the host maps managed memory
// that is at a device. May change at any time; initially false.
void SetCoherent(bool is_coherent);

// Whether a device reads and writes pageable memory itself, in stream order, as with heterogeneous memory management (HMM) and on
// coherent devices: a copy then returns before it has read or written that memory. May change at any time; initially false.
void SetPageableAccess(bool has_access);

// Which devices can be given access to each other's memory; see SetReachablePeers in settings.h. May
// change at any time, and takes no access away; initially all can. False if the text is malformed.
bool SetPeers(const char* text);

// Every operation takes at least this long for each page of managed memory that it moves. Initially 0.
void SetMigrationCost(std::uint64_t nanoseconds);

// What happened to managed memory at one place since the start, or since the last reset.
struct ManagedActivity {
  std::uint64_t resident_bytes;  // now
  std::uint64_t peak_resident_bytes;
  std::uint64_t bytes_from_host;  // copied to this place
  std::uint64_t bytes_from_devices;
  std::uint64_t evicted_bytes;  // copied from this device to the host to make room
  std::uint64_t remote_bytes;   // used from here while at another place
  std::uint64_t faults;         // accesses from here, by page, that found the page elsewhere and not mapped
  std::uint64_t evictions;      // pages that this device gave up to make room, copied or not
  std::uint64_t thrashes;       // faults that brought a page back to this place, which it had left last
};
// A place is a device's ordinal, or -1 for the host.
ManagedActivity ActivityAt(int place);
void ResetManagedActivity();

// Why a page of managed memory is at a place.
enum class MoveReason {
  kLeft,           // it no longer is
  kPresent,        // it was when the noting began, or came there by moves that were lost
  kFirstUse,       // a fault, and the page was nowhere
  kFault,          // of a device
  kThrash,         // a fault that brought the page back to the place that it had left last
  kHostView,       // a fault of the host
  kFirstPrefetch,  // the page was nowhere
  kPrefetch,
  kEviction,
  kUnmoved,  // a fault that left the page where it is: it left that place and came there again
  kLost,     // no page: `bytes` is the number of moves that were lost since the note before
};

// A page that came to a place, or left one.
struct ManagedMove {
  std::uint64_t nanoseconds;  // since the noting began
  std::uint64_t address;
  std::uint64_t bytes;
  int place;
  MoveReason reason;
  int device;            // the stream's
  std::uint64_t stream;  // whose work caused it: a handle, or 1 and 2 for default streams; 0: no stream's
};

// So many notes can wait. Further moves are lost until these are taken; then the notes go on with
// kLost, and what is needed for them to say again where each page is.
inline constexpr std::size_t kMostNotes = std::size_t{1} << 20;

// Notes moves from now on, after a note for each page that is somewhere already. *pending is 1 while
// there are notes to take, and must stay valid until the noting ends; it also identifies the caller.
// False if moves are being noted for another caller.
bool BeginManagedMoves(std::int32_t* pending);
// Takes the oldest notes, at most `count`, and returns how many.
std::size_t TakeManagedMoves(const std::int32_t* pending, ManagedMove* moves, std::size_t count);
void EndManagedMoves(const std::int32_t* pending);

// How many of these bytes of managed memory are at a place. Copies of read-mostly memory count at
// each place.
std::uint64_t ResidentBytes(std::uint64_t address, std::uint64_t bytes, int place);

// The host is about to read or write managed memory directly, which nothing else would notice.
void AccessFromHost(std::uint64_t address, std::uint64_t bytes, bool is_write);

}  // namespace cistern::software

#endif  // CISTERN_SOFTWARE_SOFTWARE_DEVICE_H_
