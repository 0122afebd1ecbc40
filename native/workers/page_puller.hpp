// Writes the pages of prompts into the pool of an attention worker while no attention call needs its threads.
#pragma once
#include <atomic>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "workers/pull_queue.hpp"

namespace kvasir {

struct PullCounts {
  uint64_t pages = 0;
  uint64_t bytes = 0;
  uint64_t yields = 0;  // times that a page waited for attention calls
};

/**
 * Attention calls have the pool to themselves: pages are copied one by one, in the given order, and only between calls
 * (Lamina, section 5: attention workers pull the KV of prefilled prompts in their idle times). Pages of this process
 * are pulled; a model worker of another process sends them.
 */
class PagePuller {
 public:
  explicit PagePuller(std::shared_ptr<KvPool> pool);
  ~PagePuller();
  PagePuller(const PagePuller&) = delete;
  PagePuller& operator=(const PagePuller&) = delete;

  /** Held by an attention call while it computes. It waits for one page at most. */
  class Call {
   public:
    explicit Call(PagePuller& puller) : puller_(puller) {
      puller.calls_.fetch_add(1);
      puller.copying_.lock();
    }
    ~Call() {
      puller_.copying_.unlock();
      puller_.calls_.fetch_sub(1);
    }
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;

   private:
    PagePuller& puller_;
  };

  /** Pulls of pages of this process. */
  PullQueue& queue() { return *queue_; }
  /** Writes received pages, (pages) in `bytes`, once no call needs the pool. False if `ended` is set before. */
  bool store(const std::vector<int32_t>& pages, const std::vector<uint8_t>& bytes, const std::atomic<bool>& ended);
  PullCounts counts() const;

 private:
  void serve();
  /** A page that is written now. */
  uint8_t* counted_page(int32_t page);
  /** Runs `copy`, of one page, while no call needs the pool. False, without doing so, if `ended` is set before. */
  template <class Copy>
  bool copy_when_idle(const Copy& copy, const std::atomic<bool>& ended);

  const std::shared_ptr<KvPool> pool_;
  const std::shared_ptr<PullQueue> queue_;
  std::atomic<int> calls_{0};  // that compute or wait to
  std::mutex copying_;         // held by one call, or while one page is copied
  std::atomic<uint64_t> pages_{0}, yields_{0};
  std::atomic<bool> ended_{false};
  std::thread thread_;
};

}  // namespace kvasir
