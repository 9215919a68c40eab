// Checks whether an address from JavaScript may be used.
#ifndef CISTERN_ADDON_RANGES_H_
#define CISTERN_ADDON_RANGES_H_

#include <cstdint>

#include "addon/environment.h"

namespace cistern {

// Where a range lies. kDevice includes managed memory; only kPageableHost is unknown to the driver.
enum class Place { kDevice, kPinnedHost, kPageableHost };

struct Location {
  std::uint64_t address;
  Place place;
  int device = -1;  // of memory that belongs to one device, if there are several
};

// kSuccess if the driver knows the first and the last byte of a range, as one piece if it is
// pinned, or if the range lies in host memory of this process's resources; else kInvalidRange. A
// context must be current.
Status CheckRange(Environment& environment, std::uint64_t address, std::uint64_t bytes, Location* location);

// Whether a range is in one piece of memory that this environment has from the driver, so that one copy may have it all.
bool IsOnePiece(Environment& environment, std::uint64_t address, std::uint64_t bytes);

// kNoAccess if the memory belongs to another device than the stream, which has no access to it. The
// stream's context must be current.
Status CheckAccess(Environment& environment, const Location& location, const StreamEntry& stream);

}  // namespace cistern

#endif  // CISTERN_ADDON_RANGES_H_
