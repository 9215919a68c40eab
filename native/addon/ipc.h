// Memory that other processes use, and memory of other processes.
//
//     exporting process            ledger: a file in memory             importing process
//     ExportMemory ──► export ──►  record: nonce, users, handles  ◄──── handle of 56 bytes ◄── OpenImport
//          │                         ▲       one bit per process          │
//          ├ CloseExport ── nonce 0 ─┘       in `users`  ◄────────────────┘ CloseImport
//          │      "is anybody left?"         importers: process, lock
//          └ ReopenExport, or EndExport if nobody is left
//
// A handle only says where the record is, so a changed handle cannot refer to other memory. An
// importing process has one of 64 places in the ledger, holds the lock of that place as long as it has
// memory open, and sets its bit in each record that it uses. So a process that ends in any way is
// noticed: the kernel drops its lock. Its bits are cleared once nothing of it is left.
//
//     importer: set the bit, then read the nonce        exporter: clear the nonce, then read the bits
//
// Either the importer finds the record closed, or the exporter finds the bit set.
//
// An import is closed after the importer's work on the memory has run, so a record without users is
// memory that no other process's work uses. Driver calls that may wait are made only while nothing
// stalls a stream; see Stalls. A stream that waits for an exporting process is stalled, too.
#ifndef CISTERN_ADDON_IPC_H_
#define CISTERN_ADDON_IPC_H_

#include <cstdint>
#include <vector>

#include "addon/orphans.h"

namespace cistern {

class Environment;
struct AddressRange;
struct DriverTable;

// The environment ends: its exports can no longer be opened. Does not call the driver.
void EndExportsOf(const Environment& environment);
// The imports that the environment has open, to be closed after a wait for the devices.
void AppendImportsOf(const Environment& environment, std::vector<Orphan>* orphans);
// Closes an import. The device's context must be current, and its work on the memory must have run.
bool CloseOrphanedImport(Environment& environment, std::uint64_t number);

// Forgets what ended environments had exported and no process uses any more.
void ReleaseUnusedExports(Environment& environment);
// The memory that other processes use or can open.
void AppendSharedMemory(const DriverTable* backend, std::vector<AddressRange>* ranges);

}  // namespace cistern

#endif  // CISTERN_ADDON_IPC_H_
