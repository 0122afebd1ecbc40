// The messenger of an instance: a thread that copies pages of its pool to landings of others, layer by layer as a step computes them.
#pragma once
#include <thread>

#include "kv/receive_buffer.hpp"
#include "transfer/send_queue.hpp"

namespace kvasir {

struct MessengerCounts {
  uint64_t pages = 0;
  uint64_t bytes = 0;
  uint64_t early_bytes = 0;  // of them, that left while a step ran over the pool: hidden behind it
  uint64_t nanoseconds = 0;  // spent copying, or writing to sockets
  uint64_t streams = 0;      // that have begun
  uint64_t first_pages = 0;  // pages that could have left when the first of each stream did, all together

  MessengerCounts& operator+=(const MessengerCounts& more) {
    pages += more.pages;
    bytes += more.bytes;
    early_bytes += more.early_bytes;
    nanoseconds += more.nanoseconds;
    streams += more.streams;
    first_pages += more.first_pages;
    return *this;
  }
};

/**
 * Parcels of one landing go in the order of sending, so that a page that is sent again as it fills lands as it was last. Landings take turns:
 * one whose layers are not ready holds up no other.
 */
class Messenger {
 public:
  explicit Messenger(std::shared_ptr<KvPool> pool);
  ~Messenger();
  Messenger(const Messenger&) = delete;
  Messenger& operator=(const Messenger&) = delete;

  /** With `last` the landing is complete once these have landed. Throws where a parcel names no page or place, or pages differ in shape. */
  void send(const std::shared_ptr<Landing>& landing, const std::vector<Parcel>& parcels, bool last);
  /** Drops what has not left for the landing of this number. Once this returns, nothing is read for it any more. */
  void stop(int landing);
  /** Parcels for the landing of this number whose pages may still be read. */
  size_t left(int landing) const;
  MessengerCounts counts() const;

 private:
  using Letters = Outbox<std::shared_ptr<Landing>>;

  void serve();
  bool advance();
  void copy(const Letters::Turn& turn);

  std::shared_ptr<KvPool> pool_;
  Letters outbox_;
  mutable std::mutex mutex_;
  MessengerCounts counts_;
  bool closing_ = false;
  std::thread thread_;
};

}  // namespace kvasir
