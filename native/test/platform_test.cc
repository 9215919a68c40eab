// The layer over the operating system.
#ifdef __linux__
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#endif

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

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

// Large enough for several threads, and not a multiple of what each takes at a time.
constexpr std::uint64_t kPopulatedBytes = (std::uint64_t{100} << 20) + 5;

TEST("every thread has pages to populate, down to 4 MiB for each") {
  for (const unsigned threads : {1U, 2U, 4U, 7U, 16U}) {
    for (const std::uint64_t mebibytes : {4U, 64U, 100U, 1024U}) {
      const std::uint64_t bytes = mebibytes << 20;
      const std::uint64_t pieces = (bytes + PopulatedPieceBytes(bytes, threads) - 1) / PopulatedPieceBytes(bytes, threads);
      // Pieces are whole large pages, so some threads may have none.
      CHECK(2 * pieces >= std::min<std::uint64_t>(threads, mebibytes / 4));
      CHECK(PopulatedPieceBytes(bytes, threads) <= std::uint64_t{32} << 20);
    }
  }
  CHECK(PopulatedPieceBytes(std::uint64_t{64} << 20, 4) == std::uint64_t{16} << 20);
}

TEST("populated pages are zeros that have their memory, whatever the number of threads") {
  const std::uint64_t page = PageBytes();
  for (unsigned threads : {1U, 2U, 7U, 128U}) {
    void* mapped = MapPopulatedPages(kPopulatedBytes, threads);
    CHECK(mapped != nullptr);
    CHECK(reinterpret_cast<std::uintptr_t>(mapped) % page == 0);
    auto* bytes = static_cast<unsigned char*>(mapped);
#ifdef __linux__
    std::vector<unsigned char> resident((kPopulatedBytes + page - 1) / page);
    CHECK(mincore(mapped, kPopulatedBytes, resident.data()) == 0);
    CHECK(std::all_of(resident.begin(), resident.end(), [](unsigned char each) { return (each & 1) != 0; }));
#endif
    CHECK(std::all_of(bytes, bytes + kPopulatedBytes, [](unsigned char each) { return each == 0; }));
    std::memset(mapped, 7, kPopulatedBytes);
    UnmapPages(mapped, kPopulatedBytes);
  }
  void* one = MapPopulatedPages(1, 128);
  CHECK(one != nullptr);
  UnmapPages(one, 1);
}

TEST("more pages than the machine has are not populated") {
  CHECK(MapPopulatedPages(std::uint64_t{1} << 50, 2) == nullptr);
  CHECK(MapPopulatedPages(~std::uint64_t{0}, 2) == nullptr);
}

#ifdef __linux__
TEST("populated pages come from the node that is asked for, unless the process has said where its memory should be") {
  constexpr int kDefault = 0;
  constexpr int kPreferred = 1;
  constexpr int kInterleaved = 3;
  constexpr unsigned long kOfAddress = 2;
  const auto policy_of = [](void* mapped, unsigned long* nodes) {
    int policy = -1;
    CHECK(syscall(SYS_get_mempolicy, &policy, nodes, 1024UL, mapped, kOfAddress) == 0);
    return policy;
  };
  unsigned long nodes[16] = {};
  int ignored;
  if (syscall(SYS_get_mempolicy, &ignored, nullptr, 0UL, nullptr, 0UL) != 0) return;  // not compiled in, or not allowed here
  const auto map = [&](int node, int expected) {
    void* mapped = MapPopulatedPages(kPopulatedBytes, 2, node);
    CHECK(mapped != nullptr);
    CHECK(policy_of(mapped, nodes) == expected);
    CHECK(static_cast<unsigned char*>(mapped)[kPopulatedBytes - 1] == 0);
    UnmapPages(mapped, kPopulatedBytes);
  };
  map(-1, kDefault);
  map(0, kPreferred);
  CHECK(nodes[0] == 1);
  // There are no such nodes.
  for (int node : {1023, 1024, 1 << 30}) map(node, kDefault);
  unsigned long first = 1;
  if (syscall(SYS_set_mempolicy, kInterleaved, &first, 65UL) != 0) return;
  map(0, kDefault);
  CHECK(syscall(SYS_set_mempolicy, kDefault, nullptr, 0UL) == 0);
}

TEST("a child process does not share populated pages") {
  void* mapped = MapPopulatedPages(kPopulatedBytes, 2);
  CHECK(mapped != nullptr);
  const pid_t child = fork();
  if (child == 0) {
    unsigned char resident;
    _exit(mincore(mapped, 1, &resident) == 0 ? 1 : 0);
  }
  int status = -1;
  CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
  UnmapPages(mapped, kPopulatedBytes);
}
#endif

}  // namespace
}  // namespace cistern::test
