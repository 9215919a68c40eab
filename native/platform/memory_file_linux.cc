#ifdef __linux__

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "platform/memory.h"
#include "platform/memory_file.h"

namespace cistern {
namespace {

// Of newer kernels and C libraries than cistern needs.
constexpr unsigned kNoExecution = 8;   // MFD_NOEXEC_SEAL
constexpr long kPidfdOpenCall = 434;   // pidfd_open
constexpr long kPidfdGetFdCall = 438;  // pidfd_getfd
constexpr int kSizeSeals = F_SEAL_SHRINK | F_SEAL_GROW;

std::string PathOf(std::int32_t process, std::int32_t descriptor) {
  return "/proc/" + std::to_string(process) + "/fd/" + std::to_string(descriptor);
}

bool MeansGone(int error) { return error == ENOENT || error == ESRCH; }

// Whether no thread of a process runs any more. One whose parent has not taken notice is still listed.
bool HasNoThreads(std::int32_t process) {
  const int handle = static_cast<int>(syscall(kPidfdOpenCall, process, 0));
  if (handle < 0) return errno == ESRCH;
  struct pollfd ended = {handle, POLLIN, 0};
  const bool has_ended = poll(&ended, 1, 0) > 0;
  close(handle);
  return has_ended;
}

OpenResult ResultOf(std::int32_t process, int error) {
  if (MeansGone(error)) return OpenResult::kGone;
  if (error != EACCES && error != EPERM) return OpenResult::kFailed;
  // What is left of a process that has ended belongs to the system.
  return HasNoThreads(process) ? OpenResult::kGone : OpenResult::kForbidden;
}

bool SetLock(int descriptor, int command, std::uint64_t byte, short type, short* found) {
  struct flock lock = {};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  lock.l_start = static_cast<off_t>(byte);
  lock.l_len = 1;
  const bool is_done = fcntl(descriptor, command, &lock) == 0;
  if (found != nullptr) *found = lock.l_type;
  return is_done;
}

bool HasSize(int descriptor, std::uint64_t least_bytes) {
  struct stat status;
  const int seals = fcntl(descriptor, F_GET_SEALS);
  return seals >= 0 && (seals & kSizeSeals) == kSizeSeals && fstat(descriptor, &status) == 0 &&
         static_cast<std::uint64_t>(status.st_size) >= least_bytes;
}

}  // namespace

MemoryFile& MemoryFile::operator=(MemoryFile&& other) noexcept {
  if (this != &other) {
    if (IsOpen()) close(descriptor_);
    descriptor_ = other.Release();
  }
  return *this;
}

MemoryFile::~MemoryFile() {
  if (IsOpen()) close(descriptor_);
}

bool MemoryFile::Lock(std::uint64_t byte) const { return SetLock(descriptor_, F_OFD_SETLK, byte, F_WRLCK, nullptr); }

void MemoryFile::Unlock(std::uint64_t byte) const { SetLock(descriptor_, F_OFD_SETLK, byte, F_UNLCK, nullptr); }

bool MemoryFile::IsLocked(std::uint64_t byte) const {
  short found = F_UNLCK;
  return !SetLock(descriptor_, F_OFD_GETLK, byte, F_WRLCK, &found) || found != F_UNLCK;
}

void* MemoryFile::Map(std::uint64_t offset, std::uint64_t bytes) const {
  void* mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor_, static_cast<off_t>(offset));
  if (mapped == MAP_FAILED) return nullptr;
  madvise(mapped, bytes, MADV_DONTDUMP);
  return mapped;
}

bool MemoryFile::MapAt(std::uint64_t address, std::uint64_t offset, std::uint64_t bytes) const {
  constexpr int kShared = MAP_SHARED | MAP_FIXED;
  void* place = reinterpret_cast<void*>(address);
  if (mmap(place, bytes, PROT_READ | PROT_WRITE, kShared, descriptor_, static_cast<off_t>(offset)) == MAP_FAILED) return false;
  madvise(place, bytes, MADV_DONTDUMP);
  return true;
}

bool MemoryFile::MapSparseAt(std::uint64_t address, std::uint64_t bytes) {
  constexpr int kSparse = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
  void* place = reinterpret_cast<void*>(address);
  if (mmap(place, bytes, PROT_READ | PROT_WRITE, kSparse, -1, 0) == MAP_FAILED) return false;
  madvise(place, bytes, MADV_DONTDUMP);
  return true;
}

bool MemoryFile::WriteTouched(std::uint64_t address, std::uint64_t offset, std::uint64_t bytes) const {
  constexpr std::uint64_t kHasContents = std::uint64_t{3} << 62;  // present, or swapped out
  constexpr std::uint64_t kEntriesAtOnce = 4096;
  const std::uint64_t page = PageBytes();
  const std::uint64_t end = address + bytes;
  const auto write = [&](std::uint64_t from, std::uint64_t to) { return Write(from, offset + (from - (end - bytes)), to - from); };
  const MemoryFile map(open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC));
  if (!map.IsOpen()) return write(address, end);
  std::vector<std::uint64_t> entries(std::min(kEntriesAtOnce, bytes / page));
  std::uint64_t touched = end;  // where the touched pages that are not yet copied begin
  while (address < end) {
    const std::uint64_t count = std::min<std::uint64_t>(entries.size(), (end - address) / page);
    const ssize_t read = pread(map.descriptor(), entries.data(), count * sizeof entries[0], static_cast<off_t>(address / page * 8));
    if (read != static_cast<ssize_t>(count * sizeof entries[0])) return write(end - bytes, end);
    for (std::uint64_t index = 0; index < count; ++index, address += page) {
      const bool has_contents = (entries[index] & kHasContents) != 0;
      if (has_contents && touched == end) touched = address;
      if (has_contents || touched == end) continue;
      if (!write(touched, address)) return false;
      touched = end;
    }
  }
  return touched == end || write(touched, end);
}

bool MemoryFile::Write(std::uint64_t address, std::uint64_t offset, std::uint64_t bytes) const {
  while (bytes > 0) {
    const ssize_t written = pwrite(descriptor_, reinterpret_cast<const void*>(address), bytes, static_cast<off_t>(offset));
    if (written <= 0) return false;
    address += static_cast<std::uint64_t>(written);
    offset += static_cast<std::uint64_t>(written);
    bytes -= static_cast<std::uint64_t>(written);
  }
  return true;
}

bool MemoryFile::ReadWritten(std::uint64_t offset, std::uint64_t address, std::uint64_t bytes) const {
  const off_t end = static_cast<off_t>(offset + bytes);
  for (off_t at = static_cast<off_t>(offset); at < end;) {
    at = lseek(descriptor_, at, SEEK_DATA);
    if (at < 0) return errno == ENXIO;  // there is nothing more
    const off_t to = std::min(lseek(descriptor_, at, SEEK_HOLE), end);
    while (at < to) {
      void* place = reinterpret_cast<void*>(address + static_cast<std::uint64_t>(at) - offset);
      const ssize_t read = pread(descriptor_, place, static_cast<std::size_t>(to - at), at);
      if (read <= 0) return false;
      at += read;
    }
  }
  return true;
}

void MemoryFile::Discard(std::uint64_t offset, std::uint64_t bytes) const {
  fallocate(descriptor_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset), static_cast<off_t>(bytes));
}

int MemoryFile::Duplicate() const { return fcntl(descriptor_, F_DUPFD_CLOEXEC, 0); }

std::int64_t MemoryFile::Size() const { return lseek(descriptor_, 0, SEEK_END); }

MemoryFile CreateMemoryFile(const char* name, std::uint64_t bytes) {
  constexpr unsigned kFlags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
  int descriptor = memfd_create(name, kFlags | kNoExecution);
  if (descriptor < 0 && errno == EINVAL) descriptor = memfd_create(name, kFlags);
  MemoryFile file(descriptor);
  const bool is_ready = file.IsOpen() && ftruncate(descriptor, static_cast<off_t>(bytes)) == 0 &&
                        fcntl(descriptor, F_ADD_SEALS, kSizeSeals | F_SEAL_SEAL) == 0;
  return is_ready ? std::move(file) : MemoryFile();
}

OpenResult OpenMemoryFile(std::int32_t process, std::int32_t descriptor, const char* name, std::uint64_t least_bytes, MemoryFile* file) {
  if (process <= 0 || descriptor < 0) return OpenResult::kForeign;
  const std::string path = PathOf(process, descriptor);
  // Opening a file of unknown kind may block, or do something.
  char target[64];
  const ssize_t length = readlink(path.c_str(), target, sizeof target - 1);
  if (length < 0) return ResultOf(process, errno);
  target[length] = '\0';
  if (std::string(target).rfind("/memfd:" + std::string(name), 0) != 0) return OpenResult::kForeign;
  *file = MemoryFile(open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!file->IsOpen()) return ResultOf(process, errno);
  return HasSize(file->descriptor(), least_bytes) ? OpenResult::kOpened : OpenResult::kForeign;
}

OpenResult AdoptMemoryFile(int descriptor, std::uint64_t least_bytes, MemoryFile* file) {
  if (!HasSize(descriptor, least_bytes)) return OpenResult::kForeign;
  const std::string path = "/proc/self/fd/" + std::to_string(descriptor);
  *file = MemoryFile(open(path.c_str(), O_RDWR | O_CLOEXEC));
  return file->IsOpen() ? OpenResult::kOpened : OpenResult::kFailed;
}

OpenResult FetchDescriptor(std::int32_t process, std::int32_t descriptor, int* fetched) {
  const int handle = static_cast<int>(syscall(kPidfdOpenCall, process, 0));
  if (handle < 0) return ResultOf(process, errno);
  *fetched = static_cast<int>(syscall(kPidfdGetFdCall, handle, descriptor, 0));
  OpenResult result = OpenResult::kOpened;
  if (*fetched < 0) result = errno == EBADF ? OpenResult::kGone : ResultOf(process, errno);
  close(handle);
  return result;
}

bool FillRandom(void* data, std::size_t bytes) { return getrandom(data, bytes, 0) == static_cast<ssize_t>(bytes); }

std::int32_t CurrentProcessId() { return getpid(); }

std::optional<std::uint64_t> StartOfProcess(std::int32_t process) {
  const std::string path = "/proc/" + std::to_string(process) + "/stat";
  const MemoryFile file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  char text[1024];
  const ssize_t length = file.IsOpen() ? read(file.descriptor(), text, sizeof text - 1) : -1;
  if (length < 0) return MeansGone(errno) ? std::optional<std::uint64_t>(0) : std::nullopt;
  text[length] = '\0';
  // The name of the program, in parentheses, may contain anything. The start is the 22nd field, and
  // the 20th after it.
  const char* field = std::strrchr(text, ')');
  for (int skipped = 0; field != nullptr && skipped < 20; ++skipped) field = std::strchr(field + 1, ' ');
  return field != nullptr ? std::optional<std::uint64_t>(std::strtoull(field, nullptr, 10)) : std::nullopt;
}

bool HasProcessEnded(std::int32_t process, std::uint64_t start) {
  const std::optional<std::uint64_t> found = StartOfProcess(process);
  return found && (*found != start || HasNoThreads(process));
}

}  // namespace cistern

#endif
