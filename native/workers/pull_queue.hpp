// Pages whose shard an attention worker receives: of given lists, and of receive buffers as they are filled.
#pragma once
#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "kv/receive_buffer.hpp"

namespace kvasir {

/** A page with all KV heads, and the page of the worker that receives its shard. */
struct PulledPage {
  int32_t from;
  int32_t to;
};

/** A queue of pulls. One thread takes their pages, in order; any thread adds pulls and asks for their state. */
class PullQueue : public std::enable_shared_from_this<PullQueue> {
 public:
  /** @param shard layout of the worker's pages @param pages their count */
  PullQueue(const KvLayout& shard, int pages) : shard_(shard), pages_(pages) {}

  /**
   * Queues a pull from `source`, whose pages have all KV heads; `shard` is the index of this worker's.
   * @returns the number of the pull @throws std::runtime_error if a page does not exist or the layouts do not match
   */
  int pull(std::shared_ptr<KvPool> source, int shard, std::vector<PulledPage> pages);
  /**
   * Pulls each slot of a receive buffer over a pool with all KV heads when it is received, and again if it is received
   * again: layer by layer, while the prompt is still computed. `pages` (slots): the pages of the worker. It lasts until
   * `cancel`.
   */
  int pull_received(std::shared_ptr<ReceiveBuffer> buffer, int shard, std::vector<int32_t> pages);
  /** True once all pages of the pull have arrived, or all that were received. Unknown numbers: true. */
  bool is_done(int pull) const;
  /**
   * Drops the pages that were not taken yet. When it returns, taken pages have arrived. Sent ones may arrive later: steps
   * wait for them (`await_cancelled`), and pages that are sent afterwards arrive behind them.
   */
  void cancel(int pull);
  /** Waits until the sent pages of cancelled pulls have arrived. False if they have not by `deadline`. */
  bool await_cancelled(std::chrono::steady_clock::time_point deadline);

  /** Waits for a page. False once the queue has ended. */
  bool await_page();
  /** Ends the queue: no page is taken any more, and sent ones are not known to arrive. */
  void end();
  bool has_ended() const;
  /** Copies the shard of the next page to `to(page of the worker)`, where it has arrived. False if there is none. */
  template <class To>
  bool take(const To& to) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return copy_next(to) != 0;
  }
  /** The same, but the page arrives with the next call of `arrived`. */
  template <class To>
  bool send(const To& to) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const int pull = copy_next(to);
    if (pull != 0) in_flight_.push_back(pull);
    return pull != 0;
  }
  void arrived();

 private:
  struct Pull {
    int number;
    std::shared_ptr<KvPool> source;
    int shard;
    std::vector<PulledPage> pages;
    size_t next;
  };
  /** Slots that were received and are not pulled yet, in order. */
  struct ReceivedPull {
    int number;
    std::shared_ptr<ReceiveBuffer> buffer;
    int shard;
    std::vector<int32_t> pages;
    std::deque<int> slots;
    std::vector<uint8_t> is_queued;  // (slots)
  };

  void check(const KvLayout& from, int shard) const;
  bool is_page(int32_t page) const { return page >= 0 && page < pages_; }
  void slot_received(int pull, int slot);
  bool has_page() const;
  bool is_in_flight(int pull) const { return std::find(in_flight_.begin(), in_flight_.end(), pull) != in_flight_.end(); }
  /** The number of the pull that the copied page belongs to; 0: there is no page. */
  template <class To>
  int copy_next(const To& to) {
    for (ReceivedPull& pull : received_) {
      if (pull.slots.empty()) continue;
      const int slot = pull.slots.front();
      pull.slots.pop_front();
      pull.is_queued[static_cast<size_t>(slot)] = 0;
      const auto copy = [&] { copy_shard(pull.buffer->slot(slot), pull.shard, to(pull.pages[static_cast<size_t>(slot)])); };
      // Nothing is written to a closed buffer.
      if (!pull.buffer->while_open(copy)) copy();
      return pull.number;
    }
    if (pulls_.empty()) return 0;
    Pull& pull = pulls_.front();
    const int number = pull.number;
    const PulledPage page = pull.pages[pull.next++];
    copy_shard(pull.source->page(page.from), pull.shard, to(page.to));
    if (pull.next == pull.pages.size()) pulls_.pop_front();
    return number;
  }
  void copy_shard(const uint8_t* page, int shard, uint8_t* to) const;

  const KvLayout shard_;
  const int pages_;
  mutable std::mutex mutex_;  // guards the next members
  std::condition_variable changed_;
  std::deque<Pull> pulls_;
  std::deque<ReceivedPull> received_;
  std::vector<int> in_flight_;  // pulls of pages that were sent and have not arrived
  bool cancelled_in_flight_ = false;  // one of them is cancelled
  int last_ = 0;
  bool ended_ = false;
};

}  // namespace kvasir
