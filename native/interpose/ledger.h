// Keeps the book of what the process has allocated, holds the limits, and records.
#ifndef CISTERN_INTERPOSE_LEDGER_H_
#define CISTERN_INTERPOSE_LEDGER_H_

#include <cstdint>

#include "interpose/book.h"
#include "interpose/stacks.h"

namespace cistern::interpose {

// Where memory is: a device's number, or one of these.
inline constexpr int kMostDevices = 16;
enum Place : int { kManaged = kMostDevices, kPinned, kRegistered, kImported, kGraph, kPlaceCount };

// No stream.
inline constexpr std::uint64_t kNoStream = ~std::uint64_t{0};

void NameOfPlace(int place, char* name, std::size_t capacity);

// A size as recordings have it, whose numbers are doubles: the exact one is the sum of both.
struct SplitBytes {
  double rounded;
  double rest;
};
SplitBytes Split(std::uint64_t bytes);

// An allocation that the program asks for.
struct Request {
  const char* way;  // the driver's function, as a label; null: none
  int place;
  std::uint64_t bytes;
  std::uint64_t stream;
  void* context;
  std::uint16_t account;
  std::uint32_t limits;  // that hold for it, as bits
};

// Whether the process was started by `cistern run`. If not, nothing is recorded and nothing limited.
bool IsActive();
// Not within a call of the driver that is itself part of an allocation.
bool IsOutermost();

class Nested {
 public:
  Nested();
  ~Nested();
  Nested(const Nested&) = delete;
};

// Asks the limits. False: the request is refused, and the refusal recorded.
bool Admit(const Request& request);
// The driver has failed with the status.
void Fail(const Request& request, int status);
// The driver has allocated: `bytes` if that is more than was asked for. `key` is what it is freed by.
void Add(const Request& request, Class kind, std::uint64_t value, std::uint64_t bytes);

// Something that is about to be freed. If the driver then fails, Restore undoes it.
struct Freed {
  bool is_known;
  Entry entry;
  std::uint64_t stream;
  std::uint64_t end;  // of the recording behind the free
};
Freed Remove(Class kind, std::uint64_t value, std::uint64_t stream = kNoStream);
void Freeing(const Freed& freed, int status);

// Physical memory of virtual addresses, which lives as long as a handle or a mapping of it.
void AddMemory(const Request& request, std::uint64_t handle, bool is_imported);
void RetainMemory(std::uint64_t handle, std::uint64_t address);
// A release that is about to be made: the driver may give the number of the handle out again at once.
struct Releasing {
  std::uint64_t handle;
  std::uint64_t memory;  // 0: unknown
};
Releasing BeginRelease(std::uint64_t handle);
void EndRelease(Releasing releasing, int status);
void MapMemory(std::uint64_t address, std::uint64_t bytes, std::uint64_t handle);
void UnmapMemory(std::uint64_t address, std::uint64_t bytes);

// The place of a driver's pool, or -1.
void SetPoolPlace(void* pool, int place);
int PoolPlace(void* pool);

// A context was destroyed with all that was allocated in it.
void RemoveContext(void* context);

}  // namespace cistern::interpose

#endif  // CISTERN_INTERPOSE_LEDGER_H_
