#ifndef CISTERN_ADDON_THREAD_ID_H_
#define CISTERN_ADDON_THREAD_ID_H_

#include <cstdint>

namespace cistern {

// The operating system's id of the calling thread.
std::uint64_t CurrentThreadId();

}  // namespace cistern

#endif  // CISTERN_ADDON_THREAD_ID_H_
