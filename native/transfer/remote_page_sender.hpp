// Sends pages to other processes: one `PeerPageSender` for each peer, while there is something to send.
#pragma once
#include <list>
#include <mutex>

#include "transfer/peer_page_sender.hpp"

namespace kvasir {

class RemotePageSender {
 public:
  RemotePageSender(std::shared_ptr<KvPool> pool, Transport transport, const HashKey& key, size_t frame_bytes, int give_up_ms)
      : pool_(std::move(pool)), transport_(transport), key_(key), frame_bytes_(frame_bytes), give_up_ms_(give_up_ms) {}

  /** As `LocalPageSender::send`, to a receive buffer of the process at `address`. */
  void send(const HostPort& address, const RemoteReceiveBuffer& buffer, const std::vector<PageDescriptor>& descriptors, bool last) {
    std::lock_guard<std::mutex> lock(mutex_);
    sender_for(address).send(buffer, descriptors, last);
  }

  /** None of its pages is read after it returns. */
  void stop(const HostPort& address, const RemoteReceiveBuffer& buffer) {
    std::lock_guard<std::mutex> lock(mutex_);
    for (PeerPageSender& sender : senders_)
      if (sender.address() == address) sender.stop(buffer);
  }

  /** As `LocalPageSender::pending`. */
  size_t pending(const HostPort& address, const RemoteReceiveBuffer& buffer) const {
    std::lock_guard<std::mutex> lock(mutex_);
    size_t count = 0;
    for (const PeerPageSender& sender : senders_)
      if (sender.address() == address) count += sender.pending(buffer);
    return count;
  }

  /** The transport to this peer; automatic without a recent connection. */
  Transport transport_to(const HostPort& address) const {
    std::lock_guard<std::mutex> lock(mutex_);
    for (const PeerPageSender& sender : senders_)
      if (sender.address() == address) return sender.transport();
    return Transport::automatic;
  }

  /** Calls `report` with address and buffer of everything given up since the last call. */
  template <class Report>
  void take_given_up(const Report& report) {
    std::lock_guard<std::mutex> lock(mutex_);
    for (PeerPageSender& sender : senders_)
      for (const RemoteReceiveBuffer& buffer : sender.take_given_up()) report(sender.address(), buffer);
  }

  PeerSendCounts counts() const {
    std::lock_guard<std::mutex> lock(mutex_);
    PeerSendCounts sum = removed_;
    for (const PeerPageSender& sender : senders_) sum += sender.counts();
    return sum;
  }

 private:
  PeerPageSender& sender_for(const HostPort& address) {
    for (PeerPageSender& sender : senders_)
      if (sender.address() == address) return sender;
    // Removes idle senders, so that instances that have left cost no threads.
    for (auto at = senders_.begin(); at != senders_.end();) {
      if (!at->is_idle()) {
        ++at;
        continue;
      }
      removed_ += at->counts();
      at = senders_.erase(at);
    }
    return senders_.emplace_back(pool_, address, transport_, key_, frame_bytes_, give_up_ms_);
  }

  std::shared_ptr<KvPool> pool_;
  const Transport transport_;
  const HashKey key_;
  const size_t frame_bytes_;
  const int give_up_ms_;
  mutable std::mutex mutex_;
  std::list<PeerPageSender> senders_;
  PeerSendCounts removed_;  // of removed senders
};

}  // namespace kvasir
