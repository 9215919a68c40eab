// The layer over the operating system.
#include <cstdint>
#include <cstring>

#include "fixture.h"
#include "platform/memory.h"

namespace cistern::test {
namespace {

constexpr std::uint64_t kAlignment = std::uint64_t{1} << 30;
constexpr std::uint64_t kSparseBytes = std::uint64_t{64} << 30;

TEST("a sparse mapping lies at its alignment, and has zeros wherever it is touched or was discarded") {
  void* mapped = MapSparsePages(kSparseBytes, kAlignment);
  CHECK(mapped != nullptr);
  const std::uint64_t begin = reinterpret_cast<std::uintptr_t>(mapped);
  CHECK(begin % kAlignment == 0);
  auto* bytes = static_cast<unsigned char*>(mapped);
  for (std::uint64_t offset : {std::uint64_t{0}, kSparseBytes / 2, kSparseBytes - 1}) {
    CHECK(bytes[offset] == 0);
    bytes[offset] = 1;
  }
  const std::uint64_t page = PageBytes();
  bytes[page] = 2;
  DiscardPages(begin + page, page);
  CHECK(bytes[0] == 1 && bytes[page] == 0);
  bytes[page] = 3;
  CHECK(bytes[page] == 3);
  UnmapPages(mapped, kSparseBytes);
}

TEST("reserved pages lie at their alignment, keep their contents without access, and are zeros after a reset") {
  const std::uint64_t page = PageBytes();
  void* reserved = ReservePages(4 * page, kAlignment);
  CHECK(reserved != nullptr);
  const std::uint64_t begin = reinterpret_cast<std::uintptr_t>(reserved);
  CHECK(begin % kAlignment == 0);
  auto* bytes = static_cast<unsigned char*>(reserved);
  CHECK(AllowAccess(begin + page, 2 * page));
  CHECK(bytes[page] == 0);
  std::memset(bytes + page, 7, 2 * page);
  CHECK(DenyAccess(begin + page, page));
  CHECK(AllowAccess(begin + page, page));
  CHECK(bytes[page] == 7 && bytes[2 * page] == 7);
  CHECK(ResetPages(begin + page, 2 * page));
  CHECK(AllowAccess(begin + page, page));
  CHECK(bytes[page] == 0);
  UnmapPages(reserved, 4 * page);
}

}  // namespace
}  // namespace cistern::test
