// Pages to send, by destination: in order within one destination, in turns between destinations, each page once its
// layer is ready.
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

/** One page to send. */
struct PageDescriptor {
  uint32_t step;   // the step that computes it; 0: computed before
  uint32_t layer;  // of the model, in computation order
  int32_t page;    // in the sender's pool
  int32_t slot;   // in the receive buffer
  bool filling = false;  // may be written while it is sent, and is sent again afterwards
};

/** @throws std::runtime_error if a descriptor names a page outside the pool or a slot outside the buffer */
inline void check_descriptors(const KvPool& pool, int slots, const std::vector<PageDescriptor>& descriptors) {
  for (const PageDescriptor& descriptor : descriptors) {
    if (descriptor.page >= 0 && descriptor.page < pool.pages && descriptor.slot >= 0 && descriptor.slot < slots) continue;
    throw std::runtime_error("Cannot send pages: no such page or slot: page " + std::to_string(descriptor.page) + " to slot " + std::to_string(descriptor.slot) +
                             " of " + std::to_string(slots));
  }
}

/**
 * One thread takes batches and reads pages; any thread adds and stops. A `Target` names a receive buffer; equal targets
 * share a stream.
 */
template <class Target>
class SendQueue {
 public:
  struct Stream {
    Target target;
    std::deque<PageDescriptor> descriptors;
    size_t in_flight = 0;  // descriptors in batches that are not acknowledged
    bool last = false;     // the stream ends with these descriptors
    bool begun = false;    // a batch was taken
    bool ended = false;    // the last batch was taken
    bool reading = false;  // its pages are being read
    bool stopped = false;
  };

  /** Pages sent together. With `last` the receive buffer completes after them. */
  struct Batch {
    std::shared_ptr<Stream> stream;
    std::vector<PageDescriptor> descriptors;
    bool last = false;
    bool first = false;         // of the stream
    size_t ready_pages = 0;     // with `first`: pages of the stream that were ready
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

  /** Drops the matching streams. None of their pages is read after it returns. */
  template <class Matches>
  void stop(const Matches& matches) {
    std::unique_lock<std::mutex> lock(mutex_);
    const auto is_stopped_target = [&](const std::shared_ptr<Stream>& stream) { return matches(stream->target); };
    for (const auto& stream : streams_) stream->stopped = stream->stopped || is_stopped_target(stream);
    idle_.wait(lock, [&] { return std::none_of(streams_.begin(), streams_.end(), [&](const auto& stream) { return is_stopped_target(stream) && stream->reading; }); });
    streams_.remove_if(is_stopped_target);
  }

  /** The targets of all streams that are not stopped. */
  std::vector<Target> targets() const {
    std::lock_guard<std::mutex> lock(mutex_);
    std::vector<Target> all;
    for (const auto& stream : streams_)
      if (!stream->stopped) all.push_back(stream->target);
    return all;
  }

  /**
   * Takes at most `limit` pages of the first stream with ready pages or an end to report; that stream moves to the end
   * of the list.
   */
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

  /** Returns an unacknowledged batch to its stream. Batches of one stream must be returned in reverse order. */
  void requeue(const Batch& batch) {
    std::lock_guard<std::mutex> lock(mutex_);
    batch.stream->in_flight -= batch.descriptors.size();
    batch.stream->descriptors.insert(batch.stream->descriptors.begin(), batch.descriptors.begin(), batch.descriptors.end());
    batch.stream->ended = batch.stream->ended && !batch.last;
  }

  /** The batch has arrived: its pages are not read any more. */
  void acknowledge(const Batch& batch) {
    std::lock_guard<std::mutex> lock(mutex_);
    batch.stream->in_flight -= batch.descriptors.size();
  }

  /** Queued and in-flight pages of the matching streams. */
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

  /** False if the stream is stopped: its pages must not be read. */
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

  /** Removes the stream after its last batch has arrived; false if it was stopped before. */
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
  std::condition_variable idle_;  // notified when a stream's pages are no longer read
  std::list<std::shared_ptr<Stream>> streams_;  // in round-robin order
};

}  // namespace kvasir
