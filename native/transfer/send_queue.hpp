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

/** One page on its transport. */
struct PageDescriptor {
  uint32_t step;   // that computes it; 0: computed before
  uint32_t layer;  // of the model, in order of computation
  int32_t page;    // of the sender's pool
  int32_t slot;   // in the buffer
  bool filling = false;  // may be written while it is sent, and is sent again then
};

/** Throws where a descriptor names no page of the pool, or none of the buffer's slots. */
inline void check_descriptors(const KvPool& pool, int slots, const std::vector<PageDescriptor>& descriptors) {
  for (const PageDescriptor& descriptor : descriptors) {
    if (descriptor.page >= 0 && descriptor.page < pool.pages && descriptor.slot >= 0 && descriptor.slot < slots) continue;
    throw std::runtime_error("Cannot send pages: no such page or slot: page " + std::to_string(descriptor.page) + " to slot " + std::to_string(descriptor.slot) +
                             " of " + std::to_string(slots));
  }
}

/** One thread takes turns and reads pages; any adds and stops. A `Target` says where pages land; equal ones are one destination. */
template <class Target>
class SendQueue {
 public:
  struct Stream {
    Target target;
    std::deque<PageDescriptor> descriptors;
    size_t in_flight = 0;  // descriptors of turns that were taken and have not arrived
    bool last = false;     // nothing comes behind these
    bool begun = false;    // a batch of it was taken
    bool ended = false;    // its last batch was taken
    bool reading = false;  // its pages are being read
    bool stopped = false;
  };

  /** What leaves in one go. With `last` the buffer is complete behind it. */
  struct Batch {
    std::shared_ptr<Stream> stream;
    std::vector<PageDescriptor> descriptors;
    bool last = false;
    bool first = false;         // of its stream
    size_t ready_pages = 0;     // with the first: those of the stream that could have count then
  };

  explicit SendQueue(const StepProgress& progress) : progress_(progress) {}

  void add(const Target& target, const std::vector<PageDescriptor>& descriptors, bool last) {
    std::lock_guard<std::mutex> lock(mutex_);
    auto found = std::find_if(streams_.begin(), streams_.end(), [&](const auto& stream) { return !stream->ended && !stream->stopped && stream->target == target; });
    if (found == streams_.end()) {
      auto stream = std::make_shared<Stream>();
      stream->target = target;
      found = streams_.insert(streams_.end(), std::move(stream));
    }
    (*found)->descriptors.insert((*found)->descriptors.end(), descriptors.begin(), descriptors.end());
    (*found)->last = last;
  }

  /** Drops the streams to targets that `matches` names. Once this returns, nothing is read for them any more. */
  template <class Matches>
  void stop(const Matches& matches) {
    std::unique_lock<std::mutex> lock(mutex_);
    const auto is_stopped_target = [&](const std::shared_ptr<Stream>& stream) { return matches(stream->target); };
    for (const auto& stream : streams_) stream->stopped = stream->stopped || is_stopped_target(stream);
    idle_.wait(lock, [&] { return std::none_of(streams_.begin(), streams_.end(), [&](const auto& stream) { return is_stopped_target(stream) && stream->reading; }); });
    streams_.remove_if(is_stopped_target);
  }

  /** Of all streams that are not over. */
  std::vector<Target> targets() const {
    std::lock_guard<std::mutex> lock(mutex_);
    std::vector<Target> all;
    for (const auto& stream : streams_)
      if (!stream->stopped) all.push_back(stream->target);
    return all;
  }

  /** At most `most` pages of the first stream that has some ready, or nothing count but to say so; it matches to the end of the connection. */
  bool next_batch(size_t limit, Batch& batch) {
    std::lock_guard<std::mutex> lock(mutex_);
    batch = {};
    for (auto at = streams_.begin(); at != streams_.end(); ++at) {
      Stream& stream = **at;
      if (stream.stopped || stream.ended) continue;
      while (batch.descriptors.size() < limit && !stream.descriptors.empty() && is_ready(stream.descriptors.front())) {
        batch.descriptors.push_back(stream.descriptors.front());
        stream.descriptors.pop_front();
      }
      batch.last = stream.descriptors.empty() && stream.last;
      if (batch.descriptors.empty() && !batch.last) continue;
      stream.in_flight += batch.descriptors.size();
      batch.first = !stream.begun && !batch.descriptors.empty();
      if (batch.first) batch.ready_pages = batch.descriptors.size() + ready_in(stream);
      stream.begun = stream.begun || batch.first;
      stream.ended = batch.last;
      batch.stream = *at;
      streams_.splice(streams_.end(), streams_, at);
      return true;
    }
    return false;
  }

  /** What a batch was to bring has not arrived: it is taken again. Turns of one stream come back the latest first. */
  void requeue(const Batch& batch) {
    std::lock_guard<std::mutex> lock(mutex_);
    batch.stream->in_flight -= batch.descriptors.size();
    batch.stream->descriptors.insert(batch.stream->descriptors.begin(), batch.descriptors.begin(), batch.descriptors.end());
    batch.stream->ended = batch.stream->ended && !batch.last;
  }

  /** A batch is where it was to go: its pages are read no more. */
  void acknowledge(const Batch& batch) {
    std::lock_guard<std::mutex> lock(mutex_);
    batch.stream->in_flight -= batch.descriptors.size();
  }

  /** Parcels for the targets that `matches` names that have not arrived, and may still be read. */
  template <class Matches>
  size_t pending(const Matches& matches) const {
    std::lock_guard<std::mutex> lock(mutex_);
    size_t count = 0;
    for (const auto& stream : streams_)
      if (!stream->stopped && matches(stream->target)) count += stream->descriptors.size() + stream->in_flight;
    return count;
  }

  bool is_stopped(const Batch& batch) const {
    std::lock_guard<std::mutex> lock(mutex_);
    return batch.stream->stopped;
  }

  /** False where it was stopped: then nothing may be read. */
  bool begin_reading(const Batch& batch) {
    std::lock_guard<std::mutex> lock(mutex_);
    return batch.stream->reading = !batch.stream->stopped;
  }
  void end_reading(const Batch& batch) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      batch.stream->reading = false;
    }
    idle_.notify_all();
  }

  /** The last batch has arrived; false where the stream was stopped before. */
  bool finish(const Batch& batch) {
    std::lock_guard<std::mutex> lock(mutex_);
    streams_.remove(batch.stream);
    return !batch.stream->stopped;
  }

  bool empty() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return streams_.empty();
  }

 private:
  size_t ready_in(const Stream& stream) const {
    const auto unready = [this](const PageDescriptor& descriptor) { return !is_ready(descriptor); };
    return static_cast<size_t>(std::find_if(stream.descriptors.begin(), stream.descriptors.end(), unready) - stream.descriptors.begin());
  }
  bool is_ready(const PageDescriptor& descriptor) const { return descriptor.step == 0 || progress_.is_ready(descriptor.step, descriptor.layer); }

  const StepProgress& progress_;
  mutable std::mutex mutex_;
  std::condition_variable idle_;  // a stream is no longer being read
  std::list<std::shared_ptr<Stream>> streams_;  // the one whose batch is next comes first
};

}  // namespace kvasir
