// A connection between two processes of one host: a ring of shared memory each way, and a local socket that tells when the other process is gone.
#pragma once
#include <memory>

#include "net/local_socket.hpp"
#include "net/shared_ring.hpp"

namespace kvasir {

struct SharedRings;

/** Sequence numbers are polled briefly, then slept on. What the other process writes later than it should changes nothing that was received. */
class SharedLine final : public Line {
 public:
  /** Makes the memory and passes it over the socket; null where the other side does not take it. */
  static std::unique_ptr<SharedLine> offer(Socket socket, Deadline deadline, const std::atomic<bool>& ended);
  /** Takes what the other side offers, if it has the right size and cannot be cut short. */
  static std::unique_ptr<SharedLine> take(Socket socket, Deadline deadline, const std::atomic<bool>& ended);
  ~SharedLine() override;

  bool is_shared() const override { return true; }
  void cut() const override;
  int64_t receive_parts(const iovec* parts, int count) const override;
  int64_t send_parts(const iovec* parts, int count, bool more) const override;
  const uint8_t* arrived(size_t& bytes) const override;
  void take(size_t bytes) const override;
  bool is_readable() const override;
  bool comes_soon() const override;
  void await_bytes(size_t count) const override;
  bool has_room() const override;
  uint8_t* draft(size_t bytes, Deadline deadline, const std::atomic<bool>& ended) override;
  bool post(size_t bytes, Deadline deadline, const std::atomic<bool>& ended) override;

 protected:
  bool await(Ready ready, Deadline deadline, const std::atomic<bool>& ended) const override;

 private:
  SharedLine(Socket socket, std::unique_ptr<SharedRings> rings, bool offered);
  static std::unique_ptr<SharedLine> over(Socket socket, int descriptor, bool offered);
  bool is_over() const;
  bool is_there(const RingEnd& end, size_t bytes) const;
  bool await_available(const RingEnd& end, size_t bytes, Deadline deadline, const std::atomic<bool>& ended) const;

  Socket socket_;
  std::unique_ptr<SharedRings> rings_;
  RingEnd in_, out_;
};

}  // namespace kvasir
