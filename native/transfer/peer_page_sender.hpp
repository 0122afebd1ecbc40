// One connection of an instance's messenger to another instance: pages leave as their layers are ready, as many as the other side keeps up with.
#pragma once
#include <deque>
#include <thread>

#include "net/listener.hpp"
#include "transfer/frame_writer.hpp"
#include "transfer/local_page_sender.hpp"

namespace kvasir {

/** A landing of another process, as its address tells. */
struct RemoteLanding {
  uint32_t number;
  uint64_t key;
  int places;
  bool operator==(const RemoteLanding& other) const { return number == other.number && key == other.key; }
};

struct SenderCounts {
  MessengerCounts sent;
  uint64_t broken = 0;    // connections that ended before everything had arrived
  uint64_t given_up = 0;  // times that nobody could be reached for long enough

  SenderCounts& operator+=(const SenderCounts& more) {
    sent += more.sent;
    broken += more.broken;
    given_up += more.given_up;
    return *this;
  }
};

/**
 * Pages are read a piece at a time, and nobody waits for the network meanwhile: whoever stops a stream waits for a copy in memory alone. What the
 * other side has not acknowledged is sent again over the next connection.
 */
class PageSender {
 public:
  /** @param frame_bytes of pages in a frame, about @param give_up_ms after the first failure nobody waits for these pages any more */
  PageSender(std::shared_ptr<KvPool> pool, HostPort address, Way way, const HashKey& key, size_t frame_bytes, int give_up_ms);
  ~PageSender();
  PageSender(const PageSender&) = delete;
  PageSender& operator=(const PageSender&) = delete;

  const HostPort& address() const { return address_; }
  /** Its latest connection's; automatic: there has been none. */
  Way way() const { return reached_; }
  /** Sends nothing to a landing that was given up. */
  void send(const RemoteLanding& landing, const std::vector<Parcel>& parcels, bool last);
  void stop(const RemoteLanding& landing);
  /** Parcels for the landing whose pages may still be read: what is not acknowledged may be sent again. */
  size_t left(const RemoteLanding& landing) const;
  SenderCounts counts() const;
  /** Landings that it has given up since the last call, because nobody could be reached. */
  std::vector<RemoteLanding> take_given_up();
  /** Has it nothing to do, and no connection to do it over? */
  bool is_idle() const;

 private:
  using Letters = Outbox<RemoteLanding>;
  struct Unacknowledged {
    Letters::Turn turn;
    uint32_t sequence;
    size_t bytes;
  };

  void serve();
  bool connect();
  void carry();
  bool send_turn(const Letters::Turn& turn);
  void disconnect();
  void hear_acks();
  bool take_ack(const Ack& ack);
  bool is_lost(const RemoteLanding& landing) const;
  void give_up();
  bool is_late() const;
  bool is_full() const;
  void rest();

  std::shared_ptr<KvPool> pool_;
  const HostPort address_;
  const Way way_;
  const HashKey key_;
  const size_t page_bytes_;
  const size_t turn_pages_;
  const int give_up_ms_;
  Letters outbox_;

  mutable std::mutex mutex_;
  std::condition_variable over_;
  SenderCounts counts_;
  std::deque<Unacknowledged> unacknowledged_;
  size_t unacknowledged_bytes_ = 0;
  Deadline heard_;  // an acknowledgement, or the first of what waits for one was sent
  bool connected_ = false;
  std::atomic<Way> reached_{Way::automatic};
  std::vector<RemoteLanding> lost_;  // given up, until somebody stops them: what comes behind pages that are missing must not leave
  std::vector<RemoteLanding> untold_;  // of them, those that nobody has been told of

  std::unique_ptr<Line> line_;
  std::unique_ptr<FrameWriter> writer_;  // to it
  uint32_t sequence_ = 0;
  Deadline failing_;  // since when no page arrived anywhere
  bool fails_ = false;
  int pause_ms_ = 0;
  std::atomic<bool> broken_{false};  // the connection
  std::atomic<bool> ended_{false};
  std::thread ears_;
  std::thread thread_;
};

}  // namespace kvasir
