// Non-blocking sockets and poll.
#include "tcp_socket.hpp"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <stdexcept>

namespace kvasir {
namespace {

using std::chrono::steady_clock;

constexpr int kWaitMs = 100;
constexpr int kBacklog = 64;
/** Looked for, before it is waited for. */
constexpr std::chrono::microseconds kSpin{50};
constexpr size_t kSpinBytes = size_t{1} << 16;

#if defined(MSG_NOSIGNAL)
constexpr int kNoSignal = MSG_NOSIGNAL;
#else
constexpr int kNoSignal = 0;
#endif

void set(int descriptor, int level, int name, int value) { setsockopt(descriptor, level, name, &value, sizeof value); }

void set_up(int descriptor) {
  make_prompt(descriptor);
  set(descriptor, IPPROTO_TCP, TCP_NODELAY, 1);
  set(descriptor, SOL_SOCKET, SO_KEEPALIVE, 1);
#if defined(SO_NOSIGPIPE)
  set(descriptor, SOL_SOCKET, SO_NOSIGPIPE, 1);
#endif
#if defined(TCP_KEEPIDLE)
  // A host that is gone says nothing: after half a minute it is taken for gone.
  set(descriptor, IPPROTO_TCP, TCP_KEEPIDLE, 10);
  set(descriptor, IPPROTO_TCP, TCP_KEEPINTVL, 5);
  set(descriptor, IPPROTO_TCP, TCP_KEEPCNT, 4);
#endif
}

bool await_events(int descriptor, short events, Deadline deadline, const std::atomic<bool>& ended) {
  for (;;) {
    if (ended.load(std::memory_order_acquire)) return false;
    pollfd waiting = {descriptor, events, 0};
    const int count = poll(&waiting, 1, kWaitMs);
    if (count > 0) return true;
    if (count < 0 && errno != EINTR) return false;
    if (steady_clock::now() >= deadline) return false;
  }
}

int64_t moved(ssize_t count) {
  if (count >= 0) return count;
  return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR ? Socket::kNothing : Socket::kBroken;
}

struct Addresses {
  explicit Addresses(const HostPort& address, int flags) {
    addrinfo wanted = {};
    wanted.ai_socktype = SOCK_STREAM;
    wanted.ai_flags = flags | AI_NUMERICSERV;
    if (getaddrinfo(address.host.c_str(), std::to_string(address.port).c_str(), &wanted, &first) != 0) first = nullptr;
  }
  ~Addresses() {
    if (first != nullptr) freeaddrinfo(first);
  }
  addrinfo* first = nullptr;
};

[[noreturn]] void refuse_listening(const HostPort& address) {
  const std::string why = errno == 0 ? "no such address" : std::strerror(errno);
  throw std::runtime_error("Cannot listen for pages: " + why + ": " + address.host + ":" + std::to_string(address.port));
}

}  // namespace

void make_prompt(int descriptor) {
  fcntl(descriptor, F_SETFL, fcntl(descriptor, F_GETFL) | O_NONBLOCK);
  fcntl(descriptor, F_SETFD, FD_CLOEXEC);
}

Socket& Socket::operator=(Socket&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  return *this;
}

Socket::~Socket() {
  if (is_open()) close(descriptor_);
}

void Socket::cut() const {
  if (is_open()) shutdown(descriptor_, SHUT_RDWR);
}

int64_t Socket::receive_some(void* to, size_t bytes) const { return moved(recv(descriptor_, to, bytes, 0)); }
int64_t Socket::receive_parts(const iovec* parts, int count) const { return moved(readv(descriptor_, parts, count)); }
int64_t Socket::send_some(const void* from, size_t bytes) const { return moved(::send(descriptor_, from, bytes, kNoSignal)); }

bool Socket::is_readable() const {
  pollfd asked = {descriptor_, POLLIN, 0};
  return poll(&asked, 1, 0) > 0;
}

bool Socket::await_readable(Deadline deadline, const std::atomic<bool>& ended) const { return await_events(descriptor_, POLLIN, deadline, ended); }
bool Socket::await_writable(Deadline deadline, const std::atomic<bool>& ended) const { return await_events(descriptor_, POLLOUT, deadline, ended); }

/** Sleeping and being woken takes longer than bytes that are on their way. */
bool Socket::comes_at_once(size_t count) const {
  const auto until = steady_clock::now() + kSpin;
  do {
    int there = 0;
    if (ioctl(descriptor_, FIONREAD, &there) != 0) return true;
    if (static_cast<size_t>(there) >= count) return true;
  } while (steady_clock::now() < until);
  return false;
}

void Socket::await_bytes(size_t count) const {
  if (comes_at_once(std::min(count, kSpinBytes))) return;
  set(descriptor_, SOL_SOCKET, SO_RCVLOWAT, static_cast<int>(count));
  pollfd asked = {descriptor_, POLLIN, 0};
  poll(&asked, 1, kWaitMs);
  set(descriptor_, SOL_SOCKET, SO_RCVLOWAT, 1);
}

uint8_t* Socket::draft(size_t bytes, Deadline, const std::atomic<bool>&) {
  if (draft_.size() < bytes) draft_.resize(bytes);
  return draft_.data();
}

bool Socket::post(size_t bytes, Deadline deadline, const std::atomic<bool>& ended) { return send(draft_.data(), bytes, deadline, ended); }

Socket connect_to(const HostPort& address, Deadline deadline, const std::atomic<bool>& ended) {
  const Addresses addresses(address, 0);
  for (const addrinfo* at = addresses.first; at != nullptr; at = at->ai_next) {
    Socket socket(::socket(at->ai_family, at->ai_socktype, at->ai_protocol));
    if (!socket.is_open()) continue;
    set_up(socket.descriptor());
    if (connect(socket.descriptor(), at->ai_addr, at->ai_addrlen) != 0) {
      if (errno != EINPROGRESS || !socket.await_writable(deadline, ended)) continue;
      int failure = 0;
      socklen_t size = sizeof failure;
      if (getsockopt(socket.descriptor(), SOL_SOCKET, SO_ERROR, &failure, &size) != 0 || failure != 0) continue;
    }
    return socket;
  }
  return Socket();
}

Socket listen_at(const HostPort& address) {
  errno = 0;
  const Addresses addresses(address, AI_PASSIVE);
  for (const addrinfo* at = addresses.first; at != nullptr; at = at->ai_next) {
    Socket socket(::socket(at->ai_family, at->ai_socktype, at->ai_protocol));
    if (!socket.is_open()) continue;
    set(socket.descriptor(), SOL_SOCKET, SO_REUSEADDR, 1);
    set_up(socket.descriptor());
    if (bind(socket.descriptor(), at->ai_addr, at->ai_addrlen) == 0 && listen(socket.descriptor(), kBacklog) == 0) return socket;
  }
  refuse_listening(address);
}

int port_of(const Socket& listening) {
  sockaddr_storage bound = {};
  socklen_t size = sizeof bound;
  getsockname(listening.descriptor(), reinterpret_cast<sockaddr*>(&bound), &size);
  if (bound.ss_family == AF_INET6) return ntohs(reinterpret_cast<const sockaddr_in6&>(bound).sin6_port);
  return ntohs(reinterpret_cast<const sockaddr_in&>(bound).sin_port);
}

Socket accept_from(const Socket& listening) {
  Socket socket(accept(listening.descriptor(), nullptr, nullptr));
  if (socket.is_open()) set_up(socket.descriptor());
  return socket;
}

SocketPair loopback_pair() {
  const std::atomic<bool> never{false};
  const Socket listening = listen_at({"127.0.0.1", 0});
  SocketPair pair;
  pair.sender = connect_to({"127.0.0.1", port_of(listening)}, in_milliseconds(1000), never);
  if (pair.sender.is_open() && listening.await_readable(in_milliseconds(1000), never)) pair.receiver = accept_from(listening);
  if (!pair.receiver.is_open()) throw std::runtime_error("Cannot connect two sockets: the loopback interface does not answer");
  return pair;
}

}  // namespace kvasir
