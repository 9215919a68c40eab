#ifndef CISTERN_ADDON_THREAD_ID_H_
#define CISTERN_ADDON_THREAD_ID_H_

#include <cstdint>

namespace cistern {

// The calling thread's id in the operating system.
std::uint64_t CurrentThreadId();

}  // namespace cistern

#endif  // CISTERN_ADDON_THREAD_ID_H_
