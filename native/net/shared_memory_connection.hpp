// A connection between two processes of one host: a ring of shared memory each way, and a local socket that becomes
// readable when the peer exits.
#pragma once
#include <memory>

#include "net/local_socket.hpp"
#include "net/shared_ring.hpp"

namespace kvasir {

struct SharedRings;

/**
 * Waits spin briefly, then sleep. Received bytes are copied or consumed before use, so later writes of the peer do not
 * change them.
 */
class SharedMemoryConnection final : public Connection {
 public:
  /** Creates the memory and passes it over the socket; null if the peer does not accept it. */
  static std::unique_ptr<SharedMemoryConnection> offer(Socket socket, Deadline deadline, const std::atomic<bool>& ended);
  /** Maps the memory that the peer offers; null unless it has the right size and cannot be truncated. */
  static std::unique_ptr<SharedMemoryConnection> accept(Socket socket, Deadline deadline, const std::atomic<bool>& ended);
  ~SharedMemoryConnection() override;

  Transport transport() const override { return Transport::shared; }
  bool has_rings() const override { return true; }
  void shut_down() const override;
  int64_t receive_parts(const iovec* parts, int count) const override;
  int64_t send_parts(const iovec* parts, int count, bool more) const override;
  const uint8_t* peek(size_t& bytes) const override;
  void consume(size_t bytes) const override;
  bool is_readable() const override;
  bool spin_until_readable() const override;
  void await_bytes(size_t count) const override;
  bool can_reserve() const override;
  uint8_t* reserve(size_t bytes, Deadline deadline, const std::atomic<bool>& ended) override;
  bool commit(size_t bytes, Deadline deadline, const std::atomic<bool>& ended) override;

 protected:
  bool await(Ready ready, Deadline deadline, const std::atomic<bool>& ended) const override;

 private:
  SharedMemoryConnection(Socket socket, std::unique_ptr<SharedRings> rings, bool offered);
  static std::unique_ptr<SharedMemoryConnection> create(Socket socket, int descriptor, bool offered);
  bool has_ended() const;
  bool has_available(const RingEnd& end, size_t bytes) const;
  bool await_available(const RingEnd& end, size_t bytes, Deadline deadline, const std::atomic<bool>& ended) const;

  Socket socket_;
  std::unique_ptr<SharedRings> rings_;
  RingEnd in_, out_;
};

}  // namespace kvasir
