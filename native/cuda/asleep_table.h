// What calls go through while this process is asleep: its driver keeps every call waiting until somebody wakes it, which nobody
// could do if the JavaScript thread waited, too.
//
// A process falls asleep once everything that was queued is done, and nothing can be queued until it wakes. So these calls have an
// answer without the driver:
//
//     queries, waits, waits of streams for events     done, or not yet while the process is falling asleep
//     frees, ends of objects, records of events       kept, and made in their order when the process wakes
//     the thread's context                            noted here
//     all others                                      kAsleep, and nothing happens
//
// A thread may hold this table a little longer than the process sleeps: its calls then go on to the driver.
#ifndef CISTERN_CUDA_ASLEEP_TABLE_H_
#define CISTERN_CUDA_ASLEEP_TABLE_H_

#include "cuda/driver_table.h"

namespace cistern {

const DriverTable* AsleepTable();

// Whether the calls to the driver of this table would wait.
bool IsAsleep(const DriverTable* backend);

// The process is about to fall asleep, then has fallen asleep, then is awake again. `next` is the table that calls went through
// until now, which is the backend's or one in front of it. Returns false if it is asleep already, with this or another backend.
bool BeginSleep(const DriverTable* backend, const DriverTable* next);
void FallAsleep();
// Makes the calls that were kept.
void EndSleep();

// cistern's own threads call the driver within such a scope, and only if it is awake: BeginSleep waits until the scope ends. Its
// calls may not wait for anything.
class AwakeScope {
 public:
  explicit AwakeScope(const DriverTable* backend);
  ~AwakeScope();
  AwakeScope(const AwakeScope&) = delete;
  AwakeScope& operator=(const AwakeScope&) = delete;

  bool is_awake() const { return is_awake_; }

 private:
  bool is_awake_;
};

}  // namespace cistern

#endif  // CISTERN_CUDA_ASLEEP_TABLE_H_
