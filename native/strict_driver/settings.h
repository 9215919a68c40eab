// The strict driver's settings: environment variables named STRICT_DRIVER_…, read once, at the
// first call.
#ifndef CISTERN_STRICT_DRIVER_SETTINGS_H_
#define CISTERN_STRICT_DRIVER_SETTINGS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "cuda/driver_table.h"

namespace cistern::strict {

// A failing call: the nth of a function, from 1; 0: every one.
struct Failure {
  std::string function;
  std::uint64_t nth = 0;
  Status status = 0;
};

struct Settings {
  // The machine.
  int version = 13000;                                // VERSION, as CUDA numbers it
  int devices = 1;                                    // DEVICES
  int compute_capability = 9;                         // COMPUTE_CAPABILITY, its first number
  std::size_t memory_bytes = std::size_t{4} << 30;    // MEMORY_MB, of each device
  std::size_t context_bytes = std::size_t{64} << 20;  // CONTEXT_MB, the memory that a context takes of it
  std::string peers = "all";                          // PEERS: all, none, or pairs of devices with access to each other: 0-1,2-3
  std::vector<std::string> missing;                   // MISSING=a,b: symbols that cuGetProcAddress does not find
  bool has_pools = true;                              // POOLS
  bool has_virtual_memory = true;                     // VIRTUAL_MEMORY
  bool shares_pools = true;                           // SHARED_POOLS: exportable ones, with other processes
  bool exports_memory = true;                         // EXPORTS_MEMORY: virtual memory, as descriptors
  bool has_concurrent_managed_access = true;          // CONCURRENT_MANAGED
  bool has_stream_memory_operations = true;           // STREAM_MEMORY_OPERATIONS
  bool has_kernels = false;                 // KERNELS: the host does the work of the test/gpu kernels, by name; else there are no modules
  bool uses_host_page_tables = false;       // HOST_PAGE_TABLES: as on Grace Hopper; implies PAGEABLE_ACCESS
  bool has_pageable_access = false;         // PAGEABLE_ACCESS: the device uses pageable memory itself, later, as with HMM
  bool pinned_memory_is_managed = false;    // PINNED_IS_MANAGED: as with confidential computing; nothing can be registered then
  bool pinned_memory_has_range = true;      // PINNED_HAS_RANGE: the start of pinned memory is reported
  bool host_pointers_of_registered = true;  // REGISTERED_POINTERS: devices use registered memory at the host's addresses
  unsigned managed_memory_type = kMemoryTypeDevice;  // MANAGED_TYPE, the reported type of managed memory: 1, 2, or 4 (unified)
  bool default_streams_have_fixed_ids = false;       // FIXED_DEFAULT_IDS: 1 and 2, in every context and thread

  // Use of the freedom that the documentation leaves.
  unsigned delay_microseconds = 200;           // DELAY_US, the longest pause before an operation of a stream
  unsigned seed = 1;                           // SEED, of the pauses
  bool serializes_callbacks = true;            // SERIAL_CALLBACKS: one thread runs every host function
  bool allocation_waits = false;               // ALLOC_SYNCS: plain allocations wait for the device
  bool free_waits = true;                      // FREE_SYNCS: plain frees wait for the device
  bool copy_from_pageable_waits = true;        // PAGEABLE_WAITS: a copy from pageable memory waits for its stream
  bool locks_while_waiting = false;            // LOCKS_WHILE_WAITING: a waiting call keeps other calls of the context out
  bool reuses_handles = true;                  // REUSE_HANDLES: at once, the last destroyed first
  bool used_memory_falls_at_once = false;      // USED_FALLS_AT_ONCE: a pool's used bytes fall with the call of cuMemFreeAsync
  bool exit_waits = true;                      // EXIT_WAITS: the exit handler waits for the running host function
  bool fills_new_memory = true;                // FILL: with arbitrary bytes
  bool checkpoints_managed_memory = true;      // CHECKPOINT_MANAGED: otherwise managed memory is a reason to refuse a checkpoint
  bool refused_checkpoints_are_final = false;  // CHECKPOINT_FINAL: as in driver 570, a process cannot go on after a refused checkpoint
  bool captures_are_mild = false;              // MILD_CAPTURES: what the documentation does not refuse is allowed, or harms no capture

  // Failures.
  std::vector<Failure> failures;  // FAIL=function:nth:status,…: the call does nothing and fails
  std::vector<Failure> faults;    // STICKY=…: the work that the call queues causes a sticky error

  // Reporting.
  std::string log;             // LOG, a file; else standard error
  unsigned stall_seconds = 5;  // STALL_SECONDS: a wait is reported after this time
  unsigned abort_seconds = 0;  // ABORT_SECONDS: a wait ends the process after this time, with status 86; 0: never
  bool traces_calls = false;   // TRACE
};

const Settings& settings();

// Whether the streams of one device can be given access to the memory of another.
bool CanReach(DeviceOrdinal device, DeviceOrdinal peer);

}  // namespace cistern::strict

#endif  // CISTERN_STRICT_DRIVER_SETTINGS_H_
