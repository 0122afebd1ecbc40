// Receive buffers: slots in a pool that other instances fill with pages, until the transfer is complete or closed.
#pragma once
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "kv/kv_pool.hpp"
#include "kv/layer_arrivals.hpp"

namespace kvasir {

/** Numbers of completed receive buffers. Sending threads push, the instance takes. */
class CompletionQueue {
 public:
  /** `wake` is called by sending threads after a push. */
  explicit CompletionQueue(std::function<void()> wake) : wake_(std::move(wake)) {}

  void push(int buffer);
  /** Moves at most `limit` buffer numbers into `out`; returns the count. */
  int take(int32_t* out, int limit);

 private:
  std::mutex mutex_;
  std::vector<int> completed_;
  std::function<void()> wake_;
};

class ReceiveBuffer {
 public:
  /** `arrivals`, if given, are notified of each filled slot. @throws std::runtime_error if the pool has no such page */
  ReceiveBuffer(std::shared_ptr<KvPool> pool, std::shared_ptr<CompletionQueue> queue, std::vector<int32_t> pages, std::shared_ptr<LayerArrivals> arrivals = nullptr);

  const KvLayout& layout() const { return pool_->layout; }
  int slots() const { return static_cast<int>(pages_.size()); }

  int number() const { return number_; }
  /** The number that the completion queue and senders use; set before anything is sent. */
  void set_number(int number) { number_ = number; }
  /** Writes one page to a slot; false if the buffer is closed. */
  bool write(int slot, const uint8_t* bytes);
  /**
   * Calls `use` under the lock that `close` takes, so it must be short. False, without a call, if the buffer is closed.
   */
  template <class Use>
  bool while_open(const Use& use) {
    std::lock_guard<std::mutex> lock(writing_);
    if (!closed_) use();
    return !closed_;
  }
  /** The page of a slot; valid inside `while_open` only. */
  uint8_t* slot(int index) const { return pool_->page(pages_[index]); }
  /** Reports that the slot holds a complete page. It may be received again. */
  void page_received(int index);
  /** `observer` is called with each slot received from now on, by the thread that has received it. */
  void observe(std::function<void(int slot)> observer);
  /** Closes the buffer to writers and reports its completion. */
  void complete();
  /** No thread writes to its pages after it returns. */
  void close();

 private:
  std::shared_ptr<KvPool> pool_;
  std::shared_ptr<CompletionQueue> queue_;
  std::vector<int32_t> pages_;
  std::shared_ptr<LayerArrivals> arrivals_;
  int number_ = 0;
  std::mutex writing_;
  bool closed_ = false;
  std::mutex observing_;  // guards `observers_`
  std::vector<std::function<void(int)>> observers_;
};

}  // namespace kvasir
