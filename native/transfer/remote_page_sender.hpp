// The messenger of an instance to those of other processes: a connection for each of them, as long as there is something to send.
#pragma once
#include <list>
#include <mutex>

#include "transfer/peer_page_sender.hpp"

namespace kvasir {

class FarMessenger {
 public:
  FarMessenger(std::shared_ptr<KvPool> pool, Way way, const HashKey& key, size_t frame_bytes, int give_up_ms)
      : pool_(std::move(pool)), way_(way), key_(key), frame_bytes_(frame_bytes), give_up_ms_(give_up_ms) {}

  /** As `Messenger::send`, to a landing of whoever listens there. */
  void send(const HostPort& address, const RemoteLanding& landing, const std::vector<Parcel>& parcels, bool last) {
    std::lock_guard<std::mutex> lock(mutex_);
    sender_for(address).send(landing, parcels, last);
  }

  /** Once this returns, nothing is read for the landing any more. */
  void stop(const HostPort& address, const RemoteLanding& landing) {
    std::lock_guard<std::mutex> lock(mutex_);
    for (PageSender& sender : senders_)
      if (sender.address() == address) sender.stop(landing);
  }

  /** As `Messenger::left`. */
  size_t left(const HostPort& address, const RemoteLanding& landing) const {
    std::lock_guard<std::mutex> lock(mutex_);
    size_t left = 0;
    for (const PageSender& sender : senders_)
      if (sender.address() == address) left += sender.left(landing);
    return left;
  }

  /** How pages get there; automatic: nobody has been reached there, or not for long. */
  Way way_to(const HostPort& address) const {
    std::lock_guard<std::mutex> lock(mutex_);
    for (const PageSender& sender : senders_)
      if (sender.address() == address) return sender.way();
    return Way::automatic;
  }

  /** Calls `tell` with address and landing of all that has been given up since the last time. */
  template <class Tell>
  void take_given_up(const Tell& tell) {
    std::lock_guard<std::mutex> lock(mutex_);
    for (PageSender& sender : senders_)
      for (const RemoteLanding& landing : sender.take_given_up()) tell(sender.address(), landing);
  }

  SenderCounts counts() const {
    std::lock_guard<std::mutex> lock(mutex_);
    SenderCounts sum = gone_;
    for (const PageSender& sender : senders_) sum += sender.counts();
    return sum;
  }

 private:
  PageSender& sender_for(const HostPort& address) {
    for (PageSender& sender : senders_)
      if (sender.address() == address) return sender;
    // Instances come and go: threads for those that went are not kept.
    for (auto at = senders_.begin(); at != senders_.end();) {
      if (!at->is_idle()) {
        ++at;
        continue;
      }
      gone_ += at->counts();
      at = senders_.erase(at);
    }
    return senders_.emplace_back(pool_, address, way_, key_, frame_bytes_, give_up_ms_);
  }

  std::shared_ptr<KvPool> pool_;
  const Way way_;
  const HashKey key_;
  const size_t frame_bytes_;
  const int give_up_ms_;
  mutable std::mutex mutex_;
  std::list<PageSender> senders_;
  SenderCounts gone_;  // of senders that are no more
};

}  // namespace kvasir
