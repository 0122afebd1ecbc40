// A connection between two processes over RDMA: each side writes into a ring of the other's memory, and then the
// sequence number behind the data.
#pragma once
#include <deque>
#include <memory>

#include "net/ring_connection.hpp"
#include "net/socket.hpp"
#include "rdma/queue_pair.hpp"

namespace kvasir {

/** The beginning of the memory that the peer writes to: its words, then the ring. */
struct RdmaWords {
  static constexpr size_t kBytes = size_t{1} << 16;  // a multiple of every page size
  RingState in;   // the peer writes `written`
  RingState out;  // the peer writes `read`
  alignas(64) std::atomic<uint64_t> ended{0}, probe{0};

  static constexpr uint64_t written_offset() { return offsetof(RdmaWords, in) + offsetof(RingState, written); }
  static constexpr uint64_t read_offset() { return offsetof(RdmaWords, out) + offsetof(RingState, read); }
};

/** What one side offers the other, over the socket; little-endian. */
struct RdmaOffer {
  static constexpr uint64_t kMagic = 0x31616d64'72766bull, kSeed = 17;
  static constexpr uint32_t kVersion = 1;
  uint64_t magic = kMagic;
  uint32_t version = kVersion;
  uint32_t usable = 0;  // 1: the fields below are valid
  uint64_t memory = 0, ring_bytes = kRingBytes, probe = 0;
  uint32_t key = 0, number = 0, first_packet = 0;
  uint16_t lid = 0;
  uint8_t link_layer = 0, mtu = 0;
  uint8_t gid[16] = {};
  uint64_t checksum = 0;

  /** A usable offer. @param probe the word that the peer writes first */
  static RdmaOffer of(const QueuePairAddress& at, uint64_t probe);
  QueuePairAddress address() const;
  /** The checksum that it must have. */
  uint64_t sum() const;
};
static_assert(sizeof(RdmaOffer) == 80, "wire structures have no padding");

/**
 * The socket over which both sides have agreed stays open: it ends when the peer exits. The peer writes to the ring and
 * to words beside it only.
 */
class RdmaConnection final : public RingConnection {
 public:
  /**
   * Agrees over a socket whose handshake is complete and in which both sides have offered RDMA. Returns a connection
   * over RDMA; over the socket if a device refuses or no write arrives; null if the peer's answer is invalid. The side
   * that connected calls `agree_as_sender`.
   */
  static std::unique_ptr<Connection> agree_as_sender(Socket socket, const std::shared_ptr<RdmaDevice>& device, Deadline deadline, const std::atomic<bool>& ended);
  static std::unique_ptr<Connection> agree_as_receiver(Socket socket, const std::shared_ptr<RdmaDevice>& device, Deadline deadline, const std::atomic<bool>& ended);
  ~RdmaConnection() override;

  /** @throws std::runtime_error with the reason if connections over this device cannot be made */
  static void try_device(const std::shared_ptr<RdmaDevice>& device);

  Transport transport() const override { return Transport::rdma; }
  void shut_down() const override;
  void consume(size_t bytes) const override;

 protected:
  bool has_ended() const override;
  bool has_failed() const override;
  size_t space() const override;
  bool is_writable() const override;
  bool write_out(size_t bytes) const override;
  bool await_received(size_t bytes, Deadline deadline, const std::atomic<bool>& ended) const override;
  bool await_space(size_t bytes, Deadline deadline, const std::atomic<bool>& ended) const override;

 private:
  struct Endpoint;
  static std::unique_ptr<Endpoint> try_endpoint(const std::shared_ptr<RdmaDevice>& device);
  RdmaConnection(Socket socket, std::unique_ptr<Endpoint> endpoint);
  void report_read() const;
  void check_peer() const;

  Socket socket_;
  std::unique_ptr<Endpoint> endpoint_;
  mutable std::atomic<bool> ended_{false};
  mutable std::atomic<int64_t> hung_up_at_{0};  // nanoseconds of the steady clock; 0: the socket is open
  // Of the receiving thread: bytes consumed, and those of them that were reported to the peer.
  mutable uint64_t read_ = 0, reported_ = 0;
  // Of the sending thread: bytes written, those known to be complete, and the tickets of the others.
  struct Unfinished {
    uint64_t ticket, written;
  };
  mutable uint64_t written_ = 0, finished_ = 0;
  mutable std::deque<Unfinished> unfinished_;
};

}  // namespace kvasir
