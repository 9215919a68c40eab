// What the free-space index in C++ (index_functions.cc) needs from a runtime of WebAssembly: a linear
// memory, whose accesses are checked, and a few instructions.
//
// An access beyond the memory would be a fault of the index. It throws instead of touching anything
// else: a comparison for each access, which costs about a quarter of an operation. Pages without access
// around 8 GiB of addresses would make it free, but only a signal handler could turn their fault into
// an error, and a library has no business with the signals of a process that is not its own.
#ifndef CISTERN_SUBALLOCATION_WASM_RUNTIME_H_
#define CISTERN_SUBALLOCATION_WASM_RUNTIME_H_

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <exception>

namespace cistern::suballocation {

using u32 = std::uint32_t;
using s32 = std::int32_t;
using u64 = std::uint64_t;
using s64 = std::int64_t;
using f64 = double;

// The index is broken, and must not be used any more.
class Trap : public std::exception {
 public:
  const char* what() const noexcept override { return "the free-space index read or wrote beyond its memory"; }
};

[[noreturn]] inline void Throw() { throw Trap(); }

constexpr u64 kPageBytes = 65536;
constexpr u32 kMaximumPages = 32768;  // 2 GiB

struct Memory {
  Memory() = default;
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory() { std::free(data); }

  unsigned char* data = nullptr;
  u64 size = 0;  // in bytes
  u32 pages = 0;
};

// Grows by a number of pages of zeros. Returns how many it had before, or -1 as an unsigned number.
inline u32 grow_memory(Memory* memory, u32 pages) {
  const u32 before = memory->pages;
  if (pages > kMaximumPages - before) return ~u32{0};
  const u64 size = memory->size + pages * kPageBytes;
  void* const data = std::realloc(memory->data, static_cast<std::size_t>(size));
  if (data == nullptr) return ~u32{0};
  memory->data = static_cast<unsigned char*>(data);
  std::memset(memory->data + memory->size, 0, static_cast<std::size_t>(size - memory->size));
  memory->size = size;
  memory->pages += pages;
  return before;
}

template <typename Stored, typename Result>
[[gnu::always_inline]] inline Result Load(const Memory* memory, u64 address) {
  if (__builtin_expect(address + sizeof(Stored) > memory->size, 0)) Throw();
  Stored value;
  std::memcpy(&value, memory->data + address, sizeof value);
  return static_cast<Result>(value);
}

template <typename Stored>
[[gnu::always_inline]] inline void Store(Memory* memory, u64 address, Stored value) {
  if (__builtin_expect(address + sizeof(Stored) > memory->size, 0)) Throw();
  std::memcpy(memory->data + address, &value, sizeof value);
}

inline u32 i32_load(const Memory* memory, u64 address) { return Load<u32, u32>(memory, address); }
inline u64 i64_load(const Memory* memory, u64 address) { return Load<u64, u64>(memory, address); }
inline u64 i64_load32_s(const Memory* memory, u64 address) { return static_cast<u64>(Load<s32, s64>(memory, address)); }
inline u64 i64_load32_u(const Memory* memory, u64 address) { return Load<u32, u64>(memory, address); }
inline f64 f64_load(const Memory* memory, u64 address) { return Load<f64, f64>(memory, address); }
inline void i32_store(Memory* memory, u64 address, u32 value) { Store(memory, address, value); }
inline void i64_store(Memory* memory, u64 address, u64 value) { Store(memory, address, value); }
inline void f64_store(Memory* memory, u64 address, f64 value) { Store(memory, address, value); }

inline void memory_fill(Memory* memory, u32 address, u32 value, u32 bytes) {
  if (u64{address} + bytes > memory->size) Throw();
  std::memset(memory->data + address, static_cast<int>(value & 0xff), bytes);
}

inline u32 I32_CLZ(u32 value) { return value == 0 ? 32 : static_cast<u32>(__builtin_clz(value)); }
inline u32 I32_CTZ(u32 value) { return value == 0 ? 32 : static_cast<u32>(__builtin_ctz(value)); }
inline u32 I32_ROTL(u32 value, u32 by) { return value << (by & 31) | value >> (-by & 31); }

inline u64 i64_reinterpret_f64(f64 value) {
  u64 bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

// Saturates.
inline u64 I64_TRUNC_SAT_S_F64(f64 value) {
  if (value != value) return 0;
  if (value < -9223372036854775808.0) return u64{1} << 63;
  return value >= 9223372036854775808.0 ? ~u64{0} >> 1 : static_cast<u64>(static_cast<s64>(value));
}

}  // namespace cistern::suballocation

#endif  // CISTERN_SUBALLOCATION_WASM_RUNTIME_H_
