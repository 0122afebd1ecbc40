// Unix domain sockets in the abstract namespace: no file remains, and the name disappears with the listening process.
#include "net/local_socket.hpp"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstring>

namespace kvasir {

std::string local_socket_name(const HashKey& key, const HostPort& address) {
  const std::string place = address.host + ":" + std::to_string(address.port);
  const Digest digest = keyed_hash(key, place.data(), place.size());
  constexpr char kDigits[] = "0123456789abcdef";
  constexpr size_t kNameBytes = 20;
  std::string name = "kvasir-";
  for (size_t i = 0; i < kNameBytes; i++) name += {kDigits[digest[i] >> 4], kDigits[digest[i] & 15]};
  return name;
}

#if defined(__linux__)

namespace {

constexpr int kLocalBacklog = 64;

struct Address {
  sockaddr_un place = {};
  socklen_t size;
  explicit Address(const std::string& name) {
    place.sun_family = AF_UNIX;
    // A leading zero byte selects the abstract namespace.
    const size_t count = std::min(name.size(), sizeof place.sun_path - 1);
    std::memcpy(place.sun_path + 1, name.data(), count);
    size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + count);
  }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&place); }
};

Socket new_socket() {
  Socket socket(::socket(AF_UNIX, SOCK_STREAM, 0));
  if (socket.is_open()) make_nonblocking(socket.descriptor());
  return socket;
}

bool is_own_user(const Socket& socket) {
  ucred peer = {};
  socklen_t size = sizeof peer;
  return getsockopt(socket.descriptor(), SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.uid == geteuid();
}

/** A message of one byte and one descriptor. */
struct DescriptorMessage {
  uint8_t byte = 0;
  iovec part = {&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message = {};
  DescriptorMessage() {
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    // Exactly one descriptor fits.
    message.msg_controllen = CMSG_LEN(sizeof(int));
  }
};

}  // namespace

Socket connect_locally(const std::string& name) {
  Socket socket = new_socket();
  const Address address(name);
  const bool reached = socket.is_open() && connect(socket.descriptor(), address.get(), address.size) == 0;
  return reached && is_own_user(socket) ? std::move(socket) : Socket();
}

Socket listen_locally(const std::string& name) {
  Socket socket = new_socket();
  const Address address(name);
  const bool listens = socket.is_open() && bind(socket.descriptor(), address.get(), address.size) == 0 && listen(socket.descriptor(), kLocalBacklog) == 0;
  return listens ? std::move(socket) : Socket();
}

Socket accept_locally(const Socket& listening) {
  Socket socket(accept(listening.descriptor(), nullptr, nullptr));
  if (!socket.is_open() || !is_own_user(socket)) return Socket();
  make_nonblocking(socket.descriptor());
  return socket;
}

bool pass_descriptor(const Socket& socket, int descriptor) {
  DescriptorMessage passed;
  cmsghdr* head = CMSG_FIRSTHDR(&passed.message);
  head->cmsg_level = SOL_SOCKET;
  head->cmsg_type = SCM_RIGHTS;
  head->cmsg_len = CMSG_LEN(sizeof descriptor);
  std::memcpy(CMSG_DATA(head), &descriptor, sizeof descriptor);
  return sendmsg(socket.descriptor(), &passed.message, MSG_NOSIGNAL) == 1;
}

int receive_descriptor(const Socket& socket, Deadline deadline, const std::atomic<bool>& ended) {
  DescriptorMessage passed;
  if (!socket.await_readable(deadline, ended) || recvmsg(socket.descriptor(), &passed.message, MSG_CMSG_CLOEXEC) != 1) return -1;
  const cmsghdr* head = CMSG_FIRSTHDR(&passed.message);
  int descriptor = -1;
  if (head == nullptr || head->cmsg_level != SOL_SOCKET || head->cmsg_type != SCM_RIGHTS || head->cmsg_len != CMSG_LEN(sizeof descriptor)) return -1;
  std::memcpy(&descriptor, CMSG_DATA(head), sizeof descriptor);
  return descriptor;
}

#else

Socket connect_locally(const std::string&) { return Socket(); }
Socket listen_locally(const std::string&) { return Socket(); }
Socket accept_locally(const Socket&) { return Socket(); }
bool pass_descriptor(const Socket&, int) { return false; }
int receive_descriptor(const Socket&, Deadline, const std::atomic<bool>&) { return -1; }

#endif

}  // namespace kvasir
