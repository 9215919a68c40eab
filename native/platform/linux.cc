#ifdef __linux__

#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "platform/system.h"
#include "platform/thread.h"

namespace cistern {
namespace {

std::string ReadLine(const std::string& path, const char* prefix) {
  std::FILE* file = std::fopen(path.c_str(), "re");
  if (file == nullptr) return {};
  char line[4096];
  std::string found;
  while (found.empty() && std::fgets(line, sizeof line, file) != nullptr) {
    if (std::strncmp(line, prefix, std::strlen(prefix)) != 0) continue;
    found = line + std::strlen(prefix);
    found.erase(found.find_last_not_of("\n") + 1);
  }
  std::fclose(file);
  return found;
}

// Control groups nest, and the lowest of their limits applies.
std::uint64_t ControlGroupLimit() {
  std::uint64_t limit = ~std::uint64_t{0};
  std::string group = ReadLine("/proc/self/cgroup", "0::");
  for (;;) {
    std::string text = ReadLine("/sys/fs/cgroup" + group + "/memory.max", "");
    if (!text.empty() && text[0] >= '0' && text[0] <= '9') limit = std::min<std::uint64_t>(limit, std::strtoull(text.c_str(), nullptr, 10));
    std::size_t slash = group.rfind('/');
    if (slash == std::string::npos || group.empty()) return limit;
    group.erase(slash);
  }
}

}  // namespace

std::uint64_t MachineMemory() {
  static const std::uint64_t bytes = std::min(
      static_cast<std::uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE)), ControlGroupLimit());
  return bytes;
}

// Of the machine only: what a control group has used includes caches, which it gives up.
std::uint64_t AvailableMemory() {
  const std::string kibibytes = ReadLine("/proc/meminfo", "MemAvailable:");
  return kibibytes.empty() ? MachineMemory()
                           : std::min<std::uint64_t>(MachineMemory(), std::strtoull(kibibytes.c_str(), nullptr, 10) << 10);
}

void SleepPrecisely() { prctl(PR_SET_TIMERSLACK, 1UL); }

void FenceOtherThreads() {
  // Of linux/membarrier.h, which headers may lack.
  constexpr int kRegister = 1 << 4;
  constexpr int kExpedited = 1 << 3;
  constexpr int kGlobal = 1 << 0;
#ifdef SYS_membarrier
  static const bool is_registered = syscall(SYS_membarrier, kRegister, 0) == 0;
  if (is_registered && syscall(SYS_membarrier, kExpedited, 0) == 0) return;
  if (syscall(SYS_membarrier, kGlobal, 0) == 0) return;
#endif
  // Without it: longer than a store takes to leave a processor.
  usleep(1000);
}

// glibc's gettid() is younger than some systems that Node still runs on.
std::uint64_t CurrentThreadId() { return static_cast<std::uint64_t>(syscall(SYS_gettid)); }

}  // namespace cistern

#endif
