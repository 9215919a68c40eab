// Functions for threads that the standard library lacks.
#ifndef CISTERN_PLATFORM_THREAD_H_
#define CISTERN_PLATFORM_THREAD_H_

#include <cstdint>

// A thread_local variable with this attribute costs no function call in a shared library. Only glibc
// has room for such variables in a library that is loaded late.
#ifdef __GLIBC__
#define CISTERN_INITIAL_EXEC __attribute__((tls_model("initial-exec")))
#else
#define CISTERN_INITIAL_EXEC
#endif

namespace cistern {

// The operating system's id of the calling thread.
std::uint64_t CurrentThreadId();

// Returns once every other thread has passed a point where what it stored before is seen by others, and what it loads later is what
// they have stored.
#ifdef __linux__
void FenceOtherThreads();
#else
inline void FenceOtherThreads() {}  // nobody asks for it there
#endif

// Short sleeps of the calling thread end at their time, and not up to 50 us later, as Linux would have it to save power.
#ifdef __linux__
void SleepPrecisely();
#else
inline void SleepPrecisely() {}
#endif

// Starts a thread that nobody joins, and that takes no signals: those are for the program's own
// threads. The name, of at most 15 characters, is for debuggers. False if there can be no more threads.
bool StartThread(void* (*function)(void*), void* argument, const char* name);

}  // namespace cistern

#endif  // CISTERN_PLATFORM_THREAD_H_
