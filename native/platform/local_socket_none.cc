// For systems without sockets that keep messages apart and carry descriptors.
#ifndef __linux__

#include <cerrno>

#include "platform/local_socket.h"

namespace cistern {

int ListenAt(const std::string&, MemoryFile*, MemoryFile*) { return ENOSYS; }
int ConnectTo(const std::string&, int, MemoryFile*) { return ENOSYS; }
int AcceptFrom(int, MemoryFile*, std::int32_t*) { return ENOSYS; }
int SendOver(int, const std::string&, int) { return ENOSYS; }
int ReceiveOver(int, std::string*, MemoryFile*) { return ENOSYS; }
int AwaitMessages(const std::vector<int>&, int, std::vector<std::size_t>*) { return ENOSYS; }

}  // namespace cistern

#endif
