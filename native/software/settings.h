// What can change at any time. software_device.h has the functions that change it.
#ifndef CISTERN_SOFTWARE_SETTINGS_H_
#define CISTERN_SOFTWARE_SETTINGS_H_

#include <atomic>
#include <cstdint>

namespace cistern::software {

inline constexpr std::uint64_t kMaxTotalBytes = std::uint64_t{1} << 42;

// Whether the device uses the freedom that the driver's documentation leaves it: host functions run
// one at a time, plain allocations wait for the device, and the default streams of every device and
// thread have the ids 1 and 2.
extern std::atomic<bool> is_strict;
inline bool IsStrict() { return is_strict.load(std::memory_order_relaxed); }

// Whether a plain free, and an unmapping, waits for the devices that can use the memory. The driver's
// documentation promises it of neither.
extern std::atomic<bool> frees_wait;
inline bool FreesWait() { return frees_wait.load(std::memory_order_relaxed); }

extern std::atomic<bool> has_concurrent_managed_access;
inline bool HasConcurrentManagedAccess() { return has_concurrent_managed_access.load(std::memory_order_relaxed); }

// Whether the devices use the host's page tables, and the host maps their memory.
extern std::atomic<bool> is_coherent;
inline bool IsCoherent() { return is_coherent.load(std::memory_order_relaxed); }

extern std::atomic<bool> has_pageable_access;
inline bool HasPageableAccess() { return has_pageable_access.load(std::memory_order_relaxed) || IsCoherent(); }

extern std::atomic<std::uint64_t> migration_nanoseconds;  // for each page of managed memory that moves

// By device: a bit for each device whose memory its streams cannot be given access to.
extern std::atomic<std::uint32_t> unreachable_peers[];
inline bool CanReach(int device, int peer) {
  return device != peer && (unreachable_peers[device].load(std::memory_order_relaxed) >> peer & 1) == 0;
}
// "all", "none", or pairs such as "0-1,2-3", each in both directions. False if the text is none of them;
// nothing has changed then.
bool SetReachablePeers(const char* text);

}  // namespace cistern::software

#endif  // CISTERN_SOFTWARE_SETTINGS_H_
