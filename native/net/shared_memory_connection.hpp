// A connection between two processes of one host: a ring of shared memory each way, and a local socket that becomes
// readable when the peer exits.
#pragma once
#include <memory>

#include "net/local_socket.hpp"
#include "net/ring_connection.hpp"

namespace kvasir {

struct SharedRings;

class SharedMemoryConnection final : public RingConnection {
 public:
  /** Creates the memory and passes it over the socket; null if the peer does not accept it. */
  static std::unique_ptr<SharedMemoryConnection> offer(Socket socket, Deadline deadline, const std::atomic<bool>& ended);
  /** Maps the memory that the peer offers; null unless it has the right size and cannot be truncated. */
  static std::unique_ptr<SharedMemoryConnection> accept(Socket socket, Deadline deadline, const std::atomic<bool>& ended);
  ~SharedMemoryConnection() override;

  Transport transport() const override { return Transport::shared; }
  void shut_down() const override;
  void consume(size_t bytes) const override { in_.advance(bytes); }

 protected:
  bool has_ended() const override;
  bool write_out(size_t bytes) const override;
  bool await_received(size_t bytes, Deadline deadline, const std::atomic<bool>& ended) const override { return await_available(in_, bytes, deadline, ended); }
  bool await_space(size_t bytes, Deadline deadline, const std::atomic<bool>& ended) const override { return await_available(out_, bytes, deadline, ended); }

 private:
  SharedMemoryConnection(Socket socket, std::unique_ptr<SharedRings> rings, bool offered);
  static std::unique_ptr<SharedMemoryConnection> create(Socket socket, int descriptor, bool offered);
  bool await_available(const RingEnd& end, size_t bytes, Deadline deadline, const std::atomic<bool>& ended) const;

  Socket socket_;
  std::unique_ptr<SharedRings> rings_;
};

}  // namespace kvasir
