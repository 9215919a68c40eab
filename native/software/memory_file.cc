#include "software/memory_file.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
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

OpenResult ResultOf(int error) { return error == EACCES || error == EPERM ? OpenResult::kForbidden : OpenResult::kGone; }

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
  if (length < 0) return ResultOf(errno);
  target[length] = '\0';
  if (std::string(target).rfind("/memfd:" + std::string(name), 0) != 0) return OpenResult::kForeign;
  *file = MemoryFile(open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!file->IsOpen()) return ResultOf(errno);
  return HasSize(file->descriptor(), least_bytes) ? OpenResult::kOpened : OpenResult::kForeign;
}

OpenResult AdoptMemoryFile(int descriptor, std::uint64_t least_bytes, MemoryFile* file) {
  *file = MemoryFile(fcntl(descriptor, F_DUPFD_CLOEXEC, 0));
  return file->IsOpen() && HasSize(descriptor, least_bytes) ? OpenResult::kOpened : OpenResult::kForeign;
}

OpenResult FetchDescriptor(std::int32_t process, std::int32_t descriptor, int* fetched) {
  const int handle = static_cast<int>(syscall(kPidfdOpenCall, process, 0));
  if (handle < 0) return ResultOf(errno);
  *fetched = static_cast<int>(syscall(kPidfdGetFdCall, handle, descriptor, 0));
  const OpenResult result = *fetched >= 0 ? OpenResult::kOpened : ResultOf(errno);
  close(handle);
  return result;
}

bool FillRandom(void* data, std::size_t bytes) { return getrandom(data, bytes, 0) == static_cast<ssize_t>(bytes); }

std::uint64_t StartOfProcess(std::int32_t process) {
  std::FILE* file = std::fopen(("/proc/" + std::to_string(process) + "/stat").c_str(), "re");
  if (file == nullptr) return 0;
  char text[1024];
  const std::size_t length = std::fread(text, 1, sizeof text - 1, file);
  std::fclose(file);
  text[length] = '\0';
  // The name of the program, in parentheses, may contain anything. The start is the 22nd field, and
  // the 20th after it.
  const char* field = std::strrchr(text, ')');
  for (int skipped = 0; field != nullptr && skipped < 20; ++skipped) field = std::strchr(field + 1, ' ');
  return field != nullptr ? std::strtoull(field, nullptr, 10) : 0;
}

bool HasProcessEnded(std::int32_t process, std::uint64_t start) {
  if (StartOfProcess(process) != start) return true;
  // One whose parent has not taken notice is still listed.
  const int handle = static_cast<int>(syscall(kPidfdOpenCall, process, 0));
  if (handle < 0) return true;
  struct pollfd ended = {handle, POLLIN, 0};
  const bool has_ended = poll(&ended, 1, 0) > 0;
  close(handle);
  return has_ended;
}

}  // namespace cistern
