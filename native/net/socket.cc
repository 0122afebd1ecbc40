// Non-blocking sockets over poll: TCP set-up, adaptive spinning, and waits.
#include "net/socket.hpp"

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

#include "base/spin.hpp"

namespace kvasir {
namespace {

using std::chrono::steady_clock;

constexpr int kWaitMs = 100;
constexpr int kBacklog = 64;
/**
 * One loopback segment. With a larger SO_RCVLOWAT Linux acknowledges each segment separately until that many bytes are
 * there.
 */
constexpr size_t kLowWaterMarkMost = size_t{1} << 16;
constexpr int kPausesPerCheck = 8;
constexpr size_t kReceiveBufferBytes = size_t{1} << 21;

#if defined(MSG_NOSIGNAL)
constexpr int kNoSignal = MSG_NOSIGNAL;
#else
constexpr int kNoSignal = 0;
#endif
#if defined(MSG_MORE)
constexpr int kMore = MSG_MORE;
#else
constexpr int kMore = 0;
#endif

void set(int descriptor, int level, int name, int value) { setsockopt(descriptor, level, name, &value, sizeof value); }

void configure(int descriptor) {
  make_nonblocking(descriptor);
  set(descriptor, IPPROTO_TCP, TCP_NODELAY, 1);
  set(descriptor, SOL_SOCKET, SO_KEEPALIVE, 1);
#if defined(SO_NOSIGPIPE)
  set(descriptor, SOL_SOCKET, SO_NOSIGPIPE, 1);
#endif
#if defined(TCP_KEEPIDLE)
  // Keepalive declares an unreachable host dead after 30 seconds.
  set(descriptor, IPPROTO_TCP, TCP_KEEPIDLE, 10);
  set(descriptor, IPPROTO_TCP, TCP_KEEPINTVL, 5);
  set(descriptor, IPPROTO_TCP, TCP_KEEPCNT, 4);
#endif
}

bool is_loopback(const sockaddr_storage& address) {
  if (address.ss_family == AF_INET) return (ntohl(reinterpret_cast<const sockaddr_in&>(address).sin_addr.s_addr) >> 24) == 127;
  return address.ss_family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6&>(address).sin6_addr);
}

/** Avoids paced congestion control (bbr) on loopback: its bandwidth estimate would measure thread scheduling. */
void disable_pacing_on_loopback(int descriptor) {
#if defined(TCP_CONGESTION)
  sockaddr_storage peer = {};
  socklen_t size = sizeof peer;
  constexpr char kUnpaced[] = "reno";
  if (getpeername(descriptor, reinterpret_cast<sockaddr*>(&peer), &size) == 0 && is_loopback(peer)) setsockopt(descriptor, IPPROTO_TCP, TCP_CONGESTION, kUnpaced, sizeof kUnpaced - 1);
#else
  (void)descriptor;
#endif
}

bool await_events(int descriptor, short events, Deadline deadline, const std::atomic<bool>& ended) {
  for (;;) {
    if (ended.load(std::memory_order_acquire)) return false;
    pollfd polled = {descriptor, events, 0};
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(std::min(deadline, steady_clock::now() + std::chrono::milliseconds(kWaitMs)) - steady_clock::now());
    const int count = poll(&polled, 1, std::max(0, static_cast<int>(left.count())));
    if (count > 0) return true;
    if (count < 0 && errno != EINTR) return false;
    if (steady_clock::now() >= deadline) return false;
  }
}

int64_t moved(ssize_t count) {
  if (count >= 0) return count;
  return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR ? Socket::kWouldBlock : Socket::kBroken;
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
  throw std::runtime_error("Cannot listen for connections: " + why + ": " + address.host + ":" + std::to_string(address.port));
}

}  // namespace

void make_nonblocking(int descriptor) {
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

void Socket::shut_down() const {
  if (is_open()) shutdown(descriptor_, SHUT_RDWR);
}

int64_t Socket::receive_parts(const iovec* parts, int count) const { return moved(readv(descriptor_, parts, count)); }

int64_t Socket::send_parts(const iovec* parts, int count, bool more) const {
  msghdr message = {};
  message.msg_iov = const_cast<iovec*>(parts);
  message.msg_iovlen = static_cast<decltype(message.msg_iovlen)>(count);
  corked_ = more && kMore != 0;
  return moved(sendmsg(descriptor_, &message, kNoSignal | (more ? kMore : 0)));
}

/** Setting TCP_NODELAY again sends what MSG_MORE holds back. */
void Socket::flush() const {
  if (corked_) set(descriptor_, IPPROTO_TCP, TCP_NODELAY, 1);
  corked_ = false;
}

/** The receive buffer starts small and grows slowly. A large SO_RCVLOWAT makes Linux grow it at once. */
void Socket::enlarge_receive_buffer() const {
  set_low_water_mark(kReceiveBufferBytes);
  set_low_water_mark(1);
}

bool Socket::is_readable() const {
  set_low_water_mark(1);
  pollfd polled = {descriptor_, POLLIN, 0};
  return poll(&polled, 1, 0) > 0;
}

bool Socket::await(Ready ready, Deadline deadline, const std::atomic<bool>& ended) const {
  if (ready == Ready::to_send) return await_events(descriptor_, POLLOUT, deadline, ended);
  set_low_water_mark(1);
  return await_events(descriptor_, POLLIN, deadline, ended);
}

/**
 * Spins until `count` bytes are readable: a wake-up takes longer than bytes in flight. Each failed spin halves the next
 * one, for example when the sender needs this core.
 */
bool Socket::spin_for(size_t count) const {
  const auto begin = steady_clock::now();
  for (int there = 0, checks = 0;; checks++) {
    if (ioctl(descriptor_, FIONREAD, &there) != 0 || static_cast<size_t>(there) >= count) {
      if (checks > 0) spin_time_ = kSpinMost;
      return true;
    }
    if (steady_clock::now() - begin >= spin_time_) break;
    for (int i = 0; i < kPausesPerCheck; i++) pause();
  }
  spin_time_ = std::max<std::chrono::nanoseconds>(spin_time_ / 2, kSpinLeast);
  return false;
}

void Socket::set_low_water_mark(size_t count) const {
  if (low_water_mark_ == count) return;
  set(descriptor_, SOL_SOCKET, SO_RCVLOWAT, static_cast<int>(count));
  low_water_mark_ = count;
}

void Socket::await_bytes(size_t count) const {
  const size_t enough = std::min(count, kLowWaterMarkMost);
  if (spin_for(enough)) return;
  set_low_water_mark(enough);
  pollfd polled = {descriptor_, POLLIN, 0};
  poll(&polled, 1, kWaitMs);
}

Socket connect_to(const HostPort& address, Deadline deadline, const std::atomic<bool>& ended) {
  const Addresses addresses(address, 0);
  for (const addrinfo* at = addresses.first; at != nullptr; at = at->ai_next) {
    Socket socket(::socket(at->ai_family, at->ai_socktype, at->ai_protocol));
    if (!socket.is_open()) continue;
    configure(socket.descriptor());
    if (connect(socket.descriptor(), at->ai_addr, at->ai_addrlen) != 0) {
      if (errno != EINPROGRESS || !socket.await_writable(deadline, ended)) continue;
      int failure = 0;
      socklen_t size = sizeof failure;
      if (getsockopt(socket.descriptor(), SOL_SOCKET, SO_ERROR, &failure, &size) != 0 || failure != 0) continue;
    }
    disable_pacing_on_loopback(socket.descriptor());
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
    configure(socket.descriptor());
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
  if (socket.is_open()) configure(socket.descriptor());
  return socket;
}

SocketPair loopback_pair() {
  const std::atomic<bool> never{false};
  const Socket listening = listen_at({"127.0.0.1", 0});
  SocketPair pair;
  pair.sender = connect_to({"127.0.0.1", port_of(listening)}, in_milliseconds(1000), never);
  if (pair.sender.is_open() && listening.await_readable(in_milliseconds(1000), never)) pair.receiver = accept_from(listening);
  if (!pair.receiver.is_open()) throw std::runtime_error("Cannot connect two loopback sockets: the connection timed out");
  return pair;
}

}  // namespace kvasir
