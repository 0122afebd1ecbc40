// Sockets that never block for longer than their user allows, and can be told from any thread to stop waiting.
#pragma once
#include <string>

#include "net/connection.hpp"

namespace kvasir {

class Socket final : public Line {
 public:
  Socket() = default;
  explicit Socket(int descriptor) : descriptor_(descriptor) {}
  Socket(Socket&& other) noexcept : descriptor_(other.descriptor_) { other.descriptor_ = -1; }
  Socket& operator=(Socket&& other) noexcept;
  ~Socket() override;

  bool is_open() const { return descriptor_ >= 0; }
  int descriptor() const { return descriptor_; }
  /** For what arrives before it is received. */
  void make_room() const;

  void cut() const override;
  int64_t receive_parts(const iovec* parts, int count) const override;
  int64_t send_parts(const iovec* parts, int count, bool more) const override;
  void flush() const override;
  bool is_readable() const override;
  bool comes_soon() const override { return look_for(1); }
  void await_bytes(size_t count) const override;

 protected:
  bool await(Ready ready, Deadline deadline, const std::atomic<bool>& ended) const override;

 private:
  bool look_for(size_t count) const;
  void wake_for(size_t count) const;

  int descriptor_ = -1;
  // Of the thread that receives: how long it looks before it sleeps, and for how many bytes it is woken.
  mutable std::chrono::nanoseconds patience_ = kPatienceMost;
  mutable size_t woken_for_ = 1;
  mutable bool holds_ = false;  // of the thread that sends: some of it waits for more

  static constexpr std::chrono::nanoseconds kPatienceMost = std::chrono::microseconds(50), kPatienceLeast = std::chrono::microseconds(2);
};

struct HostPort {
  std::string host;
  int port = 0;
  bool operator==(const HostPort& other) const { return host == other.host && port == other.port; }
};

/** Makes waits short: non-blocking, closed in programs that are started. */
void make_prompt(int descriptor);
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
