// What is to leave a pool, by destination: in the order of sending within one, in turns between them, each page once its layer is ready.
#pragma once
#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include "kv/kv_pool.hpp"

namespace kvasir {

/** One page on its way. */
struct Parcel {
  uint32_t step;   // that computes it; 0: computed before
  uint32_t layer;  // of the model, in order of computation
  int32_t page;    // of the sender's pool
  int32_t place;   // in the landing
  bool fills = false;  // may be written while it is sent, and is sent again then
};

/** Throws where a parcel names no page of the pool, or none of the landing's places. */
inline void check_parcels(const KvPool& pool, int places, const std::vector<Parcel>& parcels) {
  for (const Parcel& parcel : parcels) {
    if (parcel.page >= 0 && parcel.page < pool.pages && parcel.place >= 0 && parcel.place < places) continue;
    throw std::runtime_error("Cannot send pages: no such page or place: page " + std::to_string(parcel.page) + " to place " + std::to_string(parcel.place) +
                             " of " + std::to_string(places));
  }
}

/** One thread takes turns and reads pages; any adds and stops. A `Target` says where pages land; equal ones are one destination. */
template <class Target>
class Outbox {
 public:
  struct Stream {
    Target target;
    std::deque<Parcel> parcels;
    size_t under_way = 0;  // parcels of turns that were taken and have not arrived
    bool last = false;     // nothing comes behind these
    bool begun = false;    // a turn of it was taken
    bool ended = false;    // its last turn was taken
    bool reading = false;  // its pages are being read
    bool stopped = false;
  };

  /** What leaves in one go. With `last` the landing is complete behind it. */
  struct Turn {
    std::shared_ptr<Stream> stream;
    std::vector<Parcel> parcels;
    bool last = false;
    bool first = false;         // of its stream
    size_t ready_pages = 0;     // with the first: those of the stream that could have left then
  };

  explicit Outbox(const StepProgress& progress) : progress_(progress) {}

  void add(const Target& target, const std::vector<Parcel>& parcels, bool last) {
    std::lock_guard<std::mutex> lock(mutex_);
    auto found = std::find_if(streams_.begin(), streams_.end(), [&](const auto& stream) { return !stream->ended && !stream->stopped && stream->target == target; });
    if (found == streams_.end()) {
      auto stream = std::make_shared<Stream>();
      stream->target = target;
      found = streams_.insert(streams_.end(), std::move(stream));
    }
    (*found)->parcels.insert((*found)->parcels.end(), parcels.begin(), parcels.end());
    (*found)->last = last;
  }

  /** Drops the streams to targets that `goes` names. Once this returns, nothing is read for them any more. */
  template <class Goes>
  void stop(const Goes& goes) {
    std::unique_lock<std::mutex> lock(mutex_);
    const auto is_gone = [&](const std::shared_ptr<Stream>& stream) { return goes(stream->target); };
    for (const auto& stream : streams_) stream->stopped = stream->stopped || is_gone(stream);
    idle_.wait(lock, [&] { return std::none_of(streams_.begin(), streams_.end(), [&](const auto& stream) { return is_gone(stream) && stream->reading; }); });
    streams_.remove_if(is_gone);
  }

  /** Of all streams that are not over. */
  std::vector<Target> targets() const {
    std::lock_guard<std::mutex> lock(mutex_);
    std::vector<Target> all;
    for (const auto& stream : streams_)
      if (!stream->stopped) all.push_back(stream->target);
    return all;
  }

  /** At most `most` pages of the first stream that has some ready, or nothing left but to say so; it goes to the end of the line. */
  bool take(size_t most, Turn& turn) {
    std::lock_guard<std::mutex> lock(mutex_);
    turn = {};
    for (auto at = streams_.begin(); at != streams_.end(); ++at) {
      Stream& stream = **at;
      if (stream.stopped || stream.ended) continue;
      while (turn.parcels.size() < most && !stream.parcels.empty() && is_ready(stream.parcels.front())) {
        turn.parcels.push_back(stream.parcels.front());
        stream.parcels.pop_front();
      }
      turn.last = stream.parcels.empty() && stream.last;
      if (turn.parcels.empty() && !turn.last) continue;
      stream.under_way += turn.parcels.size();
      turn.first = !stream.begun && !turn.parcels.empty();
      if (turn.first) turn.ready_pages = turn.parcels.size() + ready_in(stream);
      stream.begun = stream.begun || turn.first;
      stream.ended = turn.last;
      turn.stream = *at;
      streams_.splice(streams_.end(), streams_, at);
      return true;
    }
    return false;
  }

  /** What a turn was to bring has not arrived: it is taken again. Turns of one stream come back the latest first. */
  void restore(const Turn& turn) {
    std::lock_guard<std::mutex> lock(mutex_);
    turn.stream->under_way -= turn.parcels.size();
    turn.stream->parcels.insert(turn.stream->parcels.begin(), turn.parcels.begin(), turn.parcels.end());
    turn.stream->ended = turn.stream->ended && !turn.last;
  }

  /** A turn is where it was to go: its pages are read no more. */
  void arrived(const Turn& turn) {
    std::lock_guard<std::mutex> lock(mutex_);
    turn.stream->under_way -= turn.parcels.size();
  }

  /** Parcels for the targets that `goes` names that have not arrived, and may still be read. */
  template <class Goes>
  size_t left(const Goes& goes) const {
    std::lock_guard<std::mutex> lock(mutex_);
    size_t left = 0;
    for (const auto& stream : streams_)
      if (!stream->stopped && goes(stream->target)) left += stream->parcels.size() + stream->under_way;
    return left;
  }

  bool is_stopped(const Turn& turn) const {
    std::lock_guard<std::mutex> lock(mutex_);
    return turn.stream->stopped;
  }

  /** False where it was stopped: then nothing may be read. */
  bool begin_reading(const Turn& turn) {
    std::lock_guard<std::mutex> lock(mutex_);
    return turn.stream->reading = !turn.stream->stopped;
  }
  void end_reading(const Turn& turn) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      turn.stream->reading = false;
    }
    idle_.notify_all();
  }

  /** The last turn has arrived; false where the stream was stopped before. */
  bool finish(const Turn& turn) {
    std::lock_guard<std::mutex> lock(mutex_);
    streams_.remove(turn.stream);
    return !turn.stream->stopped;
  }

  bool empty() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return streams_.empty();
  }

 private:
  size_t ready_in(const Stream& stream) const {
    const auto unready = [this](const Parcel& parcel) { return !is_ready(parcel); };
    return static_cast<size_t>(std::find_if(stream.parcels.begin(), stream.parcels.end(), unready) - stream.parcels.begin());
  }
  bool is_ready(const Parcel& parcel) const { return parcel.step == 0 || progress_.is_ready(parcel.step, parcel.layer); }

  const StepProgress& progress_;
  mutable std::mutex mutex_;
  std::condition_variable idle_;  // a stream is no longer being read
  std::list<std::shared_ptr<Stream>> streams_;  // the one whose turn is next comes first
};

}  // namespace kvasir
