#include "addon/ipc.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <tuple>
#include <utility>

#include "addon/bindings.h"
#include "addon/captures.h"
#include "addon/hand_overs.h"
#include "platform/lasting.h"
#include "platform/memory.h"
#include "platform/memory_file.h"
#include "software/shared_pages.h"
#include "software/software_device.h"

namespace cistern {
namespace {

constexpr char kLedgerName[] = "cistern-exports";
constexpr char kHandleMagic[8] = {'C', 'I', 'S', 'T', 'E', 'R', 'N', 'H'};
constexpr char kLedgerMagic[8] = {'C', 'I', 'S', 'T', 'E', 'R', 'N', 'L'};
constexpr std::uint32_t kVersion = 1;
constexpr std::uint32_t kRecords = 1 << 16;
constexpr std::uint32_t kImporters = 64;
// Byte 0 of the ledger is locked by its owner, the next ones by the importers.
constexpr std::uint64_t kOwner = 0;
constexpr std::uint64_t kFirstImporter = 1;

using Nonce = std::array<unsigned char, 16>;

struct Handle {
  char magic[8];
  std::uint32_t version;
  std::int32_t process;
  std::int32_t descriptor;
  std::uint32_t record;
  std::uint64_t record_nonce;
  Nonce nonce;
  std::uint64_t checksum;  // finds typing errors, not forgeries: those fail at the nonces
};
static_assert(sizeof(Handle) == 56, "a handle has no padding");

enum class Backend : std::uint32_t { kCuda = 1, kSoftware = 2 };
enum class Way : std::uint32_t { kNoMemory, kPlain, kPool };

// A process that has memory of the ledger open. `process` is 0 if the place is free.
struct Importer {
  std::atomic<std::int32_t> process;
  std::atomic<std::uint64_t> start;
};

struct Record {
  std::atomic<std::uint64_t> nonce;  // 0: nobody can open it
  std::atomic<std::uint64_t> users;
  std::atomic<std::uint64_t> byte_length;
  // What follows stays the same as long as the nonce does, or there are users.
  Backend backend;
  Way way;
  unsigned char device_uuid[16];
  std::uint64_t base;  // of the allocation, in the exporting process
  std::uint64_t offset;
  std::uint64_t bytes;
  std::uint64_t alignment;
  std::int32_t pool_descriptor;
  IpcMemoryHandle memory;
  PoolPointerData pool_memory;
  IpcEventHandle event;
};

struct Ledger {
  char magic[8];
  Nonce nonce;
  std::atomic<std::uint32_t> used_records;  // the first ones; the others were never used
  Importer importers[kImporters];
  Record records[kRecords];
};

std::uint64_t Checksum(const Handle& handle) {
  std::uint64_t sum = 0xcbf29ce484222325;
  const auto* bytes = reinterpret_cast<const unsigned char*>(&handle);
  for (std::size_t index = 0; index < offsetof(Handle, checksum); ++index) sum = (sum ^ bytes[index]) * 0x100000001b3;
  return sum;
}

std::uint64_t BitOf(std::uint32_t importer) { return std::uint64_t{1} << importer; }

// Clears a place whose process has ended. False if somebody has it, or something of the process is
// left. Holding the place's lock keeps everybody else away from it.
bool ClearPlace(const MemoryFile& file, Ledger& ledger, std::uint32_t place) {
  if (!file.Lock(kFirstImporter + place)) return false;
  Importer& importer = ledger.importers[place];
  const std::int32_t process = importer.process.load();
  const bool is_free = process == 0 || HasProcessEnded(process, importer.start.load());
  if (is_free && process != 0) {
    const std::uint32_t used = std::min(ledger.used_records.load(), kRecords);
    for (std::uint32_t index = 0; index < used; ++index) ledger.records[index].users.fetch_and(~BitOf(place));
    importer.process.store(0);
  }
  file.Unlock(kFirstImporter + place);
  return is_free;
}

// What this process has exported.
struct Export {
  std::uint32_t record = 0;
  std::uint64_t environment = 0;
  const DriverTable* backend = nullptr;
  std::uint64_t address = 0;
  std::uint64_t bytes = 0;
  DeviceEvent event{};
  Pool pool = nullptr;
  std::uint64_t nonce = 0;  // that of the record while it can be opened
  bool is_orphaned = false;
};

struct PoolDescriptor {
  MemoryFile file;  // of any kind
  int exports;
};

struct Exports {
  std::mutex mutex;
  // The mutex guards the rest. No driver is called while it is held.
  MemoryFile file;
  Ledger* ledger = nullptr;
  std::vector<std::uint32_t> free_records;
  std::map<std::uint64_t, Export> by_number;
  std::map<Pool, PoolDescriptor> pools;
  std::uint64_t last_number = 0;

  bool Open() {
    if (ledger != nullptr) return true;
    MemoryFile fresh = CreateMemoryFile(kLedgerName, sizeof(Ledger));
    if (!fresh.IsOpen() || !fresh.Lock(kOwner)) return false;
    auto* mapped = static_cast<Ledger*>(fresh.Map(0, sizeof(Ledger)));
    if (mapped == nullptr) return false;
    if (!FillRandom(mapped->nonce.data(), mapped->nonce.size())) {
      UnmapPages(mapped, sizeof(Ledger));
      return false;
    }
    std::memcpy(mapped->magic, kLedgerMagic, sizeof kLedgerMagic);
    ledger = mapped;
    file = std::move(fresh);
    return true;
  }

  // A record that nobody uses, or kRecords.
  std::uint32_t TakeRecord() {
    if (!free_records.empty()) {
      const std::uint32_t record = free_records.back();
      free_records.pop_back();
      return record;
    }
    const std::uint32_t used = ledger->used_records.load();
    if (used < kRecords) ledger->used_records.store(used + 1);
    return used;
  }

  // Whether other processes use the record. Notices those that have ended.
  bool IsUsed(std::uint32_t record) {
    std::uint64_t users = ledger->records[record].users.load();
    for (std::uint32_t place = 0; place < kImporters; ++place) {
      if ((users & BitOf(place)) != 0) ClearPlace(file, *ledger, place);
    }
    return ledger->records[record].users.load() != 0;
  }

  // Returns the event, which the caller destroys.
  DeviceEvent Forget(std::map<std::uint64_t, Export>::iterator entry) {
    const Export ended = entry->second;
    free_records.push_back(ended.record);
    if (ended.pool != nullptr) {
      const auto pool = pools.find(ended.pool);
      if (--pool->second.exports == 0) pools.erase(pool);
    }
    by_number.erase(entry);
    return ended.event;
  }
};

Exports& AllExports() {
  static Lasting<Exports> all;
  return *all;
}

// An export of the environment, or the end. The mutex must be held.
std::map<std::uint64_t, Export>::iterator FindExport(const Environment& environment, std::uint64_t number) {
  Exports& all = AllExports();
  const auto entry = all.by_number.find(number);
  return entry != all.by_number.end() && entry->second.environment == environment.id() ? entry : all.by_number.end();
}

// The ledger of another process, with this process's place in it.
struct ForeignLedger {
  ~ForeignLedger() {
    if (place < kImporters) {
      ledger->importers[place].process.store(0);
      file.Unlock(kFirstImporter + place);
    }
    if (ledger != nullptr) UnmapPages(ledger, sizeof(Ledger));
  }

  MemoryFile file;
  Ledger* ledger = nullptr;
  std::int32_t process = 0;
  std::uint32_t place = kImporters;
  std::map<std::uint32_t, int> uses;  // by record
};

// An allocation of a pool that is mapped here. Plain ones are counted by the driver.
struct PoolMapping {
  std::uint64_t address;
  int count;
};
// The ledger, the device, and the address in the exporting process.
using PoolMappingKey = std::tuple<const ForeignLedger*, int, std::uint64_t>;

struct Import {
  std::shared_ptr<ForeignLedger> ledger;
  std::uint32_t record = 0;
  std::uint64_t environment = 0;
  int device = 0;
  Way way = Way::kNoMemory;
  std::uint64_t address = 0;  // of the whole allocation, here
  std::uint64_t base = 0;     // in the exporting process
};

struct ImportTable {
  // Also held while driver calls map and unmap, which therefore must not wait for a stalled stream.
  std::mutex mutex;
  std::map<Nonce, std::weak_ptr<ForeignLedger>> ledgers;
  std::map<PoolMappingKey, PoolMapping> pool_mappings;
  std::map<std::uint64_t, Import> by_number;
  std::uint64_t last_number = 0;
};

ImportTable& AllImportedMemory() {
  static Lasting<ImportTable> all;
  return *all;
}

Backend BackendOf(const Environment& environment) {
  return environment.backend == &software::Table() ? Backend::kSoftware : Backend::kCuda;
}

void DestroyExportEvent(Environment& environment, const DeviceEvent& event) {
  if (event.event == nullptr) return;
  const RelaxedContextScope context(environment, event.device);
  if (context.status() == kSuccess && environment.Counted<Call::kEventDestroy>(event.event) == kSuccess) return;
  LeaveOrphans(environment, {{OrphanKind::kEvent, event.device, reinterpret_cast<std::uintptr_t>(event.event)}});
}

// What a record says of memory, from the driver.
struct Description {
  Way way = Way::kNoMemory;
  std::uint64_t base = 0;
  IpcMemoryHandle memory = {};
  PoolPointerData pool_memory = {};
  Pool pool = nullptr;
};

// kErrorNotSupported for memory that the driver cannot share.
Status DescribeMemory(Environment& environment, std::uint64_t address, Description* description) {
  int is_plain = 0;
  DevicePointer base = 0;
  if (environment.driver->PointerGetAttribute(&is_plain, kPointerIsLegacyIpcCapable, address) != kSuccess) is_plain = 0;
  const bool is_known = environment.driver->PointerGetAttribute(&base, kPointerRangeStart, address) == kSuccess;
  if (!is_known) return kErrorNotSupported;
  description->base = base;
  if (is_plain != 0) {
    description->way = Way::kPlain;
    return environment.Counted<Call::kIpcGetMemHandle>(&description->memory, base);
  }
  if (environment.driver->PointerGetAttribute(&description->pool, kPointerPool, address) != kSuccess) description->pool = nullptr;
  if (description->pool == nullptr) return kErrorNotSupported;
  description->way = Way::kPool;
  const Status status = environment.Counted<Call::kMemPoolExportPointer>(&description->pool_memory, base);
  // What drivers answer for a pool that was not created for this is not documented.
  return status == kErrorInvalidValue ? kErrorNotSupported : status;
}

// A descriptor for the pool, shared by its exports. The mutex must not be held.
Status OpenPoolDescriptor(Environment& environment, Pool pool, int* descriptor) {
  Exports& all = AllExports();
  {
    const std::lock_guard<std::mutex> lock(all.mutex);
    const auto known = all.pools.find(pool);
    if (known != all.pools.end()) {
      ++known->second.exports;
      *descriptor = known->second.file.descriptor();
      return kSuccess;
    }
  }
  int opened = -1;
  const Status status =
      environment.Counted<Call::kMemPoolExportToShareableHandle>(static_cast<void*>(&opened), pool, int{kHandleTypePosixDescriptor}, 0ull);
  if (status != kSuccess) return status == kErrorInvalidValue ? kErrorNotSupported : status;
  const std::lock_guard<std::mutex> lock(all.mutex);
  // Another environment may have opened one meanwhile, which then is kept.
  const auto added = all.pools.try_emplace(pool, PoolDescriptor{MemoryFile(opened), 0}).first;
  ++added->second.exports;
  *descriptor = added->second.file.descriptor();
  return kSuccess;
}

void ClosePoolDescriptor(Pool pool) {
  Exports& all = AllExports();
  const std::lock_guard<std::mutex> lock(all.mutex);
  const auto known = all.pools.find(pool);
  if (known != all.pools.end() && --known->second.exports == 0) all.pools.erase(known);
}

Status MakeEvent(Environment& environment, const StreamEntry& stream, DeviceEvent* event, IpcEventHandle* handle) {
  event->device = stream.device;
  Status status = environment.Counted<Call::kEventCreate>(&event->event, unsigned{kEventDisableTiming | kEventInterprocess});
  if (status != kSuccess) {
    event->event = nullptr;
    return status;
  }
  status = environment.Counted<Call::kEventRecord>(event->event, stream.stream);
  return status == kSuccess ? environment.Counted<Call::kIpcGetEventHandle>(handle, event->event) : status;
}

// The ledger that a handle names. The mutex must be held.
Status FindLedger(ImportTable& all, const Handle& handle, std::shared_ptr<ForeignLedger>* ledger) {
  for (auto entry = all.ledgers.begin(); entry != all.ledgers.end();) {
    entry = entry->second.expired() ? all.ledgers.erase(entry) : std::next(entry);
  }
  const auto known = all.ledgers.find(handle.nonce);
  if (known != all.ledgers.end()) {
    *ledger = known->second.lock();
    return kSuccess;
  }
  auto fresh = std::make_shared<ForeignLedger>();
  const OpenResult result = OpenMemoryFile(handle.process, handle.descriptor, kLedgerName, sizeof(Ledger), &fresh->file);
  if (result == OpenResult::kForbidden) return kForbiddenProcess;
  if (result == OpenResult::kFailed) return kHostOutOfMemory;
  // Whatever else is found there belongs to a later process with the same number.
  if (result != OpenResult::kOpened) return kStaleMessage;
  fresh->ledger = static_cast<Ledger*>(fresh->file.Map(0, sizeof(Ledger)));
  if (fresh->ledger == nullptr) return kHostOutOfMemory;
  if (std::memcmp(fresh->ledger->magic, kLedgerMagic, sizeof kLedgerMagic) != 0 || fresh->ledger->nonce != handle.nonce)
    return kStaleMessage;
  const std::optional<std::uint64_t> start = StartOfProcess(CurrentProcessId());
  if (!start) return kHostOutOfMemory;
  for (std::uint32_t place = 0; place < kImporters; ++place) {
    if (!ClearPlace(fresh->file, *fresh->ledger, place) || !fresh->file.Lock(kFirstImporter + place)) continue;
    Importer& importer = fresh->ledger->importers[place];
    if (importer.process.load() != 0) {
      // Somebody had the place in between, and has ended.
      fresh->file.Unlock(kFirstImporter + place);
      continue;
    }
    importer.start.store(*start);
    importer.process.store(CurrentProcessId());
    fresh->place = place;
    break;
  }
  if (fresh->place == kImporters) return kTooManyImporters;
  fresh->process = handle.process;
  all.ledgers[handle.nonce] = fresh;
  *ledger = std::move(fresh);
  return kSuccess;
}

void EndUse(ForeignLedger& ledger, std::uint32_t record) {
  const auto uses = ledger.uses.find(record);
  if (--uses->second > 0) return;
  ledger.uses.erase(uses);
  ledger.ledger->records[record].users.fetch_and(~BitOf(ledger.place));
}

// The device of the backend that has the UUID, or -1.
int DeviceWithUuid(Environment& environment, const unsigned char* uuid) {
  for (int device = 0; environment.HasDevice(device); ++device) {
    unsigned char found[16];
    const bool is_known = environment.driver->DeviceGetUuid(found, environment.DriverDevice(device)) == kSuccess;
    if (is_known && std::memcmp(found, uuid, sizeof found) == 0) return device;
  }
  return -1;
}

Status FetchPool(Environment& environment, std::int32_t process, std::int32_t descriptor, Pool* pool) {
  int fetched = -1;
  OpenResult result = FetchDescriptor(process, descriptor, &fetched);
  MemoryFile file;
  if (result == OpenResult::kOpened) file = MemoryFile(fetched);
  // The software device's descriptors can be opened without the right to trace their process.
  if (result != OpenResult::kOpened) result = OpenMemoryFile(process, descriptor, software::kDeviceFileName, 1, &file);
  if (result == OpenResult::kGone) return kStaleMessage;
  if (result == OpenResult::kFailed) return kHostOutOfMemory;
  if (result != OpenResult::kOpened) return kForbiddenProcess;
  void* handle = reinterpret_cast<void*>(static_cast<std::uintptr_t>(file.descriptor()));
  return environment.Counted<Call::kMemPoolImportFromShareableHandle>(pool, handle, int{kHandleTypePosixDescriptor}, 0ull);
}

// Maps the allocation of a record. The mutex must be held, and the device's context current.
Status MapMemory(Environment& environment, ImportTable& all, const Record& record, Import* import) {
  if (record.way == Way::kNoMemory) return kSuccess;
  DevicePointer address = 0;
  if (record.way == Way::kPlain) {
    const Status status = environment.Counted<Call::kIpcOpenMemHandle>(&address, record.memory, unsigned{kIpcLazyPeerAccess});
    import->address = address;
    return status;
  }
  const PoolMappingKey key = {import->ledger.get(), import->device, record.base};
  const auto known = all.pool_mappings.find(key);
  if (known != all.pool_mappings.end()) {
    ++known->second.count;
    import->address = known->second.address;
    return kSuccess;
  }
  Pool pool = nullptr;
  Status status = FetchPool(environment, import->ledger->process, record.pool_descriptor, &pool);
  if (status != kSuccess) return status;
  PoolPointerData data = record.pool_memory;
  status = environment.Counted<Call::kMemPoolImportPointer>(&address, pool, &data);
  // The pool lasts as long as what was imported from it.
  environment.Counted<Call::kMemPoolDestroy>(pool);
  if (status != kSuccess) return status;
  import->address = address;
  all.pool_mappings[key] = {address, 1};
  return kSuccess;
}

// The mutex must be held, and the device's context current.
Status UnmapMemory(Environment& environment, ImportTable& all, const Import& import) {
  if (import.way == Way::kPlain) return environment.Counted<Call::kIpcCloseMemHandle>(DevicePointer{import.address});
  if (import.way == Way::kNoMemory) return kSuccess;
  const auto known = all.pool_mappings.find({import.ledger.get(), import.device, import.base});
  if (known->second.count == 1) {
    const Status status = environment.Counted<Call::kMemFree>(DevicePointer{import.address});
    if (status != kSuccess) return status;
  }
  if (--known->second.count == 0) all.pool_mappings.erase(known);
  return kSuccess;
}

// Counts as a hold of the process, for a scope or until a stream ends it.
class Hold {
 public:
  Hold() { stalls.BeginHold(); }
  ~Hold() {
    if (!is_kept_) stalls.EndHolds();
  }
  Hold(const Hold&) = delete;
  void Keep() { is_kept_ = true; }

 private:
  bool is_kept_ = false;
};

// Whether the end of the import calls the driver. The mutex must be held.
bool IsUnmapped(const ImportTable& all, const Import& import) {
  if (import.way != Way::kPool) return import.way == Way::kPlain;
  return all.pool_mappings.at({import.ledger.get(), import.device, import.base}).count == 1;
}

// The mutex must be held, and the device's context current if memory is unmapped.
Status EndImport(Environment& environment, ImportTable& all, std::map<std::uint64_t, Import>::iterator entry) {
  const Status status = UnmapMemory(environment, all, entry->second);
  if (status != kSuccess) return status;
  EndUse(*entry->second.ledger, entry->second.record);
  all.by_number.erase(entry);
  return kSuccess;
}

Status ReadHandle(Environment& environment, const Napi::Value& value, Handle* handle) {
  ByteView view;
  if (!ReadView(value, &view)) return kInvalidArgument;
  constexpr std::size_t kVersionEnd = offsetof(Handle, process);
  // An empty view has no address.
  if (view.bytes < kVersionEnd) return kForeignMessage;
  *handle = {};
  std::memcpy(handle, view.data, std::min(view.bytes, sizeof *handle));
  if (std::memcmp(handle->magic, kHandleMagic, sizeof kHandleMagic) != 0) return kForeignMessage;
  environment.Out(1, handle->version);
  if (handle->version != kVersion) return kUnknownVersion;
  if (view.bytes != sizeof *handle || handle->checksum != Checksum(*handle)) return kForeignMessage;
  environment.Out(1, handle->process);
  return kSuccess;
}

// Whether the exporting process runs no more. Its files cannot be seen any more some time before its
// locks end, if it has several threads.
bool HasExporterEnded(const Handle& handle, const ForeignLedger& ledger) {
  if (!ledger.file.IsLocked(kOwner)) return true;
  MemoryFile again;
  return OpenMemoryFile(handle.process, handle.descriptor, kLedgerName, sizeof(Ledger), &again) == OpenResult::kGone;
}

// Makes the stream wait for an event of the exporting process. Until it has happened, the stream is
// stalled as by a hold: `stall` is one, which this function keeps.
Status AwaitExporter(Environment& environment, const StreamEntry& stream, const IpcEventHandle& handle, Hold* stall) {
  Event event = nullptr;
  Status status = environment.Counted<Call::kIpcOpenEventHandle>(&event, handle);
  if (status != kSuccess) return status;
  status = environment.Counted<Call::kStreamWaitEvent>(stream.stream, event, 0u);
  if (status == kSuccess && environment.driver->EventQuery(event) != kSuccess) {
    status = environment.Counted<Call::kLaunchHostFunc>(stream.stream, HostFunction{[](void*) { stalls.EndHolds(); }}, nullptr);
    if (status == kSuccess) stall->Keep();
  }
  environment.Counted<Call::kEventDestroy>(event);
  return status;
}

bool IsOwn(const Handle& handle) {
  Exports& all = AllExports();
  const std::lock_guard<std::mutex> lock(all.mutex);
  return all.ledger != nullptr && all.ledger->nonce == handle.nonce;
}

}  // namespace

void EndExportsOf(const Environment& environment) {
  Exports& all = AllExports();
  const std::lock_guard<std::mutex> lock(all.mutex);
  for (auto& [number, each] : all.by_number) {
    if (each.environment != environment.id()) continue;
    all.ledger->records[each.record].nonce.store(0);
    each.is_orphaned = true;
  }
}

void AppendImportsOf(const Environment& environment, std::vector<Orphan>* orphans) {
  ImportTable& all = AllImportedMemory();
  const std::lock_guard<std::mutex> lock(all.mutex);
  for (const auto& [number, import] : all.by_number) {
    if (import.environment == environment.id()) orphans->push_back({OrphanKind::kImport, import.device, number});
  }
}

bool CloseOrphanedImport(Environment& environment, std::uint64_t number) {
  ImportTable& all = AllImportedMemory();
  const std::lock_guard<std::mutex> lock(all.mutex);
  const auto entry = all.by_number.find(number);
  return entry != all.by_number.end() && EndImport(environment, all, entry) == kSuccess;
}

void ReleaseUnusedExports(Environment& environment) {
  std::vector<DeviceEvent> unneeded;
  Exports& all = AllExports();
  {
    const std::lock_guard<std::mutex> lock(all.mutex);
    for (auto entry = all.by_number.begin(); entry != all.by_number.end();) {
      const auto next = std::next(entry);
      const Export& each = entry->second;
      if (each.is_orphaned && each.backend == environment.backend && !all.IsUsed(each.record)) unneeded.push_back(all.Forget(entry));
      entry = next;
    }
  }
  for (const DeviceEvent& event : unneeded) DestroyExportEvent(environment, event);
}

void AppendSharedMemory(const DriverTable* backend, std::vector<AddressRange>* ranges) {
  Exports& all = AllExports();
  const std::lock_guard<std::mutex> lock(all.mutex);
  for (const auto& [number, each] : all.by_number) {
    if (each.backend != backend || each.bytes == 0 || (each.is_orphaned && !all.IsUsed(each.record))) continue;
    ranges->push_back({each.address, each.address + each.bytes});
  }
}

Status ExportMemory(Environment& environment, const Napi::CallbackInfo& info) {
  std::uint64_t address, bytes, byte_length, alignment;
  ByteView destination;
  StreamEntry* stream;
  if (!ReadInteger(info[0], &address) || !ReadInteger(info[1], &bytes) || !ReadInteger(info[2], &byte_length)) return kInvalidArgument;
  if (!ReadInteger(info[3], &alignment) || !ReadView(info[5], &destination)) return kInvalidArgument;
  if (destination.bytes != sizeof(Handle) || byte_length > bytes || bytes > kMaxSafeInteger - address) return kInvalidArgument;
  Status status = FindUncapturedStream(environment, info[4], &stream);
  if (status != kSuccess) return status;
  if (!kHasMemoryFiles) return kNoProcessMemory;
  const RelaxedContextScope context(environment, stream->device);
  if (context.status() != kSuccess) return context.status();

  Description description;
  unsigned char uuid[16];
  status = environment.driver->DeviceGetUuid(uuid, environment.DriverDevice(stream->device));
  if (status == kSuccess && bytes > 0) status = DescribeMemory(environment, address, &description);
  int descriptor = -1;
  if (status == kSuccess && description.pool != nullptr) status = OpenPoolDescriptor(environment, description.pool, &descriptor);
  if (status != kSuccess) return status;
  Export fresh;
  IpcEventHandle event = {};
  if (bytes > 0) status = MakeEvent(environment, *stream, &fresh.event, &event);
  std::uint64_t nonce = 0;
  while (status == kSuccess && nonce == 0) status = FillRandom(&nonce, sizeof nonce) ? kSuccess : kHostOutOfMemory;

  Exports& all = AllExports();
  if (status == kSuccess) {
    const std::lock_guard<std::mutex> lock(all.mutex);
    std::uint32_t index = kRecords;
    if (all.Open()) index = all.TakeRecord();
    if (index < kRecords) {
      Record& record = all.ledger->records[index];
      record.byte_length.store(byte_length);
      record.backend = BackendOf(environment);
      record.way = description.way;
      std::memcpy(record.device_uuid, uuid, sizeof uuid);
      record.base = description.base;
      record.offset = address - description.base;
      record.bytes = bytes;
      record.alignment = alignment;
      record.pool_descriptor = descriptor;
      record.memory = description.memory;
      record.pool_memory = description.pool_memory;
      record.event = event;
      record.nonce.store(nonce);

      fresh.record = index;
      fresh.environment = environment.id();
      fresh.backend = environment.backend;
      fresh.address = address;
      fresh.bytes = bytes;
      fresh.pool = description.pool;
      fresh.nonce = nonce;
      Handle handle = {};
      std::memcpy(handle.magic, kHandleMagic, sizeof kHandleMagic);
      handle.version = kVersion;
      handle.process = CurrentProcessId();
      handle.descriptor = all.file.descriptor();
      handle.record = index;
      handle.record_nonce = nonce;
      handle.nonce = all.ledger->nonce;
      handle.checksum = Checksum(handle);
      std::memcpy(destination.data, &handle, sizeof handle);
      all.by_number.emplace(++all.last_number, fresh);
      environment.Out(1, static_cast<double>(all.last_number));
      return kSuccess;
    }
    status = all.ledger == nullptr ? kHostOutOfMemory : kTooManyExports;
  }
  DestroyExportEvent(environment, fresh.event);
  if (description.pool != nullptr) ClosePoolDescriptor(description.pool);
  return status;
}

Status RefreshExport(Environment& environment, const Napi::CallbackInfo& info) {
  std::uint64_t number, byte_length;
  StreamEntry* stream;
  if (!ReadInteger(info[0], &number) || !ReadInteger(info[1], &byte_length)) return kInvalidArgument;
  Status status = FindUncapturedStream(environment, info[2], &stream);
  if (status != kSuccess) return status;
  Exports& all = AllExports();
  DeviceEvent event;
  {
    const std::lock_guard<std::mutex> lock(all.mutex);
    const auto entry = FindExport(environment, number);
    if (entry == all.by_number.end()) return kStaleHandle;
    if (byte_length > entry->second.bytes) return kInvalidArgument;
    event = entry->second.event;
  }
  if (event.event != nullptr) {
    const RelaxedContextScope context(environment, event.device);
    status = context.status() == kSuccess ? environment.Counted<Call::kEventRecord>(event.event, stream->stream) : context.status();
    if (status != kSuccess) return status;
  }
  const std::lock_guard<std::mutex> lock(all.mutex);
  all.ledger->records[all.by_number.at(number).record].byte_length.store(byte_length);
  return kSuccess;
}

Status NoticeEndedImporters(Environment&, const Napi::CallbackInfo&) {
  Exports& all = AllExports();
  const std::lock_guard<std::mutex> lock(all.mutex);
  for (std::uint32_t place = 0; all.ledger != nullptr && place < kImporters; ++place) {
    if (all.ledger->importers[place].process.load() != 0) ClearPlace(all.file, *all.ledger, place);
  }
  return kSuccess;
}

Status ExportIsUsed(Environment& environment, const Napi::CallbackInfo& info) {
  std::uint64_t number;
  if (!ReadInteger(info[0], &number)) return kInvalidArgument;
  Exports& all = AllExports();
  const std::lock_guard<std::mutex> lock(all.mutex);
  const auto entry = FindExport(environment, number);
  if (entry == all.by_number.end()) return kStaleHandle;
  environment.Out(1, all.ledger->records[entry->second.record].users.load() != 0 ? 1 : 0);
  return kSuccess;
}

Status CloseExport(Environment& environment, const Napi::CallbackInfo& info) {
  std::uint64_t number;
  bool only_if_unused;
  if (!ReadInteger(info[0], &number) || !ReadBoolean(info[1], &only_if_unused)) return kInvalidArgument;
  Exports& all = AllExports();
  const std::lock_guard<std::mutex> lock(all.mutex);
  const auto entry = FindExport(environment, number);
  if (entry == all.by_number.end()) return kStaleHandle;
  const std::uint32_t index = entry->second.record;
  // Another process may be opening it at this moment, and must find it open if it stays open.
  bool is_used = only_if_unused && all.IsUsed(index);
  if (!is_used) {
    const std::uint64_t nonce = all.ledger->records[index].nonce.exchange(0);
    is_used = all.IsUsed(index);
    if (is_used && only_if_unused) all.ledger->records[index].nonce.store(nonce);
  }
  environment.Out(1, is_used ? 0 : 1);
  return kSuccess;
}

Status ReopenExport(Environment& environment, const Napi::CallbackInfo& info) {
  std::uint64_t number;
  if (!ReadInteger(info[0], &number)) return kInvalidArgument;
  Exports& all = AllExports();
  const std::lock_guard<std::mutex> lock(all.mutex);
  const auto entry = FindExport(environment, number);
  if (entry == all.by_number.end()) return kStaleHandle;
  all.ledger->records[entry->second.record].nonce.store(entry->second.nonce);
  return kSuccess;
}

Status EndExport(Environment& environment, const Napi::CallbackInfo& info) {
  std::uint64_t number;
  if (!ReadInteger(info[0], &number)) return kInvalidArgument;
  Exports& all = AllExports();
  DeviceEvent event;
  {
    const std::lock_guard<std::mutex> lock(all.mutex);
    const auto entry = FindExport(environment, number);
    if (entry == all.by_number.end()) return kStaleHandle;
    if (all.ledger->records[entry->second.record].nonce.load() != 0) return kInvalidArgument;
    event = all.Forget(entry);
  }
  DestroyExportEvent(environment, event);
  return kSuccess;
}

Status OpenImport(Environment& environment, const Napi::CallbackInfo& info) {
  Handle handle;
  StreamEntry* stream;
  Status status = ReadHandle(environment, info[0], &handle);
  if (status != kSuccess) return status;
  status = FindUncapturedStream(environment, info[1], &stream);
  if (status != kSuccess) return status;
  if (!kHasMemoryFiles) return kNoProcessMemory;
  if (IsOwn(handle)) return kOwnMessage;
  const RelaxedContextScope context(environment, stream->device);
  if (context.status() != kSuccess) return context.status();

  // Before the mutex is locked: whoever has excluded stalls may be about to lock it.
  Hold stall;
  ImportTable& all = AllImportedMemory();
  const std::lock_guard<std::mutex> lock(all.mutex);
  Import import;
  environment.Out(2, 1);  // what is stale is the process
  status = FindLedger(all, handle, &import.ledger);
  if (status != kSuccess) return status;
  if (!import.ledger->file.IsLocked(kOwner)) return kStaleMessage;
  environment.Out(2, 0);
  // No export made such a handle. A nonce of 0 would open a record that is closed.
  const std::uint32_t used = std::min(import.ledger->ledger->used_records.load(), kRecords);
  if (handle.record >= used || handle.record_nonce == 0) return kForeignMessage;
  Record& record = import.ledger->ledger->records[handle.record];
  // From here on the exporting process keeps the memory, if it had not given it up before.
  ++import.ledger->uses[handle.record];
  record.users.fetch_or(BitOf(import.ledger->place));
  if (record.nonce.load() != handle.record_nonce) {
    EndUse(*import.ledger, handle.record);
    return kStaleMessage;
  }
  import.record = handle.record;
  import.environment = environment.id();
  import.way = record.way;
  import.base = record.base;
  const bool is_of_backend = record.backend == BackendOf(environment);
  import.device = is_of_backend ? DeviceWithUuid(environment, record.device_uuid) : -1;
  environment.Out(5, import.device);
  if (!is_of_backend) {
    environment.Out(1, record.backend == Backend::kSoftware ? 1 : 0);
    status = kOtherBackend;
  } else if (import.device < 0) {
    status = kNoSuchDevice;
  } else if (import.device != stream->device) {
    status = kErrorInvalidDevice;
  }
  const bool is_allowed = status == kSuccess;
  if (is_allowed) status = MapMemory(environment, all, record, &import);
  const bool is_mapped = status == kSuccess;
  if (status == kSuccess && import.way != Way::kNoMemory) {
    status = AwaitExporter(environment, *stream, record.event, &stall);
  }
  if (status == kSuccess) {
    environment.Out(1, static_cast<double>(all.last_number + 1));
    environment.Out(2, static_cast<double>(import.address + (import.way == Way::kNoMemory ? 0 : record.offset)));
    environment.Out(3, static_cast<double>(record.byte_length.load()));
    environment.Out(4, static_cast<double>(record.bytes));
    environment.Out(6, static_cast<double>(record.alignment));
    all.by_number.emplace(++all.last_number, std::move(import));
    return kSuccess;
  }
  if (is_mapped) UnmapMemory(environment, all, import);
  if (is_allowed && HasExporterEnded(handle, *import.ledger)) {
    environment.Out(2, 1);
    status = kStaleMessage;
  }
  EndUse(*import.ledger, handle.record);
  return status;
}

Status CloseImport(Environment& environment, const Napi::CallbackInfo& info) {
  std::uint64_t number;
  if (!ReadInteger(info[0], &number)) return kInvalidArgument;
  ImportTable& all = AllImportedMemory();
  const std::lock_guard<std::mutex> lock(all.mutex);
  const auto entry = all.by_number.find(number);
  if (entry == all.by_number.end() || entry->second.environment != environment.id()) return kStaleHandle;
  if (!IsUnmapped(all, entry->second)) return EndImport(environment, all, entry);
  // Unmapping may wait for the device.
  const std::unique_lock<std::mutex> no_stalls = stalls.TryExclude();
  if (!no_stalls.owns_lock()) return kErrorNotReady;
  const RelaxedContextScope context(environment, entry->second.device);
  return context.status() == kSuccess ? EndImport(environment, all, entry) : context.status();
}

}  // namespace cistern
