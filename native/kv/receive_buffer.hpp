// Where pages from other instances land: slots in a pool that senders write to, until they are all there or nobody wants them.
#pragma once
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "kv/kv_pool.hpp"
#include "kv/layer_arrivals.hpp"

namespace kvasir {

/** Tells an instance's thread which of its buffers are complete. Senders write, the instance reads. */
class CompletionQueue {
 public:
  /** `wake` is called by senders' threads when there is something to take. */
  explicit CompletionQueue(std::function<void()> wake) : wake_(std::move(wake)) {}

  void push(int buffer);
  /** Moves at most `limit` numbers of buffers into `out`; returns how many. */
  int take(int32_t* out, int limit);

 private:
  std::mutex mutex_;
  std::vector<int> completed_;
  std::function<void()> wake_;
};

class ReceiveBuffer {
 public:
  /** `arrivals`, if any, hear of each slot that is filled. Throws where the pool has no such page. */
  ReceiveBuffer(std::shared_ptr<KvPool> pool, std::shared_ptr<CompletionQueue> queue, std::vector<int32_t> pages, std::shared_ptr<LayerArrivals> arrivals = nullptr);

  const KvLayout& layout() const { return pool_->layout; }
  int slots() const { return static_cast<int>(pages_.size()); }

  int number() const { return number_; }
  /** By which the queue and local_senders name it; before anything is sent. */
  void set_number(int number) { number_ = number; }
  /** Writes one page to a slot; false once it is closed. */
  bool write(int slot, const uint8_t* bytes);
  /** Calls `use` while nobody can close it: that should be soon over. False, and no call, once it is closed. */
  template <class Use>
  bool while_open(const Use& use) {
    std::lock_guard<std::mutex> lock(writing_);
    if (!closed_) use();
    return !closed_;
  }
  /** Where a slot lies; to be touched inside `while_open` alone. */
  uint8_t* slot(int index) const { return pool_->page(pages_[index]); }
  /** What was written to this slot is whole. */
  void page_received(int index) {
    if (arrivals_) arrivals_->page_arrived(index);
  }
  /** All is here: says so, and is closed to writers from now on. */
  void complete();
  /** Once this returns nobody writes to its pages any more. */
  void close();

 private:
  std::shared_ptr<KvPool> pool_;
  std::shared_ptr<CompletionQueue> queue_;
  std::vector<int32_t> pages_;
  std::shared_ptr<LayerArrivals> arrivals_;
  int number_ = 0;
  std::mutex writing_;
  bool closed_ = false;
};

}  // namespace kvasir
