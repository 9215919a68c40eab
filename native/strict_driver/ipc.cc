#include "strict_driver/ipc.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <string>
#include <utility>

#include "strict_driver/allocation.h"
#include "strict_driver/report.h"

namespace cistern::strict {

struct Slot {
  std::atomic<std::uint64_t> nonce;  // 0: free, or ended
  std::atomic<std::uint64_t> recorded;
  std::atomic<std::uint64_t> completed;
};

namespace {

constexpr std::uint64_t kMagic = 0x7374726963742d69;
constexpr std::uint64_t kPoolMagic = 0x7374726963742d70;
constexpr std::uint32_t kSlots = 1 << 17;  // the first one stays unused
constexpr std::size_t kPage = 4096;

// Byte 0 of the file is locked by its owner, the byte of a slot by those that have its memory open.
struct Table {
  std::uint64_t magic;
  std::uint64_t nonce;
  Slot slots[kSlots];
};

struct Wire {
  std::uint64_t table_nonce;
  std::uint64_t nonce;
  std::int32_t process;
  std::int32_t table;  // descriptors of the process
  std::int32_t memory;
  std::uint32_t slot;
  DeviceOrdinal device;
  std::uint64_t offset;
  std::uint64_t bytes;
  std::uint64_t pool;  // 0: none
};
static_assert(sizeof(Wire) <= sizeof(IpcMemoryHandle) && sizeof(IpcMemoryHandle) == sizeof(IpcEventHandle));

struct PoolWire {
  std::uint64_t magic;
  std::uint64_t table_nonce;
  std::uint64_t number;
  DeviceOrdinal device;
};

bool SetLock(int file, std::uint64_t byte, short type) {
  struct flock lock = {};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  lock.l_start = static_cast<off_t>(byte);
  lock.l_len = 1;
  return fcntl(file, F_OFD_SETLK, &lock) == 0;
}

bool IsLockedByOthers(int file, std::uint64_t byte) {
  struct flock lock = {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_start = static_cast<off_t>(byte);
  lock.l_len = 1;
  return fcntl(file, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

Table* MapTable(int file) {
  void* mapped = mmap(nullptr, sizeof(Table), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);
  return mapped == MAP_FAILED ? nullptr : static_cast<Table*>(mapped);
}

// The table of this process.
struct OwnTable {
  int file = -1;
  Table* table = nullptr;
  std::uint32_t used = 0;
};

OwnTable& Own() {
  static OwnTable& own = *new OwnTable;
  return own;
}

int OpenOfProcess(std::int32_t process, std::int32_t descriptor) {
  const std::string path = "/proc/" + std::to_string(process) + "/fd/" + std::to_string(descriptor);
  return open(path.c_str(), O_RDWR | O_CLOEXEC);
}

}  // namespace

// The table of another process. It stays mapped.
struct ForeignTable {
  int file;
  Table* table;
};

struct ForeignEvent {
  const ForeignTable* table;
  std::uint32_t slot;
  std::uint64_t nonce;
  std::int32_t process;
};

// Memory of another process. It stays mapped as long as queued work refers to it.
struct ForeignMemory {
  ~ForeignMemory() {
    if (reserved != MAP_FAILED) munmap(reserved, reserved_bytes);
    if (view != MAP_FAILED) munmap(view, view_bytes);
  }

  const ForeignTable* table = nullptr;
  std::uint32_t slot = 0;
  int opens = 1;
  void* reserved = nullptr;  // addresses that the host cannot access
  std::size_t reserved_bytes = 0;
  char* view = nullptr;  // where the driver itself reads and writes
  std::size_t view_bytes = 0;
};

namespace {

// The table that a handle names; null if its process has ended.
const ForeignTable* FindTable(const Wire& wire) {
  static std::map<std::uint64_t, ForeignTable>& known = *new std::map<std::uint64_t, ForeignTable>;
  const auto found = known.find(wire.table_nonce);
  if (found != known.end()) return IsLockedByOthers(found->second.file, 0) ? &found->second : nullptr;
  const int file = OpenOfProcess(wire.process, wire.table);
  struct stat status;
  if (file < 0 || fstat(file, &status) != 0 || static_cast<std::size_t>(status.st_size) < sizeof(Table)) {
    if (file >= 0) close(file);
    return nullptr;
  }
  Table* table = MapTable(file);
  if (table == nullptr || table->magic != kMagic || table->nonce != wire.table_nonce || !IsLockedByOthers(file, 0)) {
    if (table != nullptr) munmap(table, sizeof(Table));
    close(file);
    return nullptr;
  }
  return &(known[wire.table_nonce] = {file, table});
}

// Reads a handle that another process wrote.
Status ReadHandle(const unsigned char* handle, Wire* wire, const ForeignTable** table) {
  std::memcpy(wire, handle, sizeof *wire);
  if (Own().table != nullptr && wire->table_nonce == Own().table->nonce) {
    Report("MISUSE", "%s of a handle of this process", thread.function);
    return kErrorInvalidContext;
  }
  *table = FindTable(*wire);
  if (*table == nullptr) return kErrorMapFailed;
  if (wire->slot > 0 && wire->slot < kSlots && wire->nonce != 0) return kSuccess;
  Report("MISUSE", "%s of bytes that are not a handle", thread.function);
  return kErrorInvalidValue;
}

bool IsLive(const ForeignTable& table, const Wire& wire) { return table.table->slots[wire.slot].nonce.load() == wire.nonce; }

AllocationRef FindOpen(const ForeignTable* table, std::uint32_t slot) {
  for (const auto& [start, allocation] : driver.allocations) {
    if (allocation->kind == Kind::kImported && allocation->foreign->table == table && allocation->foreign->slot == slot) return allocation;
  }
  return nullptr;
}

// False if the system refuses.
bool HasOwnTable() {
  OwnTable& own = Own();
  if (own.table != nullptr) return true;
  const int file = memfd_create("strict-driver-ipc", MFD_CLOEXEC);
  Table* table = file < 0 || ftruncate(file, sizeof(Table)) != 0 || !SetLock(file, 0, F_WRLCK) ? nullptr : MapTable(file);
  if (table == nullptr) {
    if (file >= 0) close(file);
    return false;
  }
  table->magic = kMagic;
  table->nonce =
      static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count()) << 16 ^ static_cast<std::uint64_t>(getpid());
  own.table = table;
  own.file = file;
  return true;
}

}  // namespace

std::uint32_t TakeSlot() {
  OwnTable& own = Own();
  if (!HasOwnTable()) return 0;
  if (own.used + 1 == kSlots) return 0;
  const std::uint32_t slot = ++own.used;
  own.table->slots[slot].nonce = slot;
  return slot;
}

void EndSlot(std::uint32_t slot) { Own().table->slots[slot].nonce = 0; }

bool IsOpenElsewhere(std::uint32_t slot) { return IsLockedByOthers(Own().file, slot); }

std::uint64_t CountRecording(std::uint32_t slot) { return ++Own().table->slots[slot].recorded; }

void CountCompletion(std::uint32_t slot, std::uint64_t recording) {
  std::atomic<std::uint64_t>& completed = Own().table->slots[slot].completed;
  std::uint64_t known = completed;
  while (known < recording && !completed.compare_exchange_weak(known, recording)) {
  }
}

void WriteHandle(std::uint32_t slot, const Allocation* allocation, unsigned char* handle) {
  const OwnTable& own = Own();
  Wire wire = {};
  wire.table_nonce = own.table->nonce;
  wire.nonce = own.table->slots[slot].nonce;
  wire.process = getpid();
  wire.table = own.file;
  wire.slot = slot;
  if (allocation != nullptr) {
    const DeviceMemory& memory = driver.MemoryOf(allocation->device);
    wire.memory = memory.file();
    wire.device = allocation->device;
    wire.offset = allocation->start - memory.start();
    wire.bytes = allocation->bytes;
    wire.pool = allocation->pool == nullptr ? 0 : allocation->pool->number;
  }
  std::memcpy(handle, &wire, sizeof wire);
}

Status OpenMemory(const unsigned char* handle, const PoolState* pool, DevicePointer* pointer) {
  Wire wire;
  const ForeignTable* table;
  const Status status = ReadHandle(handle, &wire, &table);
  if (status != kSuccess) return status;
  if (pool == nullptr ? wire.pool != 0 : wire.table_nonce != pool->foreign_table || wire.pool != pool->number) {
    Report("MISUSE", "%s of memory of another pool", thread.function);
    return kErrorInvalidValue;
  }
  // A context of another device would need peer access, which is not modelled here.
  if (wire.device != thread.current->device) return kErrorPeerAccessUnsupported;
  const AllocationRef known = FindOpen(table, wire.slot);
  if (known != nullptr) {
    known->foreign->opens += 1;
    *pointer = known->start;
    return kSuccess;
  }
  if (!SetLock(table->file, wire.slot, F_RDLCK)) return kErrorMapFailed;
  if (!IsLive(*table, wire)) {
    SetLock(table->file, wire.slot, F_UNLCK);
    Report("MISUSE", "%s of memory that process %d has freed", thread.function, wire.process);
    return kErrorInvalidValue;
  }
  auto foreign = std::make_shared<ForeignMemory>();
  // Addresses that are aligned as in the other process.
  const std::size_t skipped = wire.offset % kPage;
  foreign->view_bytes = RoundUp(skipped + wire.bytes, kPage);
  foreign->reserved_bytes = RoundUp(wire.offset % kGranule + wire.bytes, kGranule) + kGranule;
  foreign->reserved = mmap(nullptr, foreign->reserved_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  const int file = OpenOfProcess(wire.process, wire.memory);
  void* view = mmap(nullptr, foreign->view_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file,
                    static_cast<off_t>(wire.offset - skipped));
  if (file >= 0) close(file);
  foreign->view = static_cast<char*>(view);
  if (foreign->reserved == MAP_FAILED || view == MAP_FAILED) {
    SetLock(table->file, wire.slot, F_UNLCK);
    return kErrorMapFailed;
  }
  foreign->table = table;
  foreign->slot = wire.slot;
  const std::uintptr_t granule = RoundUp(reinterpret_cast<std::uintptr_t>(foreign->reserved), kGranule);
  const AllocationRef allocation = Publish(granule + wire.offset % kGranule, wire.bytes, wire.bytes, Kind::kImported, wire.device);
  allocation->foreign_view = foreign->view + skipped;
  allocation->is_of_foreign_pool = pool != nullptr;
  allocation->foreign = std::move(foreign);
  *pointer = allocation->start;
  return kSuccess;
}

Status CloseMemory(DevicePointer pointer) {
  const AllocationRef allocation = FindAllocation(pointer);
  if (allocation == nullptr || allocation->start != pointer || allocation->kind != Kind::kImported) {
    Report("MISUSE", "%s of %#llx, which is not memory of another process", thread.function, pointer);
    return kErrorInvalidValue;
  }
  if (--allocation->foreign->opens > 0) return kSuccess;
  driver.allocations.erase(allocation->start);
  allocation->is_freed = true;
  SetLock(allocation->foreign->table->file, allocation->foreign->slot, F_UNLCK);
  return kSuccess;
}

int OpenPoolDescriptor(PoolState& pool) {
  static std::uint64_t last_number = 0;
  if (!HasOwnTable()) return -1;
  if (pool.number == 0) pool.number = ++last_number;
  const PoolWire wire = {kPoolMagic, Own().table->nonce, pool.number, pool.device};
  const int file = memfd_create("strict-driver-pool", MFD_CLOEXEC);
  if (file < 0 || write(file, &wire, sizeof wire) == static_cast<ssize_t>(sizeof wire)) return file;
  close(file);
  return -1;
}

bool ReadPoolDescriptor(int descriptor, PoolState* pool) {
  PoolWire wire;
  if (pread(descriptor, &wire, sizeof wire, 0) != static_cast<ssize_t>(sizeof wire) || wire.magic != kPoolMagic) return false;
  pool->device = wire.device;
  pool->number = wire.number;
  pool->foreign_table = wire.table_nonce;
  return true;
}

Status OpenEvent(const unsigned char* handle, std::shared_ptr<ForeignEvent>* event) {
  Wire wire;
  const ForeignTable* table;
  const Status status = ReadHandle(handle, &wire, &table);
  if (status != kSuccess) return status;
  if (!IsLive(*table, wire)) {
    Report("MISUSE", "%s of an event that process %d has destroyed", thread.function, wire.process);
    return kErrorInvalidHandle;
  }
  *event = std::make_shared<ForeignEvent>(ForeignEvent{table, wire.slot, wire.nonce, wire.process});
  return kSuccess;
}

std::uint64_t LatestRecording(const ForeignEvent& event) { return event.table->table->slots[event.slot].recorded; }

bool IsOver(const ForeignEvent& event, std::uint64_t recording) {
  const Slot& slot = event.table->table->slots[event.slot];
  if (slot.completed >= recording) return true;
  if (slot.nonce != event.nonce) {
    Report("ORDER", "process %d destroyed an event that this process still waits for", event.process);
    return true;
  }
  return !IsLockedByOthers(event.table->file, 0);
}

}  // namespace cistern::strict
