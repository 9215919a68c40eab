// Sockets in the file system over which processes of one user send messages and descriptors (SOCK_SEQPACKET, SCM_RIGHTS).
//
// A message arrives as a whole or not at all, so that a sender cannot leave half of one behind, and with at most one
// descriptor. Who listens accepts only processes of its own user, and holds a lock beside the socket (`PATH.lock`) as long
// as it lives: whoever has the lock may remove a socket that a killed process left. Who connects checks the same.
//
// Only Linux has these. Functions return 0, or a number of errno.h: EAGAIN if nothing happened within the time.
#ifndef CISTERN_PLATFORM_LOCAL_SOCKET_H_
#define CISTERN_PLATFORM_LOCAL_SOCKET_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "platform/memory_file.h"

namespace cistern {

// What fits the kernel's default for the buffer of a socket.
inline constexpr std::size_t kMostMessageBytes = std::size_t{160} << 10;

// Paths are absolute. EBUSY if another process listens there. Its calls do not block.
int ListenAt(const std::string& path, MemoryFile* socket, MemoryFile* lock);
// EPERM if the process that listens is another user's. Calls on the socket block for so many milliseconds at most.
int ConnectTo(const std::string& path, int milliseconds, MemoryFile* socket);
// EAGAIN if nobody waits. Calls on the socket do not block.
int AcceptFrom(int listener, MemoryFile* socket, std::int32_t* process);

// `descriptor` may be -1. EMSGSIZE for a message that is too long.
int SendOver(int socket, const std::string& message, int descriptor);
// ECONNRESET once the other side has ended; EMSGSIZE for a message that is too long, which is lost.
int ReceiveOver(int socket, std::string* message, MemoryFile* descriptor);

// Waits until one of the sockets can be read or has ended, for so many milliseconds (-1: for ever). The places of those that can.
int AwaitMessages(const std::vector<int>& sockets, int milliseconds, std::vector<std::size_t>* ready);

}  // namespace cistern

#endif  // CISTERN_PLATFORM_LOCAL_SOCKET_H_
