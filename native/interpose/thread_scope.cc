#include "interpose/thread_scope.h"

#include "interpose/libraries.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace cistern::interpose {

ThreadScope& CurrentScope() {
  static thread_local ThreadScope scope;
  return scope;
}

}  // namespace cistern::interpose

using namespace cistern::interpose;

// For programs that want to help; include/cistern_run.h and withAccount find both by name. Returns what to leave with.
EXPORT unsigned cistern_run_enter_account(const char* name) {
  const unsigned before = CurrentScope().account;
  CurrentScope().account = name == nullptr || *name == 0 ? std::uint16_t{0} : AccountNamed(name);
  return before;
}

EXPORT void cistern_run_leave_account(unsigned before) { CurrentScope().account = static_cast<std::uint16_t>(before); }
