// What is known about the work that a thread does now, beyond its stack.
#ifndef CISTERN_INTERPOSE_THREAD_SCOPE_H_
#define CISTERN_INTERPOSE_THREAD_SCOPE_H_

#include <cstdint>

namespace cistern::interpose {

struct ThreadScope {
  const char* origin;     // lines of JavaScript that started the work; null: unknown. They are never freed
  std::uint16_t account;  // that the program has named for it; 0: none
};

ThreadScope& CurrentScope();

// The addon that has this address was loaded, and is about to be initialized: what it starts by napi_create_async_work has a scope.
void WatchAddon(void* address);

}  // namespace cistern::interpose

#endif  // CISTERN_INTERPOSE_THREAD_SCOPE_H_
