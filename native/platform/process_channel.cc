#include "platform/process_channel.h"

#ifdef __linux__

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstdio>

namespace cistern {
namespace {

struct Address {
  sockaddr_un address = {};
  socklen_t bytes = 0;
};

Address AddressOf(const char* name, std::int32_t process) {
  Address made;
  made.address.sun_family = AF_UNIX;
  // A name that begins with a zero byte is in no file system.
  const int length = std::snprintf(made.address.sun_path + 1, sizeof made.address.sun_path - 1, "%s-%d", name, process);
  made.bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + static_cast<std::size_t>(length));
  return made;
}

int NewSocket() { return socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0); }

bool IsOfThisUser(int connection) {
  ucred peer = {};
  socklen_t bytes = sizeof peer;
  return getsockopt(connection, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) == 0 && peer.uid == geteuid();
}

}  // namespace

int OpenChannel(const char* name) {
  const int channel = NewSocket();
  if (channel < 0) return -1;
  const Address own = AddressOf(name, getpid());
  if (bind(channel, reinterpret_cast<const sockaddr*>(&own.address), own.bytes) == 0 && listen(channel, SOMAXCONN) == 0) return channel;
  close(channel);
  return -1;
}

void ServeChannel(int channel, ProcessAnswer (*answer)(const ProcessRequest&)) {
  for (;;) {
    const int connection = accept4(channel, nullptr, nullptr, SOCK_CLOEXEC);
    if (connection < 0) {
      // The process has no descriptor left, or the connection has ended already.
      usleep(1000);
      continue;
    }
    // Whoever connects and asks nothing keeps others waiting for no longer than this.
    const timeval patience = {1, 0};
    setsockopt(connection, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    ProcessRequest request;
    if (IsOfThisUser(connection) && recv(connection, &request, sizeof request, 0) == static_cast<ssize_t>(sizeof request)) {
      const ProcessAnswer given = answer(request);
      send(connection, &given, sizeof given, MSG_NOSIGNAL);
    }
    close(connection);
  }
}

bool Ask(const char* name, std::int32_t process, const ProcessRequest& request, ProcessAnswer* answer) {
  const int connection = NewSocket();
  if (connection < 0) return false;
  const Address other = AddressOf(name, process);
  const bool is_answered = connect(connection, reinterpret_cast<const sockaddr*>(&other.address), other.bytes) == 0 &&
                           IsOfThisUser(connection) && send(connection, &request, sizeof request, MSG_NOSIGNAL) > 0 &&
                           recv(connection, answer, sizeof *answer, 0) == static_cast<ssize_t>(sizeof *answer);
  close(connection);
  return is_answered;
}

}  // namespace cistern

#else

namespace cistern {

int OpenChannel(const char*) { return -1; }
void ServeChannel(int, ProcessAnswer (*)(const ProcessRequest&)) {}
bool Ask(const char*, std::int32_t, const ProcessRequest&, ProcessAnswer*) { return false; }

}  // namespace cistern

#endif
