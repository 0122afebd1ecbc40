// One connection of an instance's messenger to another instance: pages leave as their layers are ready, as many as the other side keeps up with.
#pragma once
#include <deque>
#include <thread>

#include "net/listener.hpp"
#include "transfer/frame_writer.hpp"
#include "transfer/local_page_sender.hpp"

namespace kvasir {

/** A buffer of another process, as its address tells. */
struct RemoteReceiveBuffer {
  uint32_t number;
  uint64_t key;
  int slots;
  bool operator==(const RemoteReceiveBuffer& other) const { return number == other.number && key == other.key; }
};

struct PeerSendCounts {
  SendCounts sent;
  uint64_t broken = 0;    // connections that ended before everything had arrived
  uint64_t given_up = 0;  // times that nobody could be reached for long enough

  PeerSendCounts& operator+=(const PeerSendCounts& more) {
    sent += more.sent;
    broken += more.broken;
    given_up += more.given_up;
    return *this;
  }
};

/**
 * Pages are read a chunk at a time, and nobody waits for the network meanwhile: whoever stops a stream waits for a copy in memory alone. What the
 * other side has not acknowledged is sent again over the next connection.
 */
class PeerPageSender {
 public:
  /** @param frame_bytes of pages in a frame, about @param give_up_ms after the first failure nobody waits for these pages any more */
  PeerPageSender(std::shared_ptr<KvPool> pool, HostPort address, Transport transport, const HashKey& key, size_t frame_bytes, int give_up_ms);
  ~PeerPageSender();
  PeerPageSender(const PeerPageSender&) = delete;
  PeerPageSender& operator=(const PeerPageSender&) = delete;

  const HostPort& address() const { return address_; }
  /** Its latest connection's; automatic: there has been none. */
  Transport transport() const { return transport_in_use_; }
  /** Sends nothing to a buffer that was given up. */
  void send(const RemoteReceiveBuffer& buffer, const std::vector<PageDescriptor>& descriptors, bool last);
  void stop(const RemoteReceiveBuffer& buffer);
  /** Parcels for the buffer whose pages may still be read: what is not acknowledged may be sent again. */
  size_t pending(const RemoteReceiveBuffer& buffer) const;
  PeerSendCounts counts() const;
  /** Landings that it has given up since the last call, because nobody could be reached. */
  std::vector<RemoteReceiveBuffer> take_given_up();
  /** Has it nothing to do, and no connection to do it over? */
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
  std::condition_variable over_;
  PeerSendCounts counts_;
  std::deque<Unacknowledged> unacknowledged_;
  size_t unacknowledged_bytes_ = 0;
  Deadline last_ack_;  // an acknowledgement, or the first of what waits for one was sent
  bool connected_ = false;
  std::atomic<Transport> transport_in_use_{Transport::automatic};
  std::vector<RemoteReceiveBuffer> given_up_;  // given up, until somebody stops them: what comes behind pages that are missing must not leave
  std::vector<RemoteReceiveBuffer> unreported_;  // of them, those that nobody has been told of

  std::unique_ptr<Connection> connection_;
  std::unique_ptr<FrameWriter> writer_;  // to it
  uint32_t sequence_ = 0;
  Deadline failing_since_;  // since when no page arrived anywhere
  bool fails_ = false;
  int backoff_ms_ = 0;
  std::atomic<bool> broken_{false};  // the connection
  std::atomic<bool> ended_{false};
  std::thread ack_thread_;
  std::thread thread_;
};

}  // namespace kvasir
