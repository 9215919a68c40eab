// Steps by which a process gives its devices away and takes them again, this one or another.
#ifndef CISTERN_ADDON_PROCESS_SLEEP_H_
#define CISTERN_ADDON_PROCESS_SLEEP_H_

#include <memory>

#include "addon/environment.h"

namespace cistern {

inline constexpr int kUnknownState = -1;

// One step, on a thread of its own: a lock waits for the work of the process, and any of them may wait for another process that a
// driver has locked. The thread belongs to nobody, so that an environment, or the process, can end while it waits.
struct ProcessStep {
  std::shared_ptr<EventLoop> loop;
  const DriverTable* driver = nullptr;
  int step = 0;
  int process = 0;
  unsigned timeout_milliseconds = 0;
  napi_deferred deferred = nullptr;
  Status status = kSuccess;
  int state = kUnknownState;  // after it
  ProcessStep* next = nullptr;
};

// Resolves the promises of the steps that are over. Called on the JavaScript thread.
void DeliverProcessSteps(Environment& environment);
// The environment ends.
void ForgetProcessSteps(Environment& environment);

}  // namespace cistern

#endif  // CISTERN_ADDON_PROCESS_SLEEP_H_
