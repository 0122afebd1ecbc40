// Non-blocking sockets: their waits end by a deadline or when another thread sets a flag.
#pragma once
#include <string>

#include "net/connection.hpp"

namespace kvasir {

class Socket final : public Connection {
 public:
  Socket() = default;
  explicit Socket(int descriptor) : descriptor_(descriptor) {}
  Socket(Socket&& other) noexcept : descriptor_(other.descriptor_) { other.descriptor_ = -1; }
  Socket& operator=(Socket&& other) noexcept;
  ~Socket() override;

  bool is_open() const { return descriptor_ >= 0; }
  int descriptor() const { return descriptor_; }
  /** Enlarges the system's receive buffer. */
  void enlarge_receive_buffer() const;

  Transport transport() const override { return Transport::tcp; }
  void shut_down() const override;
  int64_t receive_parts(const iovec* parts, int count) const override;
  int64_t send_parts(const iovec* parts, int count, bool more) const override;
  void flush() const override;
  bool is_readable() const override;
  bool spin_until_readable() const override { return spin_for(1); }
  void await_bytes(size_t count) const override;

 protected:
  bool await(Ready ready, Deadline deadline, const std::atomic<bool>& ended) const override;

 private:
  bool spin_for(size_t count) const;
  void set_low_water_mark(size_t count) const;

  int descriptor_ = -1;
  // Of the receiving thread: how long it spins before it sleeps, and how many bytes wake it.
  mutable std::chrono::nanoseconds spin_time_ = kSpinMost;
  mutable size_t low_water_mark_ = 1;
  mutable bool corked_ = false;  // of the sending thread: the system holds bytes back until more follow

  static constexpr std::chrono::nanoseconds kSpinMost = std::chrono::microseconds(50), kSpinLeast = std::chrono::microseconds(2);
};

struct HostPort {
  std::string host;
  int port = 0;
  bool operator==(const HostPort& other) const { return host == other.host && port == other.port; }
};

/** Makes a descriptor non-blocking and closes it in programs that this process starts. */
void make_nonblocking(int descriptor);
/** Returns a closed socket if no listener answers. */
Socket connect_to(const HostPort& address, Deadline deadline, const std::atomic<bool>& ended);
/** Port 0 chooses a free port. @throws std::runtime_error if the address cannot be bound */
Socket listen_at(const HostPort& address);
int port_of(const Socket& listening);
/** Returns a closed socket if the peer has gone. */
Socket accept_from(const Socket& listening);
/** Both ends of a connection over the loopback interface. @throws std::runtime_error */
struct SocketPair {
  Socket sender, receiver;
};
SocketPair loopback_pair();

}  // namespace kvasir
