#include "addon/thread_id.h"

#ifdef _WIN32
#define WIN32_LEAN_AND_MEAN
#include <windows.h>
#else
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace cistern {

std::uint64_t CurrentThreadId() {
#ifdef _WIN32
  return GetCurrentThreadId();
#else
  // glibc's gettid() is younger than some systems that Node still runs on.
  return static_cast<std::uint64_t>(syscall(SYS_gettid));
#endif
}

}  // namespace cistern
