// The messenger of an instance: a thread that copies pages of its pool to landings of others, layer by layer as a step computes them.
#pragma once
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <mutex>
#include <thread>

#include "landing.hpp"

namespace kvasir {

/** One page on its way. */
struct Parcel {
  uint32_t step;   // that computes it; 0: computed before
  uint32_t layer;  // of the model, in order of computation
  int32_t page;    // of the sender's pool
  int32_t place;   // in the landing
};

struct MessengerCounts {
  uint64_t pages = 0;
  uint64_t bytes = 0;
  uint64_t early_bytes = 0;  // of them, that left while a step ran over the pool: hidden behind it
  uint64_t nanoseconds = 0;  // spent copying
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
  MessengerCounts counts() const;

 private:
  struct Stream {
    std::shared_ptr<Landing> landing;
    std::deque<Parcel> parcels;
    bool last = false;
    bool copying = false;
    bool stopped = false;
  };

  void serve();
  bool advance();
  Stream* next_ready(std::vector<Parcel>& taken);
  bool is_ready(const Parcel& parcel) const { return parcel.step == 0 || pool_->progress.is_ready(parcel.step, parcel.layer); }
  void copy(const Stream& stream, const std::vector<Parcel>& taken);
  void settle(Stream* stream);
  void check(const Landing& landing, const Parcel& parcel) const;

  std::shared_ptr<KvPool> pool_;
  mutable std::mutex mutex_;
  std::condition_variable idle_;  // a stream is no longer being copied
  std::list<Stream> streams_;     // the one whose turn is next comes first
  MessengerCounts counts_;
  bool closing_ = false;
  std::thread thread_;
};

}  // namespace kvasir
