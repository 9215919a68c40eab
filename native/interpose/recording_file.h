// Writes a recording (src/recording/recording-format.ts) that can be opened at every moment, also after
// the process was killed, without a system call for each record.
//
// The end of the file is mapped into memory. The last block claims to be one record longer than the file, so that
// readers take it for the cut-off block of a process that was killed, and read as many records as its head counts:
//
//     header | block | block | head, records ... , zeros |
//                              ^ claims kClaimedBytes      ^ the file ends here, 24 bytes before what is claimed
//
// A record is stored first and counted afterwards. When a block is full, the head of the next one is stored behind
// it, then the full one's CRC and true length, and only then does the file grow. At the end of the process the
// file is cut after the last record.
//
// No descriptor stays open, because a program may close or replace those that it does not know. The disk's blocks
// are reserved before they are written to, so that a full disk ends the recording and not the process.
#ifndef CISTERN_INTERPOSE_RECORDING_FILE_H_
#define CISTERN_INTERPOSE_RECORDING_FILE_H_

#include <sys/types.h>

#include <cstddef>
#include <cstdint>

namespace cistern::interpose {

// Kinds of records.
enum Kind : std::uint32_t {
  kAllocate = 1,
  kFree = 2,
  kFailure = 3,
  kLabel = 10,
  kThread = 16,
  kStack = 18,
  kAccount = 19,
  kDefineLayer = 32,
  kDefineStream = 33,
  kDefineThread = 34,
  kDefineStack = 36,
  kDefineLabel = 37,
  kDefineAccount = 38,
  kDefineNote = 39,
};

// Longer texts are cut off.
inline constexpr std::size_t kMostTextBytes = 16384;

class RecordingFile {
 public:
  // Creates the file, or empties it. False if that fails; errno then says why.
  bool Create(const char* path, bool may_exist);

  // Adds a record. `time` is in nanoseconds since Create and never falls. False once the file cannot be written:
  // it then ends after the last record that was, and errno says why.
  bool Put(std::uint32_t head, std::uint64_t time, double first, double second);
  // Adds a record that is followed by a text.
  bool Define(std::uint32_t head, std::uint64_t time, double index, const char* text, std::size_t length);

  // Where the text of the last definition begins in the file, and a text from there. Returns how much could be read.
  std::uint64_t text_offset() const { return text_offset_; }
  std::size_t ReadText(std::uint64_t offset, char* text, std::size_t length) const;

  // The end of the records, and the removal of the last one, which must be a record without a text, if they still end there.
  std::uint64_t end() const { return offset_ + used_; }
  bool Retract(std::uint64_t end);

  // Cuts the file after the last record. A later record makes it grow again.
  void Seal();

  // In the child after fork: the file is the parent's.
  void Abandon();

  bool is_open() const { return block_ != nullptr || is_sealed_; }

 private:
  unsigned char* BeginRecord(std::uint32_t head, std::uint64_t time, double first, std::uint64_t text_bytes);
  void EndRecord(std::uint64_t text_bytes);
  bool BeginBlock(std::uint64_t time);
  bool NextBlock(std::uint64_t time);
  bool Extend();
  void Finish();
  unsigned char* At(std::uint64_t offset) { return map_ + (offset - map_offset_); }
  int Reopen() const;

  char path_[4096] = "";
  dev_t device_ = 0;
  ino_t inode_ = 0;
  unsigned char* map_ = nullptr;
  std::uint64_t map_offset_ = 0;
  unsigned char* block_ = nullptr;  // the head of the open block; null if the file is sealed or not open
  std::uint64_t offset_ = 0;        // of the open block, or the file's length
  std::uint64_t used_ = 0;          // bytes of its records
  std::uint64_t block_time_ = 0;
  std::uint64_t text_offset_ = 0;
  bool is_sealed_ = false;
};

}  // namespace cistern::interpose

#endif  // CISTERN_INTERPOSE_RECORDING_FILE_H_
