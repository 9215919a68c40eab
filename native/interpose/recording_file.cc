#include "interpose/recording_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstring>

namespace cistern::interpose {
namespace {

constexpr std::uint64_t kRecordBytes = 24;
// The longest block that a reader takes.
constexpr std::uint64_t kClaimedBytes = 2730 * kRecordBytes;
// How far the file reaches behind the beginning of the open block: one record less than claimed.
constexpr std::uint64_t kReach = kClaimedBytes;
// The head of the next block fits behind the last record.
constexpr std::uint64_t kMostPayload = kReach - 2 * kRecordBytes;
constexpr std::uint32_t kMarker = 0x4b4c4243;
constexpr std::uint64_t kMostNanoseconds = 4'000'000'000;  // a record's time is 32 bits
constexpr int kPopulateWrite = 23;                         // MADV_POPULATE_WRITE of Linux 5.14; older ones do not know it
constexpr std::uint64_t kMapBytes = std::uint64_t{16} << 20;

struct CrcTables {
  std::uint32_t rows[8][256];
};

constexpr CrcTables MakeTables() {
  CrcTables tables = {};
  for (std::uint32_t i = 0; i < 256; i++) {
    std::uint32_t value = i;
    for (int bit = 0; bit < 8; bit++) value = (value >> 1) ^ ((value & 1) != 0 ? 0xedb88320u : 0);
    tables.rows[0][i] = value;
  }
  for (int row = 1; row < 8; row++) {
    for (int i = 0; i < 256; i++) {
      const std::uint32_t before = tables.rows[row - 1][i];
      tables.rows[row][i] = (before >> 8) ^ tables.rows[0][before & 0xff];
    }
  }
  return tables;
}

constexpr CrcTables kCrc = MakeTables();

// CRC-32 as zlib has it, of a multiple of four bytes, eight at a time.
std::uint32_t Crc32(const unsigned char* bytes, std::uint64_t length) {
  std::uint32_t crc = ~0u;
  for (; length >= 8; bytes += 8, length -= 8) {
    std::uint32_t low, high;
    std::memcpy(&low, bytes, 4);
    std::memcpy(&high, bytes + 4, 4);
    low ^= crc;
    crc = kCrc.rows[7][low & 0xff] ^ kCrc.rows[6][low >> 8 & 0xff] ^ kCrc.rows[5][low >> 16 & 0xff] ^ kCrc.rows[4][low >> 24] ^
          kCrc.rows[3][high & 0xff] ^ kCrc.rows[2][high >> 8 & 0xff] ^ kCrc.rows[1][high >> 16 & 0xff] ^ kCrc.rows[0][high >> 24];
  }
  for (; length > 0; bytes++, length--) crc = (crc >> 8) ^ kCrc.rows[0][(crc ^ *bytes) & 0xff];
  return ~crc;
}

template <typename T>
void Store(unsigned char* at, T value) {
  std::memcpy(at, &value, sizeof(T));
}

// Everything before is in memory when this is.
void StoreLast(unsigned char* at, std::uint32_t value) {
  std::atomic_thread_fence(std::memory_order_release);
  reinterpret_cast<std::atomic<std::uint32_t>*>(at)->store(value, std::memory_order_release);
}

void WriteHead(unsigned char* head, std::uint64_t time) {
  Store<std::uint32_t>(head + 4, kClaimedBytes);
  Store<std::uint32_t>(head + 8, 0);
  Store<std::uint32_t>(head + 12, 0);
  Store<double>(head + 16, static_cast<double>(time));
  StoreLast(head, kMarker);
}

bool WriteAll(int file, const void* bytes, std::size_t length, std::uint64_t offset) {
  const char* at = static_cast<const char*>(bytes);
  while (length > 0) {
    const ssize_t written = pwrite(file, at, length, static_cast<off_t>(offset));
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    at += written;
    offset += static_cast<std::uint64_t>(written);
    length -= static_cast<std::size_t>(written);
  }
  return true;
}

}  // namespace

bool RecordingFile::Create(const char* path, bool may_exist) {
  Abandon();
  if (std::strlen(path) >= sizeof(path_)) return errno = ENAMETOOLONG, false;
  std::strcpy(path_, path);
  struct stat before;
  if (stat(path, &before) == 0 && !(may_exist && S_ISREG(before.st_mode))) return errno = EEXIST, false;
  // A process may be killed at any moment, so the file has its name once it has its header. It replaces one that there is, which is not
  // emptied: another process may have that mapped, and a store behind the end of a file ends a process.
  char begun[sizeof(path_) + 32];
  snprintf(begun, sizeof(begun), "%s.%d.new", path, static_cast<int>(getpid()));
  unlink(begun);
  const int file = open(begun, O_RDWR | O_CREAT | O_CLOEXEC | O_NOCTTY | O_EXCL, 0644);
  if (file < 0) return false;
  struct stat status;
  struct timespec now, clock;
  clock_gettime(CLOCK_REALTIME, &now);
  clock_gettime(CLOCK_MONOTONIC, &clock);
  struct tm local = {};
  localtime_r(&now.tv_sec, &local);
  char text[512];
  std::memset(text, ' ', sizeof(text));
  std::memcpy(text, "cistern\n\1\0\0", 12);
  char json[400];
  const int length =
      snprintf(json, sizeof(json),
               "{\"startedAt\":%lld,\"utcOffsetMinutes\":%ld,\"process\":%d,\"writer\":\"cistern " CISTERN_VERSION "\",\"clock\":%lld}",
               static_cast<long long>(now.tv_sec) * 1000 + now.tv_nsec / 1'000'000, local.tm_gmtoff / 60, static_cast<int>(getpid()),
               static_cast<long long>(clock.tv_sec) * 1'000'000'000 + clock.tv_nsec);
  Store<std::uint32_t>(reinterpret_cast<unsigned char*>(text) + 12, static_cast<std::uint32_t>(length));
  std::memset(text + 16, 0, 8);
  std::memcpy(text + 24, json, static_cast<std::size_t>(length));
  offset_ = kRecordBytes + (static_cast<std::uint64_t>(length) + kRecordBytes - 1) / kRecordBytes * kRecordBytes;
  const bool is_written = fstat(file, &status) == 0 && WriteAll(file, text, offset_, 0) && rename(begun, path) == 0;
  const int error = errno;
  if (is_written) {
    device_ = status.st_dev;
    inode_ = status.st_ino;
    is_sealed_ = true;
  } else {
    unlink(begun);
  }
  close(file);
  errno = error;
  return is_written;
}

// The file by its path, if it is still the same one.
int RecordingFile::Reopen() const {
  const int file = open(path_, O_RDWR | O_CLOEXEC | O_NOCTTY);
  if (file < 0) return -1;
  struct stat status;
  if (fstat(file, &status) == 0 && status.st_dev == device_ && status.st_ino == inode_) return file;
  close(file);
  errno = ENOENT;
  return -1;
}

// Makes the file reach far enough for the open block, and maps it.
bool RecordingFile::Extend() {
  const int file = Reopen();
  if (file < 0) return false;
  static const auto page = static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
  int error = posix_fallocate(file, static_cast<off_t>(offset_), static_cast<off_t>(kReach));
  if (error == 0 && (map_ == nullptr || offset_ + kReach + page > map_offset_ + kMapBytes)) {
    if (map_ != nullptr) munmap(map_, kMapBytes);
    map_offset_ = offset_ / page * page;
    void* memory = mmap(nullptr, kMapBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, static_cast<off_t>(map_offset_));
    map_ = memory == MAP_FAILED ? nullptr : static_cast<unsigned char*>(memory);
    if (map_ == nullptr) error = errno;
  }
  close(file);
  // Cheaper than a page at a time. A page that cannot be had is an error here, and would be a signal later.
  const std::uint64_t begin = (offset_ - map_offset_) / page * page;
  const std::uint64_t end = (offset_ - map_offset_ + kReach + page - 1) / page * page;
  if (error == 0 && madvise(map_ + begin, end - begin, kPopulateWrite) != 0 && errno == EFAULT) error = ENOSPC;
  errno = error;
  return error == 0;
}

bool RecordingFile::BeginBlock(std::uint64_t time) {
  unsigned char head[kRecordBytes];
  WriteHead(head, time);
  const int file = Reopen();
  if (file < 0) return false;
  const bool is_written = WriteAll(file, head, sizeof(head), offset_);
  const int error = errno;
  close(file);
  errno = error;
  if (!is_written || !Extend()) return false;
  is_sealed_ = false;
  block_ = At(offset_);
  block_time_ = time;
  used_ = 0;
  return true;
}

// Gives the open block its CRC and its length, which makes it whole.
void RecordingFile::Finish() {
  Store<std::uint32_t>(block_ + 8, Crc32(block_ + 12, kRecordBytes - 12 + used_));
  StoreLast(block_ + 4, static_cast<std::uint32_t>(used_));
}

bool RecordingFile::NextBlock(std::uint64_t time) {
  if (used_ == 0) {
    // Nobody looks at the time of a block without records.
    block_time_ = time;
    Store<double>(block_ + 16, static_cast<double>(time));
    return true;
  }
  WriteHead(block_ + kRecordBytes + used_, time);
  Finish();
  offset_ += kRecordBytes + used_;
  used_ = 0;
  block_time_ = time;
  if (Extend()) {
    block_ = At(offset_);
    return true;
  }
  // The file ends with the head of a block without records, which a reader takes for a cut-off one: cut it off.
  const int error = errno;
  const int file = Reopen();
  if (file >= 0) {
    if (ftruncate(file, static_cast<off_t>(offset_)) != 0) errno = error;
    close(file);
  }
  Abandon();
  errno = error;
  return false;
}

// Where the next record goes, with its first fields; null if the file cannot take it.
unsigned char* RecordingFile::BeginRecord(std::uint32_t head, std::uint64_t time, double first, std::uint64_t text_bytes) {
  if (block_ == nullptr && !(is_sealed_ && BeginBlock(time))) return nullptr;
  const bool fits = used_ + kRecordBytes + text_bytes <= kMostPayload && time - block_time_ <= kMostNanoseconds;
  if (!fits && !NextBlock(time)) return nullptr;
  unsigned char* record = block_ + kRecordBytes + used_;
  Store<std::uint32_t>(record, head);
  Store<std::uint32_t>(record + 4, static_cast<std::uint32_t>(time - block_time_));
  Store<double>(record + 8, first);
  return record;
}

void RecordingFile::EndRecord(std::uint64_t text_bytes) {
  used_ += kRecordBytes + text_bytes;
  StoreLast(block_ + 12, *reinterpret_cast<std::uint32_t*>(block_ + 12) + 1);
}

bool RecordingFile::Put(std::uint32_t head, std::uint64_t time, double first, double second) {
  unsigned char* record = BeginRecord(head, time, first, 0);
  if (record == nullptr) return false;
  Store<double>(record + 16, second);
  EndRecord(0);
  return true;
}

bool RecordingFile::Define(std::uint32_t head, std::uint64_t time, double index, const char* text, std::size_t length) {
  if (length > kMostTextBytes) {
    length = kMostTextBytes;
    while ((text[length] & 0xc0) == 0x80) length--;  // not within a character
  }
  const std::uint64_t padded = (length + kRecordBytes - 1) / kRecordBytes * kRecordBytes;
  unsigned char* record = BeginRecord(head, time, index, padded);
  if (record == nullptr) return false;
  Store<double>(record + 16, static_cast<double>(length));
  std::memcpy(record + kRecordBytes, text, length);
  std::memset(record + kRecordBytes + length, 0, padded - length);
  text_offset_ = offset_ + 2 * kRecordBytes + used_;
  EndRecord(padded);
  return true;
}

std::size_t RecordingFile::ReadText(std::uint64_t offset, char* text, std::size_t length) const {
  const int file = Reopen();
  if (file < 0) return 0;
  const ssize_t bytes = pread(file, text, length, static_cast<off_t>(offset));
  close(file);
  return bytes > 0 ? static_cast<std::size_t>(bytes) : 0;
}

bool RecordingFile::Retract(std::uint64_t end) {
  if (block_ == nullptr || used_ == 0 || end != offset_ + used_) return false;
  StoreLast(block_ + 12, *reinterpret_cast<std::uint32_t*>(block_ + 12) - 1);
  used_ -= kRecordBytes;
  return true;
}

void RecordingFile::Seal() {
  if (block_ == nullptr) return;
  const int file = Reopen();
  if (file < 0) return;
  const std::uint64_t end = used_ == 0 ? offset_ : offset_ + kRecordBytes + used_;
  if (ftruncate(file, static_cast<off_t>(end)) == 0) {
    if (used_ > 0) Finish();
    offset_ = end;
    block_ = nullptr;
    is_sealed_ = true;
    // The next block may be anywhere in a page that is no longer part of the file.
    munmap(map_, kMapBytes);
    map_ = nullptr;
  }
  close(file);
}

void RecordingFile::Abandon() {
  if (map_ != nullptr) munmap(map_, kMapBytes);
  map_ = nullptr;
  block_ = nullptr;
  is_sealed_ = false;
}

}  // namespace cistern::interpose
