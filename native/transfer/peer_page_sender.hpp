// Sends pages to one other process: over one connection, as layers become ready, within a window of unacknowledged
// bytes.
#pragma once
#include <deque>
#include <thread>

#include "net/listener.hpp"
#include "transfer/frame_writer.hpp"
#include "transfer/local_page_sender.hpp"

namespace kvasir {

/** A receive buffer of another process, as its address states. */
struct RemoteReceiveBuffer {
  uint32_t number;
  uint64_t key;
  int slots;
  bool operator==(const RemoteReceiveBuffer& other) const { return number == other.number && key == other.key; }
};

struct PeerSendCounts {
  SendCounts sent;
  uint64_t broken = 0;    // connections that ended with unacknowledged frames
  uint64_t given_up = 0;  // times that the peer was unreachable for too long

  PeerSendCounts& operator+=(const PeerSendCounts& more) {
    sent += more.sent;
    broken += more.broken;
    given_up += more.given_up;
    return *this;
  }
};

/**
 * Pages are read in chunks and never during a wait for the network, so `stop` waits for one copy in memory at most.
 * Frames that the peer has not acknowledged are sent again over the next connection.
 */
class PeerPageSender {
 public:
  /**
   * @param frame_bytes approximate bytes of pages in a frame @param give_up_ms how long after the first failure the
   * pages are given up
   */
  PeerPageSender(std::shared_ptr<KvPool> pool, HostPort address, Transport transport, const HashKey& key, size_t frame_bytes, int give_up_ms);
  ~PeerPageSender();
  PeerPageSender(const PeerPageSender&) = delete;
  PeerPageSender& operator=(const PeerPageSender&) = delete;

  const HostPort& address() const { return address_; }
  /** Of the latest connection; automatic before the first. */
  Transport transport() const { return transport_in_use_; }
  /** Does nothing for a buffer that was given up. */
  void send(const RemoteReceiveBuffer& buffer, const std::vector<PageDescriptor>& descriptors, bool last);
  void stop(const RemoteReceiveBuffer& buffer);
  /** Queued and unacknowledged pages of this buffer, which may still be read. */
  size_t pending(const RemoteReceiveBuffer& buffer) const;
  PeerSendCounts counts() const;
  /** Buffers given up since the last call because the peer was unreachable. */
  std::vector<RemoteReceiveBuffer> take_given_up();
  /** True without queued pages and without a connection. */
  bool is_idle() const;

 private:
  using Queue = SendQueue<RemoteReceiveBuffer>;
  struct Unacknowledged {
    Queue::Batch batch;
    uint32_t sequence;
    size_t bytes;
  };

  void serve();
  bool connect();
  void send_batches();
  bool send_batch(const Queue::Batch& batch);
  void disconnect();
  void receive_acks();
  bool take_ack(const Ack& ack);
  bool is_given_up(const RemoteReceiveBuffer& buffer) const;
  void give_up();
  bool acks_timed_out() const;
  bool is_full() const;
  void back_off();

  std::shared_ptr<KvPool> pool_;
  const HostPort address_;
  const Transport transport_;
  const HashKey key_;
  const size_t page_bytes_;
  const size_t batch_pages_;
  const int give_up_ms_;
  Queue queue_;

  mutable std::mutex mutex_;
  std::condition_variable ended_changed_;
  PeerSendCounts counts_;
  std::deque<Unacknowledged> unacknowledged_;
  size_t unacknowledged_bytes_ = 0;
  Deadline last_ack_;  // time of the last acknowledgement, or of the first frame that waits for one
  bool connected_ = false;
  std::atomic<Transport> transport_in_use_{Transport::automatic};
  std::vector<RemoteReceiveBuffer> given_up_;  // until they are stopped: pages after missing ones must not be sent
  std::vector<RemoteReceiveBuffer> unreported_;  // of them, not yet returned by `take_given_up`

  std::unique_ptr<Connection> connection_;
  std::unique_ptr<FrameWriter> writer_;  // over `connection_`
  uint32_t sequence_ = 0;
  Deadline failing_since_;  // time of the first failure since the last acknowledgement
  bool failing_ = false;
  int backoff_ms_ = 0;
  std::atomic<bool> broken_{false};  // the current connection
  std::atomic<bool> ended_{false};
  std::thread ack_thread_;
  std::thread thread_;
};

}  // namespace kvasir
