#include "software/memory_file.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>

namespace cistern {
namespace {

// Of newer kernels and C libraries than cistern needs.
constexpr unsigned kNoExecution = 8;    // MFD_NOEXEC_SEAL
constexpr long kPidfdOpenCall = 434;    // pidfd_open
constexpr long kPidfdGetFdCall = 438;   // pidfd_getfd
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
