#include "software/ipc.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "platform/lasting.h"
#include "platform/memory.h"
#include "software/calls.h"
#include "software/device.h"
#include "software/memory_pool.h"
#include "software/resolve.h"

namespace cistern::software {
namespace {

constexpr std::uint32_t kMemoryMagic = 0x6d656d31;
constexpr std::uint32_t kPoolMemoryMagic = 0x706d6d31;
constexpr std::uint32_t kEventMagic = 0x65767431;

// What a handle of memory or of an event contains.
struct Contents {
  std::uint32_t magic;
  std::int32_t process;
  std::int32_t descriptor;
  std::int32_t device;
  unsigned char nonce[16];
  std::uint64_t place;   // of memory: the offset; of an event: its slot
  std::uint64_t extent;  // of memory: the bytes; of an event: its generation
};
static_assert(sizeof(Contents) <= 64, "handles have 64 bytes");

template <typename Handle>
void Pack(const Contents& contents, Handle* handle) {
  std::memset(handle, 0, sizeof *handle);
  std::memcpy(handle, &contents, sizeof contents);
}

template <typename Handle>
Contents Unpack(const Handle& handle) {
  Contents contents;
  std::memcpy(&contents, &handle, sizeof contents);
  return contents;
}

Contents ContentsFor(std::uint32_t magic, Device& device, std::uint64_t place, std::uint64_t extent) {
  const SharedPages& pages = device.memory.shared_pages();
  Contents contents = {magic, CurrentProcessId(), pages.file().descriptor(), device.ordinal, {}, place, extent};
  std::memcpy(contents.nonce, pages.nonce(), sizeof contents.nonce);
  return contents;
}

using Nonce = std::array<unsigned char, 16>;

struct ImportedRange {
  std::shared_ptr<ForeignFile> file;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  void* mapping = nullptr;
  std::uint64_t mapped_bytes = 0;
  int device = 0;
  int count = 0;
};

struct Imports {
  std::mutex mutex;
  std::map<Nonce, std::weak_ptr<ForeignFile>> files;
  std::map<std::uint64_t, ImportedRange> ranges;  // by address
  std::map<std::uint64_t, std::shared_ptr<ForeignFile>> pools;
  std::uint64_t last_pool = 0;
};

Imports& AllImports() {
  static Lasting<Imports> all;
  return *all;
}

// The file of the device that has the nonce, from an open file. The mutex must be held.
Status KnowFile(Imports& all, MemoryFile file, const Nonce* nonce, std::shared_ptr<ForeignFile>* known) {
  const std::int64_t size = file.Size();
  if (size < static_cast<std::int64_t>(kTrailerBytes)) return kErrorInvalidHandle;
  const std::uint64_t range_bytes = static_cast<std::uint64_t>(size) - kTrailerBytes;
  if (range_bytes % kHeaderBytes != 0) return kErrorInvalidHandle;
  void* trailer = file.Map(range_bytes, kTrailerBytes);
  if (trailer == nullptr) return kErrorMapFailed;
  const auto* header = static_cast<const FileHeader*>(trailer);
  auto fresh = std::make_shared<ForeignFile>(std::move(file), header);
  Nonce own;
  std::memcpy(own.data(), header->nonce, own.size());
  const bool is_valid = std::memcmp(header->magic, kDeviceFileMagic, sizeof header->magic) == 0 && header->range_bytes == range_bytes;
  if (!is_valid || (nonce != nullptr && own != *nonce)) return kErrorInvalidHandle;
  std::weak_ptr<ForeignFile>& entry = all.files[own];
  *known = entry.lock();
  if (*known == nullptr) entry = *known = std::move(fresh);
  return kSuccess;
}

void ForgetFiles(Imports& all) {
  for (auto entry = all.files.begin(); entry != all.files.end();)
    entry = entry->second.expired() ? all.files.erase(entry) : std::next(entry);
}

bool IsOwnFile(const unsigned char* nonce) {
  for (int i = 0; i < DeviceCount(); ++i) {
    if (FindDevice(i)->memory.shared_pages().IsOwn(nonce)) return true;
  }
  return false;
}

// The mutex must be held.
Status OpenFile(Imports& all, const Contents& contents, std::shared_ptr<ForeignFile>* file) {
  // "cuIpcOpenMemHandle" of the process's own memory is an error of the context.
  if (IsOwnFile(contents.nonce)) return kErrorInvalidContext;
  Nonce nonce;
  std::memcpy(nonce.data(), contents.nonce, nonce.size());
  ForgetFiles(all);
  const auto known = all.files.find(nonce);
  if (known != all.files.end()) {
    *file = known->second.lock();
    if (*file != nullptr) return kSuccess;
  }
  MemoryFile opened;
  const OpenResult result = OpenMemoryFile(contents.process, contents.descriptor, kDeviceFileName, kTrailerBytes, &opened);
  if (result == OpenResult::kForeign) return kErrorInvalidHandle;
  if (result == OpenResult::kFailed) return kErrorOutOfMemory;
  if (result != OpenResult::kOpened) return kErrorMapFailed;
  return KnowFile(all, std::move(opened), &nonce, file);
}

// The mutex must be held.
Status MapRange(Imports& all, Device& device, std::shared_ptr<ForeignFile> file, std::uint64_t offset, std::uint64_t bytes,
                std::uint64_t* address) {
  const std::uint64_t range_bytes = file->header().range_bytes;
  if (bytes == 0 || offset % kGranule != 0 || offset > range_bytes || bytes > range_bytes - offset) return kErrorInvalidHandle;
  const std::uint64_t page = PageBytes();
  const std::uint64_t first = offset / page * page;
  ImportedRange range;
  range.mapped_bytes = (offset + bytes + page - 1) / page * page - first;
  range.mapping = file->file().Map(first, range.mapped_bytes);
  if (range.mapping == nullptr) return kErrorMapFailed;
  range.file = std::move(file);
  range.offset = offset;
  range.bytes = bytes;
  range.device = device.ordinal;
  range.count = 1;
  *address = reinterpret_cast<std::uintptr_t>(range.mapping) + (offset - first);
  all.ranges.emplace(*address, std::move(range));
  imported_range_count.fetch_add(1, std::memory_order_release);
  return kSuccess;
}

}  // namespace

ForeignFile::ForeignFile(MemoryFile file, const FileHeader* header)
    : file_(std::move(file)),
      header_(header),
      events_(reinterpret_cast<EventSlot*>(reinterpret_cast<std::uintptr_t>(header) + kHeaderBytes)) {}

ForeignFile::~ForeignFile() { UnmapPages(const_cast<FileHeader*>(header_), kTrailerBytes); }

// Nobody announces that the recording has happened: the same pauses as for a word of memory.
void ForeignEvent::Await(std::uint64_t recording) const {
  constexpr std::chrono::microseconds kLongest{200};
  constexpr int kPollsPerLook = 16;
  std::chrono::microseconds pause{1};
  for (int polls = 1; !IsOver(recording); ++polls) {
    if (polls % kPollsPerLook == 0 && file->HasOwnerEnded()) return;
    std::this_thread::sleep_for(pause);
    pause = std::min(pause + pause / 4 + std::chrono::microseconds{1}, kLongest);
  }
}

Status ExportMemory(std::uint64_t base, IpcMemoryHandle* handle) {
  Device* device = FindDeviceByAddress(base);
  if (device == nullptr) return kErrorInvalidValue;
  std::uint64_t bytes;
  const Status status = device->memory.ShareAllocation(base, &bytes);
  if (status == kSuccess) Pack(ContentsFor(kMemoryMagic, *device, base - device->memory.AddressOf(0), bytes), handle);
  return status;
}

Status ImportMemory(Device& device, const IpcMemoryHandle& handle, std::uint64_t* address) {
  const Contents contents = Unpack(handle);
  if (contents.magic != kMemoryMagic) return kErrorInvalidHandle;
  if (contents.device != device.ordinal) return kErrorInvalidDevice;
  Imports& all = AllImports();
  const std::lock_guard<std::mutex> guard(all.mutex);
  std::shared_ptr<ForeignFile> file;
  const Status status = OpenFile(all, contents, &file);
  if (status != kSuccess) return status;
  for (auto& [start, range] : all.ranges) {
    if (range.file != file || range.offset != contents.place || range.bytes != contents.extent) continue;
    ++range.count;
    *address = start;
    return kSuccess;
  }
  return MapRange(all, device, std::move(file), contents.place, contents.extent, address);
}

Status EndImport(std::uint64_t address) {
  Imports& all = AllImports();
  {
    const std::lock_guard<std::mutex> guard(all.mutex);
    const auto found = all.ranges.find(address);
    if (found == all.ranges.end()) return kErrorInvalidValue;
    if (found->second.count > 1) {
      --found->second.count;
      return kSuccess;
    }
  }
  WaitToFree();
  std::shared_ptr<ForeignFile> file;
  const std::lock_guard<std::mutex> guard(all.mutex);
  const auto found = all.ranges.find(address);
  if (found == all.ranges.end()) return kErrorInvalidValue;
  if (--found->second.count > 0) return kSuccess;
  UnmapPages(found->second.mapping, found->second.mapped_bytes);
  all.ranges.erase(found);
  imported_range_count.fetch_sub(1, std::memory_order_release);
  return kSuccess;
}

Status ExportEvent(Device& device, std::uint32_t slot, std::uint64_t generation, IpcEventHandle* handle) {
  Pack(ContentsFor(kEventMagic, device, slot, generation), handle);
  return kSuccess;
}

Status ImportEvent(const IpcEventHandle& handle, ForeignEvent* event) {
  const Contents contents = Unpack(handle);
  if (contents.magic != kEventMagic || contents.place >= kEventSlots) return kErrorInvalidHandle;
  Imports& all = AllImports();
  const std::lock_guard<std::mutex> guard(all.mutex);
  const Status status = OpenFile(all, contents, &event->file);
  if (status != kSuccess) return status;
  event->slot = &event->file->event(static_cast<std::uint32_t>(contents.place));
  event->generation = contents.extent;
  return kSuccess;
}

Status ExportPool(MemoryPool& pool, int* descriptor) {
  if (!pool.is_exportable) return kErrorNotSupported;
  *descriptor = pool.device->memory.shared_pages().file().Duplicate();
  return *descriptor >= 0 ? kSuccess : kErrorOutOfMemory;
}

Status ImportPool(int descriptor, std::uint64_t* handle) {
  MemoryFile file;
  const OpenResult result = AdoptMemoryFile(descriptor, kTrailerBytes, &file);
  if (result != OpenResult::kOpened) return result == OpenResult::kFailed ? kErrorOutOfMemory : kErrorInvalidHandle;
  Imports& all = AllImports();
  const std::lock_guard<std::mutex> guard(all.mutex);
  std::shared_ptr<ForeignFile> known;
  const Status status = KnowFile(all, std::move(file), nullptr, &known);
  if (status != kSuccess) return status;
  if (IsOwnFile(known->header().nonce)) return kErrorInvalidContext;
  // The form of the handles of handle_table.h, of a kind of its own.
  *handle = ++all.last_pool << 24 | std::uint64_t{4} << 20;
  all.pools.emplace(*handle, std::move(known));
  return kSuccess;
}

bool EndImportedPool(std::uint64_t handle) {
  Imports& all = AllImports();
  const std::lock_guard<std::mutex> guard(all.mutex);
  return all.pools.erase(handle) == 1;
}

Status ExportPoolMemory(std::uint64_t address, PoolPointerData* data) {
  Device* device = FindDeviceByAddress(address);
  PoolAllocation allocation;
  if (device == nullptr || !FindPoolAllocation(*device, address, &allocation) || allocation.start != address) return kErrorInvalidValue;
  if (!allocation.pool->is_exportable) return kErrorNotSupported;
  Pack(ContentsFor(kPoolMemoryMagic, *device, address - device->memory.AddressOf(0), allocation.bytes), data);
  return kSuccess;
}

Status ImportPoolMemory(Device& device, std::uint64_t pool, const PoolPointerData& data, std::uint64_t* address) {
  const Contents contents = Unpack(data);
  Imports& all = AllImports();
  const std::lock_guard<std::mutex> guard(all.mutex);
  const auto found = all.pools.find(pool);
  if (found == all.pools.end() || contents.magic != kPoolMemoryMagic) return kErrorInvalidValue;
  const FileHeader& header = found->second->header();
  if (std::memcmp(contents.nonce, header.nonce, sizeof header.nonce) != 0) return kErrorInvalidValue;
  return MapRange(all, device, found->second, contents.place, contents.extent, address);
}

bool FindImportedRange(std::uint64_t address, ImportedRangeInfo* info) {
  if (imported_range_count.load(std::memory_order_acquire) == 0) return false;
  Imports& all = AllImports();
  const std::lock_guard<std::mutex> guard(all.mutex);
  auto found = all.ranges.upper_bound(address);
  if (found == all.ranges.begin()) return false;
  --found;
  if (address - found->first >= found->second.bytes) return false;
  *info = {found->second.device, found->first, found->second.bytes};
  return true;
}

namespace calls {

Status IpcGetMemHandle(IpcMemoryHandle* handle, DevicePointer pointer) {
  if (!IsInitialized()) return kErrorNotInitialized;
  return handle != nullptr ? ExportMemory(pointer, handle) : kErrorInvalidValue;
}

Status IpcOpenMemHandle(DevicePointer* pointer, IpcMemoryHandle handle, unsigned flags) {
  Device* device;
  Status status = RequireDevice(&device);
  if (status != kSuccess) return status;
  if (pointer == nullptr || flags != kIpcLazyPeerAccess) return kErrorInvalidValue;
  std::uint64_t address;
  status = ImportMemory(*device, handle, &address);
  if (status == kSuccess) *pointer = address;
  return status;
}

Status IpcCloseMemHandle(DevicePointer pointer) { return IsInitialized() ? EndImport(pointer) : kErrorNotInitialized; }

Status MemPoolExportToShareableHandle(void* handle, Pool pool, int type, unsigned long long flags) {
  MemoryPool* state;
  Status status = ResolvePool(pool, &state);
  if (status != kSuccess) return status;
  if (handle == nullptr || type != kHandleTypePosixDescriptor || flags != 0) return kErrorInvalidValue;
  return ExportPool(*state, static_cast<int*>(handle));
}

Status MemPoolImportFromShareableHandle(Pool* pool, void* handle, int type, unsigned long long flags) {
  if (!IsInitialized()) return kErrorNotInitialized;
  if (pool == nullptr || type != kHandleTypePosixDescriptor || flags != 0) return kErrorInvalidValue;
  std::uint64_t bits;
  const Status status = ImportPool(static_cast<int>(reinterpret_cast<std::uintptr_t>(handle)), &bits);
  if (status == kSuccess) *pool = reinterpret_cast<Pool>(static_cast<std::uintptr_t>(bits));
  return status;
}

Status MemPoolExportPointer(PoolPointerData* data, DevicePointer pointer) {
  if (!IsInitialized()) return kErrorNotInitialized;
  return data != nullptr ? ExportPoolMemory(pointer, data) : kErrorInvalidValue;
}

Status MemPoolImportPointer(DevicePointer* pointer, Pool pool, PoolPointerData* data) {
  Device* device;
  Status status = RequireDevice(&device);
  if (status != kSuccess) return status;
  if (pointer == nullptr || data == nullptr) return kErrorInvalidValue;
  std::uint64_t address;
  status = ImportPoolMemory(*device, HandleBits(pool), *data, &address);
  if (status == kSuccess) *pointer = address;
  return status;
}

}  // namespace calls
}  // namespace cistern::software
