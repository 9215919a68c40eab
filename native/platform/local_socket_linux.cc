#ifdef __linux__

#include <fcntl.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "platform/local_socket.h"

namespace cistern {
namespace {

constexpr int kMostWaiting = 128;  // connections that are not accepted yet

template <typename Call>
auto Uninterrupted(Call&& call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

int AddressOf(const std::string& path, sockaddr_un* address) {
  *address = {};
  address->sun_family = AF_UNIX;
  // A first byte of zero would name a socket that is not in the file system, and another path one that depends on the folder.
  if (path.empty() || path[0] != '/' || path.find('\0') != std::string::npos) return EINVAL;
  if (path.size() >= sizeof address->sun_path) return ENAMETOOLONG;
  std::memcpy(address->sun_path, path.data(), path.size());
  return 0;
}

const sockaddr* Generic(const sockaddr_un& address) { return reinterpret_cast<const sockaddr*>(&address); }

bool IsOwnUser(int socket, std::int32_t* process) {
  ucred peer = {};
  socklen_t bytes = sizeof peer;
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) != 0) return false;
  *process = peer.pid;
  return peer.uid == geteuid();
}

MemoryFile NewSocket() { return MemoryFile(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)); }

// Removes what a process that was killed left. Anything but a socket stays.
void RemoveSocket(const std::string& path) {
  struct stat status;
  if (lstat(path.c_str(), &status) == 0 && S_ISSOCK(status.st_mode)) unlink(path.c_str());
}

// Keeps the first descriptor of a message and closes others.
void TakeDescriptors(msghdr* header, MemoryFile* descriptor) {
  for (cmsghdr* control = CMSG_FIRSTHDR(header); control != nullptr; control = CMSG_NXTHDR(header, control)) {
    if (control->cmsg_level != SOL_SOCKET || control->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (control->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t index = 0; index < count; ++index) {
      int each;
      std::memcpy(&each, CMSG_DATA(control) + index * sizeof each, sizeof each);
      MemoryFile file(each);
      if (!descriptor->IsOpen()) *descriptor = std::move(file);
    }
  }
}

}  // namespace

int ListenAt(const std::string& path, MemoryFile* socket, MemoryFile* lock) {
  sockaddr_un address;
  const int error = AddressOf(path, &address);
  if (error != 0) return error;
  constexpr mode_t kOwnerOnly = 0600;
  MemoryFile held(open((path + ".lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, kOwnerOnly));
  if (!held.IsOpen()) return errno;
  if (flock(held.descriptor(), LOCK_EX | LOCK_NB) != 0) return errno == EWOULDBLOCK ? EBUSY : errno;
  RemoveSocket(path);
  MemoryFile opened(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!opened.IsOpen()) return errno;
  // No moment at which others could connect.
  const mode_t before = umask(0777 & ~kOwnerOnly);
  const bool is_bound = bind(opened.descriptor(), Generic(address), sizeof address) == 0;
  const int bind_error = errno;
  umask(before);
  if (!is_bound) return bind_error;
  if (listen(opened.descriptor(), kMostWaiting) != 0) return errno;
  *socket = std::move(opened);
  *lock = std::move(held);
  return 0;
}

int ConnectTo(const std::string& path, int milliseconds, MemoryFile* socket) {
  sockaddr_un address;
  const int error = AddressOf(path, &address);
  if (error != 0) return error;
  MemoryFile opened = NewSocket();
  if (!opened.IsOpen()) return errno;
  const timeval time = {milliseconds / 1000, milliseconds % 1000 * 1000};
  setsockopt(opened.descriptor(), SOL_SOCKET, SO_SNDTIMEO, &time, sizeof time);
  setsockopt(opened.descriptor(), SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time);
  const int connected = Uninterrupted([&] { return connect(opened.descriptor(), Generic(address), sizeof address); });
  if (connected != 0 && errno != EISCONN) return errno;
  std::int32_t process;
  if (!IsOwnUser(opened.descriptor(), &process)) return EPERM;
  *socket = std::move(opened);
  return 0;
}

int AcceptFrom(int listener, MemoryFile* socket, std::int32_t* process) {
  for (;;) {
    MemoryFile accepted(Uninterrupted([&] { return accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK); }));
    if (!accepted.IsOpen()) return errno;
    if (!IsOwnUser(accepted.descriptor(), process)) continue;
    *socket = std::move(accepted);
    return 0;
  }
}

int SendOver(int socket, const std::string& message, int descriptor) {
  if (message.empty() || message.size() > kMostMessageBytes) return EMSGSIZE;
  iovec part = {const_cast<char*>(message.data()), message.size()};
  msghdr header = {};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  if (descriptor >= 0) {
    header.msg_control = control;
    header.msg_controllen = sizeof control;
    cmsghdr* rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(rights), &descriptor, sizeof descriptor);
  }
  const ssize_t sent = Uninterrupted([&] { return sendmsg(socket, &header, MSG_NOSIGNAL); });
  if (sent >= 0) return 0;
  return errno == EPIPE ? ECONNRESET : errno;
}

int ReceiveOver(int socket, std::string* message, MemoryFile* descriptor) {
  message->resize(kMostMessageBytes);
  iovec part = {message->data(), message->size()};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr header = {};
  const ssize_t received = Uninterrupted([&] {
    header = {};
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    header.msg_control = control;
    header.msg_controllen = sizeof control;
    return recvmsg(socket, &header, MSG_CMSG_CLOEXEC);
  });
  if (received < 0) return errno;
  TakeDescriptors(&header, descriptor);
  if (received == 0) return ECONNRESET;
  if ((header.msg_flags & MSG_TRUNC) != 0) return EMSGSIZE;
  message->resize(static_cast<std::size_t>(received));
  return 0;
}

int AwaitMessages(const std::vector<int>& sockets, int milliseconds, std::vector<std::size_t>* ready) {
  std::vector<pollfd> polled;
  polled.reserve(sockets.size());
  for (const int socket : sockets) polled.push_back({socket, POLLIN, 0});
  const int count = poll(polled.data(), polled.size(), milliseconds);
  if (count < 0 && errno != EINTR) return errno;
  for (std::size_t place = 0; place < polled.size() && count > 0; ++place) {
    if (polled[place].revents != 0) ready->push_back(place);
  }
  return 0;
}

}  // namespace cistern

#endif
