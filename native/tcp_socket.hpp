// Sockets that never block for longer than their user allows, and can be told from any thread to stop waiting.
#pragma once
#include <string>
#include <vector>

#include "line.hpp"

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

  void cut() const override;
  int64_t receive_some(void* to, size_t bytes) const override;
  int64_t receive_parts(const iovec* parts, int count) const override;
  int64_t send_some(const void* from, size_t bytes) const override;
  bool is_readable() const override;
  bool await_readable(Deadline deadline, const std::atomic<bool>& ended) const override;
  void await_bytes(size_t count) const override;
  bool await_writable(Deadline deadline, const std::atomic<bool>& ended) const override;
  uint8_t* draft(size_t bytes, Deadline deadline, const std::atomic<bool>& ended) override;
  bool post(size_t bytes, Deadline deadline, const std::atomic<bool>& ended) override;

 private:
  bool comes_at_once(size_t count) const;

  int descriptor_ = -1;
  std::vector<uint8_t> draft_;
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
