// Memory and events of other processes' software devices.
//
//     exporting process                      handle (64 bytes)           importing process
//     allocation ──► shared pages ──► process, descriptor, nonce, ──► mapping of the same pages
//     event      ──► slot in the file        offset, bytes       ──► event that polls the slot
//
// The file of a device (shared_pages.h) is all that processes share, and its lock tells whether the
// process still lives. An event of a process that has ended counts as complete: its work is over.
//
// Invariants: an imported range counts how often it was opened; its file is open as long as a range,
// an event, a queued wait or a pool refers to it. Cost: O(log n) for n imported ranges; nothing for
// calls on other memory while nothing is imported.
#ifndef CISTERN_SOFTWARE_IPC_H_
#define CISTERN_SOFTWARE_IPC_H_

#include <atomic>
#include <cstdint>
#include <memory>

#include "cuda/driver_table.h"
#include "software/shared_pages.h"

namespace cistern::software {

class Device;
struct MemoryPool;

// The file of another process's device.
class ForeignFile {
 public:
  ForeignFile(MemoryFile file, const FileHeader* header);
  ~ForeignFile();
  ForeignFile(const ForeignFile&) = delete;

  const MemoryFile& file() const { return file_; }
  const FileHeader& header() const { return *header_; }
  EventSlot& event(std::uint32_t index) const { return events_[index]; }
  bool HasOwnerEnded() const { return !file_.IsLocked(kOwnerLock); }

 private:
  MemoryFile file_;
  const FileHeader* header_;
  EventSlot* events_;
};

// An event of another process.
struct ForeignEvent {
  std::shared_ptr<ForeignFile> file;
  EventSlot* slot;
  std::uint64_t generation;

  // The number of the latest recording, 0 for none.
  std::uint64_t Latest() const { return slot->recorded.load(std::memory_order_acquire); }
  bool IsOver(std::uint64_t recording) const {
    return slot->completed.load(std::memory_order_acquire) >= recording || slot->generation.load(std::memory_order_acquire) != generation;
  }
  // Blocks until the recording has happened, or never will.
  void Await(std::uint64_t recording) const;
};

Status ExportMemory(std::uint64_t base, IpcMemoryHandle* handle);
Status ImportMemory(Device& device, const IpcMemoryHandle& handle, std::uint64_t* address);
// Ends one import of the range that starts at the address; the last one waits for all devices.
Status EndImport(std::uint64_t address);

Status ExportEvent(Device& device, std::uint32_t slot, std::uint64_t generation, IpcEventHandle* handle);
Status ImportEvent(const IpcEventHandle& handle, ForeignEvent* event);

// A new descriptor.
Status ExportPool(MemoryPool& pool, int* descriptor);
Status ImportPool(int descriptor, std::uint64_t* handle);
bool EndImportedPool(std::uint64_t handle);
Status ExportPoolMemory(std::uint64_t address, PoolPointerData* data);
Status ImportPoolMemory(Device& device, std::uint64_t pool, const PoolPointerData& data, std::uint64_t* address);

struct ImportedRangeInfo {
  int device;
  std::uint64_t start;
  std::uint64_t bytes;
};
inline std::atomic<int> imported_range_count{0};
// False if the address is in no imported range.
bool FindImportedRange(std::uint64_t address, ImportedRangeInfo* info);

}  // namespace cistern::software

#endif  // CISTERN_SOFTWARE_IPC_H_
