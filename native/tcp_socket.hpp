// Sockets that never block for longer than their user allows, and can be told from any thread to stop waiting.
#pragma once
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>

namespace kvasir {

using Deadline = std::chrono::steady_clock::time_point;
inline Deadline in_milliseconds(int64_t count) { return std::chrono::steady_clock::now() + std::chrono::milliseconds(count); }
constexpr Deadline kNever = Deadline::max();

class Socket {
 public:
  Socket() = default;
  explicit Socket(int descriptor) : descriptor_(descriptor) {}
  Socket(Socket&& other) noexcept : descriptor_(other.descriptor_) { other.descriptor_ = -1; }
  Socket& operator=(Socket&& other) noexcept;
  ~Socket();

  bool is_open() const { return descriptor_ >= 0; }
  int descriptor() const { return descriptor_; }
  /** Ends what both sides do with it; whoever waits for it is woken. */
  void cut() const;

  /** What is there or can be taken, at once: bytes moved, 0 at the other side's end, or `kNothing` and `kBroken`. */
  static constexpr int64_t kNothing = -1, kBroken = -2;
  int64_t receive_some(void* to, size_t bytes) const;
  int64_t send_some(const void* from, size_t bytes) const;

  /** At once? */
  bool is_readable() const;
  /** False when `ended` is set or the deadline is over. */
  bool await_readable(Deadline deadline, const std::atomic<bool>& ended) const;
  /** Until so many bytes are there, the other side has ended, or a moment is over. Who waits for many is woken less often. */
  void await_bytes(size_t count) const;
  bool await_writable(Deadline deadline, const std::atomic<bool>& ended) const;

  /** All of it, or false. */
  bool receive(void* to, size_t bytes, Deadline deadline, const std::atomic<bool>& ended) const;
  bool send(const void* from, size_t bytes, Deadline deadline, const std::atomic<bool>& ended) const;

 private:
  bool comes_at_once(size_t count) const;

  int descriptor_ = -1;
};

struct HostPort {
  std::string host;
  int port = 0;
  bool operator==(const HostPort& other) const { return host == other.host && port == other.port; }
};

/** Closed where nobody answers. */
Socket connect_to(const HostPort& address, Deadline deadline, const std::atomic<bool>& ended);
/** Port 0: one that is free. Throws std::runtime_error where it cannot. */
Socket listen_at(const HostPort& address);
int port_of(const Socket& listening);
/** Closed where none came in the end. */
Socket accept_from(const Socket& listening);
/** The two ends of a connection over the loopback interface. Throws std::runtime_error. */
struct SocketPair {
  Socket sender, receiver;
};
SocketPair loopback_pair();

}  // namespace kvasir
