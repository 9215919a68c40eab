// Requests of one process to another, for stand-ins of the driver, whose checkpoint functions name a process by its id.
//
//     process that can be asked                        process that asks
//     OpenChannel ──► a socket named after its id ◄──  Ask: connects, sends a request, waits for the answer
//     ServeChannel, on a thread of its own
//
// The name is in no file system and ends with the process, as the connection does: who asks learns that the process has ended.
// Only processes of the same user are answered. Only Linux has such names; elsewhere nobody can be asked.
#ifndef CISTERN_PLATFORM_PROCESS_CHANNEL_H_
#define CISTERN_PLATFORM_PROCESS_CHANNEL_H_

#include <cstdint>

namespace cistern {

struct ProcessRequest {
  std::int32_t operation;
  std::uint32_t argument;
};
struct ProcessAnswer {
  std::int32_t status;
  std::int32_t value;
};

// `name` keeps stand-ins apart. -1 if the system refuses.
int OpenChannel(const char* name);
// Answers requests, one after the other. Does not return.
void ServeChannel(int channel, ProcessAnswer (*answer)(const ProcessRequest&));

// False if there is no such process, it has no such channel, or it has ended before it answered.
bool Ask(const char* name, std::int32_t process, const ProcessRequest& request, ProcessAnswer* answer);

}  // namespace cistern

#endif  // CISTERN_PLATFORM_PROCESS_CHANNEL_H_
