#include "strict_driver/device_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <iterator>

namespace cistern::strict {
namespace {

constexpr std::size_t kLargestShared = std::size_t{1} << 20;

// Copies what was ever written to a file, of which there is a view, to the same places of another.
void CopyContents(int from, const char* view, std::size_t bytes, int to) {
  for (off_t at = 0; (at = lseek(from, at, SEEK_DATA)) >= 0 && at < static_cast<off_t>(bytes);) {
    const off_t end = lseek(from, at, SEEK_HOLE);
    while (at < end) {
      const ssize_t written = pwrite(to, view + at, static_cast<std::size_t>(end - at), at);
      if (written <= 0) std::abort();
      at += written;
    }
  }
}

}  // namespace

void DeviceMemory::Open(std::size_t bytes) {
  total_ = bytes / kGranule * kGranule;
  addresses_ = 4 * total_;
  file_ = memfd_create("strict-driver", MFD_CLOEXEC);
  if (file_ < 0 || ftruncate(file_, static_cast<off_t>(addresses_)) != 0) std::abort();
  void* reserved = mmap(nullptr, addresses_ + kGranule, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  void* alias = mmap(nullptr, addresses_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file_, 0);
  if (reserved == MAP_FAILED || alias == MAP_FAILED) std::abort();
  base_ = reinterpret_cast<char*>(RoundUp(reinterpret_cast<std::uintptr_t>(reserved), kGranule));
  alias_ = static_cast<char*>(alias);
  holes_[0] = addresses_;
}

bool DeviceMemory::TakeGranules(std::size_t bytes, std::size_t* offset) {
  if (used_ + bytes > total_ || !TakeFirst(holes_, bytes, offset)) return false;
  used_ += bytes;
  return true;
}

void DeviceMemory::GiveGranules(std::size_t offset, std::size_t bytes) {
  used_ -= bytes;
  GiveAddresses(start() + offset, bytes);
}

bool DeviceMemory::TryCharge(std::size_t bytes) {
  if (used_ + bytes > total_) return false;
  used_ += bytes;
  return true;
}

bool DeviceMemory::TakeAddresses(std::size_t bytes, std::uintptr_t* address) {
  std::size_t offset;
  if (!TakeFirst(holes_, bytes, &offset)) return false;
  *address = start() + offset;
  return true;
}

void DeviceMemory::GiveAddresses(std::uintptr_t address, std::size_t bytes) {
  const std::size_t offset = address - start();
  Merge(holes_, offset, bytes);
  fallocate(file_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset), static_cast<off_t>(bytes));
}

void DeviceMemory::MapView(char* at, std::size_t offset, std::size_t bytes) const {
  void* view = mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE | MAP_FIXED, file_, static_cast<off_t>(offset));
  if (view == MAP_FAILED) std::abort();
}

void DeviceMemory::MoveOut() {
  moved_ = memfd_create("strict-driver-checkpoint", MFD_CLOEXEC);
  if (moved_ < 0 || ftruncate(moved_, static_cast<off_t>(addresses_)) != 0) std::abort();
  CopyContents(file_, alias_, addresses_, moved_);
  fallocate(file_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, static_cast<off_t>(addresses_));
}

void DeviceMemory::MoveIn() {
  void* view = mmap(nullptr, addresses_, PROT_READ, MAP_SHARED | MAP_NORESERVE, moved_, 0);
  if (view == MAP_FAILED) std::abort();
  CopyContents(moved_, static_cast<const char*>(view), addresses_, file_);
  munmap(view, addresses_);
  close(moved_);
  moved_ = -1;
}

bool DeviceMemory::Take(std::size_t bytes, std::size_t* offset, std::size_t* reserved) {
  if (bytes > total_) return false;
  if (bytes > kLargestShared) {
    *reserved = RoundUp(bytes, kGranule);
    return TakeGranules(*reserved, offset);
  }
  *reserved = RoundUp(bytes, kUnit);
  for (auto& [granule, holes] : shared_granules_) {
    if (TakeFirst(holes, *reserved, offset)) return true;
  }
  std::size_t granule;
  if (!TakeGranules(kGranule, &granule)) return false;
  shared_granules_[granule] = {{granule, kGranule}};
  return TakeFirst(shared_granules_[granule], *reserved, offset);
}

void DeviceMemory::Give(std::size_t offset, std::size_t bytes, std::size_t reserved) {
  if (bytes > kLargestShared) {
    GiveGranules(offset, reserved);
    return;
  }
  const std::size_t granule = offset / kGranule * kGranule;
  Holes& holes = shared_granules_[granule];
  Merge(holes, offset, reserved);
  if (holes.size() == 1 && holes.begin()->second == kGranule) {
    shared_granules_.erase(granule);
    GiveGranules(granule, kGranule);
  }
}

bool DeviceMemory::TakeFirst(Holes& holes, std::size_t bytes, std::size_t* offset) {
  for (auto hole = holes.begin(); hole != holes.end(); ++hole) {
    if (hole->second < bytes) continue;
    *offset = hole->first;
    const std::size_t rest = hole->second - bytes;
    holes.erase(hole);
    if (rest != 0) holes[*offset + bytes] = rest;
    return true;
  }
  return false;
}

void DeviceMemory::Merge(Holes& holes, std::size_t offset, std::size_t bytes) {
  const auto next = holes.lower_bound(offset);
  if (next != holes.end() && offset + bytes == next->first) bytes += next->second;
  if (next != holes.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == offset) {
      offset = before->first;
      bytes += before->second;
    }
  }
  holes.erase(holes.lower_bound(offset), holes.lower_bound(offset + bytes));
  holes[offset] = bytes;
}

}  // namespace cistern::strict
