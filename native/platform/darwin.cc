#ifdef __APPLE__

#include <pthread.h>
#include <sys/sysctl.h>

#include "platform/system.h"
#include "platform/thread.h"

namespace cistern {

std::uint64_t MachineMemory() {
  static const std::uint64_t bytes = [] {
    std::uint64_t found = 0;
    std::size_t size = sizeof found;
    return sysctlbyname("hw.memsize", &found, &size, nullptr, 0) == 0 ? found : 0;
  }();
  return bytes;
}

std::uint64_t AvailableMemory() { return MachineMemory(); }

std::uint64_t CurrentThreadId() {
  std::uint64_t id = 0;
  pthread_threadid_np(nullptr, &id);
  return id;
}

}  // namespace cistern

#endif
