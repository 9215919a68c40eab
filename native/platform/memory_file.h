// Files in memory that other processes can map (memfd_create), and locks that end with a process.
//
//     owner                                          another process of the same user
//     CreateMemoryFile ──► descriptor N              OpenMemoryFile ──► /proc/<owner>/fd/N
//     LockByte(0), as long as it lives  ◄──────────  IsLocked(0)
//
// Such a file has no name in any file system: it ends with the last descriptor and the last mapping
// of it, in whatever way processes end. Its size is sealed, so that nobody who maps it can be hit by
// SIGBUS. Locks belong to the open file (F_OFD_SETLK): the kernel releases them when their holder
// ends, once none of its threads runs any more.
//
// Only Linux has such files (kHasMemoryFiles). Elsewhere none can be created or opened.
#ifndef CISTERN_PLATFORM_MEMORY_FILE_H_
#define CISTERN_PLATFORM_MEMORY_FILE_H_

#include <cstddef>
#include <cstdint>
#include <optional>

namespace cistern {

#ifdef __linux__
inline constexpr bool kHasMemoryFiles = true;
#else
inline constexpr bool kHasMemoryFiles = false;
#endif

// An open file, or none.
class MemoryFile {
 public:
  MemoryFile() = default;
  explicit MemoryFile(int descriptor) : descriptor_(descriptor) {}
  MemoryFile(MemoryFile&& other) noexcept : descriptor_(other.Release()) {}
  MemoryFile& operator=(MemoryFile&& other) noexcept;
  ~MemoryFile();

  bool IsOpen() const { return descriptor_ >= 0; }
  int descriptor() const { return descriptor_; }

  // Takes an exclusive lock of one byte, which other open files of the same memory see. False if one
  // of them has it.
  bool Lock(std::uint64_t byte) const;
  void Unlock(std::uint64_t byte) const;
  // Whether another open file has the byte locked.
  bool IsLocked(std::uint64_t byte) const;

  // -1 if that is unknown.
  std::int64_t Size() const;

  // Null if the kernel refuses. UnmapPages ends it.
  void* Map(std::uint64_t offset, std::uint64_t bytes) const;

  // The next four take whole pages.
  // Replaces what is mapped there; false if the kernel refuses.
  bool MapAt(std::uint64_t address, std::uint64_t offset, std::uint64_t bytes) const;
  // Replaces what is mapped there by pages of a sparse mapping; false if the kernel refuses.
  static bool MapSparseAt(std::uint64_t address, std::uint64_t bytes);
  // Copies private memory to the offset, without the pages that have no contents: those would take
  // memory here. False if there is not enough.
  bool WriteTouched(std::uint64_t address, std::uint64_t offset, std::uint64_t bytes) const;
  // Copies what was written within the range of the file to memory; false if that fails. The rest of the memory stays as it is.
  bool ReadWritten(std::uint64_t offset, std::uint64_t address, std::uint64_t bytes) const;
  // Gives the memory of pages back.
  void Discard(std::uint64_t offset, std::uint64_t bytes) const;

  // A new descriptor of the same open file, or -1.
  int Duplicate() const;

 private:
  bool Write(std::uint64_t address, std::uint64_t offset, std::uint64_t bytes) const;
  int Release() {
    const int descriptor = descriptor_;
    descriptor_ = -1;
    return descriptor;
  }

  int descriptor_ = -1;
};

// A file of zeros, of a size that never changes. Not open if the kernel refuses.
MemoryFile CreateMemoryFile(const char* name, std::uint64_t bytes);

enum class OpenResult {
  kOpened,
  kGone,       // the process, or its descriptor, has ended, or cannot be seen from here
  kForbidden,  // the process is another user's, or may not be looked into
  kForeign,    // the descriptor is something else
  kFailed,     // the system has no descriptor or no memory left
};

// Opens the file that a process has under a descriptor, if it was created with this name and has at
// least so many bytes.
OpenResult OpenMemoryFile(std::int32_t process, std::int32_t descriptor, const char* name, std::uint64_t least_bytes, MemoryFile* file);
// Opens a file that another process has sent once more: its descriptor here would share the other
// process's locks. kOpened, kForeign or kFailed.
OpenResult AdoptMemoryFile(int descriptor, std::uint64_t least_bytes, MemoryFile* file);
// A descriptor of another process, of any kind. Needs the right to trace the process.
OpenResult FetchDescriptor(std::int32_t process, std::int32_t descriptor, int* fetched);

// False if the system has no random numbers.
bool FillRandom(void* data, std::size_t bytes);

std::int32_t CurrentProcessId();
// When a process started, in ticks since the system did; 0 if there is no such process, and nothing
// if the system does not tell.
std::optional<std::uint64_t> StartOfProcess(std::int32_t process);
// Whether nothing of a process is left, so that its device's memory is no longer in use by it. False
// as long as that is not certain.
bool HasProcessEnded(std::int32_t process, std::uint64_t start);

}  // namespace cistern

#endif  // CISTERN_PLATFORM_MEMORY_FILE_H_
