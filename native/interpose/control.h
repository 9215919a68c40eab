// The file through which `cistern run` and the processes that it covers know each other: what the command was
// asked for, and what each process has allocated. src/tools/outside/control-file.ts creates it; the two must agree.
#ifndef CISTERN_INTERPOSE_CONTROL_H_
#define CISTERN_INTERPOSE_CONTROL_H_

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace cistern::interpose {

inline constexpr int kMostLimits = 16;
inline constexpr int kMostProcesses = 64;
inline constexpr int kMostLibraries = 256;
inline constexpr std::uint64_t kNoStacks = ~std::uint64_t{0};

// A limit on the memory of devices, and managed memory, that all processes together may allocate.
struct Limit {
  std::uint64_t bytes;
  char name[116];                      // of an account; empty: of everything
  std::atomic<std::uint32_t> is_used;  // it held for some request
};
static_assert(sizeof(Limit) == 128, "src/tools/outside");

// What one process has allocated on devices, in bytes. Limits count managed memory, too.
struct Slot {
  std::atomic<std::uint32_t> process;  // 0: free
  std::atomic<std::uint32_t> has_main_file;
  std::atomic<std::uint64_t> current;
  std::atomic<std::uint64_t> peak;
  std::atomic<std::uint64_t> allocations;
  std::atomic<std::uint64_t> refusals;
  std::atomic<std::uint64_t> by_limit[kMostLimits];
  std::atomic<std::uint64_t> dumps;
  std::atomic<std::uint64_t> managed;
  std::uint64_t reserved[9];
};

// What one library of one process has allocated. The name is there before the process.
struct LibrarySlot {
  std::atomic<std::uint32_t> process;  // 0: not used yet; kNoProcess: of a program that the process has replaced by exec
  std::uint32_t reserved;
  char name[88];
  std::atomic<std::uint64_t> device;  // bytes on devices, and the most of them
  std::atomic<std::uint64_t> device_peak;
  std::atomic<std::uint64_t> host;  // bytes of pinned, registered and managed memory
  std::atomic<std::uint64_t> allocations;
};
inline constexpr std::uint32_t kNoProcess = ~std::uint32_t{0};

struct Control {
  char magic[8];  // "cistrun2"
  std::atomic<std::uint32_t> main_file_is_taken;
  std::uint32_t limit_count;
  std::uint64_t stack_bytes;  // a stack is recorded whenever this much was allocated since the last; kNoStacks: never
  std::atomic<std::uint64_t> libraries_taken;
  char file[4064];  // the absolute path of the recording
  Limit limits[kMostLimits];
  Slot slots[kMostProcesses];
  LibrarySlot libraries[kMostLibraries];
};
static_assert(offsetof(Control, file) == 32 && offsetof(Control, limits) == 4096 && offsetof(Control, slots) == 6144, "src/tools/outside");
static_assert(sizeof(Slot) == 256, "src/tools/outside");
static_assert(sizeof(LibrarySlot) == 128 && offsetof(Control, libraries) == 22528, "src/tools/outside");

// The command's file, or null if the process was not started by `cistern run`. Opened by the first call.
Control* control();

// Which limits hold for an account, as bits.
std::uint32_t LimitsOf(const char* account);

// Counts bytes that are about to be allocated. False, and nothing is counted, if a limit does not allow them;
// `limit` is then its index.
bool Reserve(std::uint64_t bytes, std::uint32_t limits, bool is_managed, int* limit);
// They were allocated, on a device; or they are no longer, or were not after all.
void Reserved();
void Return(std::uint64_t bytes, std::uint32_t limits, bool is_managed);

// The bytes that the limits leave, and the smallest of the limits; both the largest number if there is none.
void Remaining(std::uint32_t limits, std::uint64_t* left, std::uint64_t* smallest);

// The slot of this process: never null, but others only see it if there was a free one.
Slot* OwnSlot();

// A slot of this process for a library; null if there is none left.
LibrarySlot* TakeLibrarySlot(const char* name);
// Those that the process had before it became another program.
void ForgetLibrarySlots();

// In the child after fork: it has allocated nothing.
void ForgetSlot();

}  // namespace cistern::interpose

#endif  // CISTERN_INTERPOSE_CONTROL_H_
