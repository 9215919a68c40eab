#include "strict_driver/state.h"

namespace cistern::strict {

// Never destroyed: the driver's threads run until the process ends.
std::mutex& big_lock = *new std::mutex;
std::condition_variable& changed = *new std::condition_variable;
Driver& driver = *new Driver;
thread_local Thread thread;

}  // namespace cistern::strict
