// Pulls the shard of received pages into the pool of an attention worker while no attention call needs its threads.
#pragma once
#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "kv/receive_buffer.hpp"

namespace kvasir {

/** A page with all KV heads, and the page of the worker that receives its shard. */
struct PulledPage {
  int32_t from;
  int32_t to;
};

struct PullCounts {
  uint64_t pages = 0;
  uint64_t bytes = 0;
  uint64_t yields = 0;  // times that a pull waited for attention calls
};

/**
 * Attention calls have the pool to themselves: a pull copies page by page, in the given order, and only between them
 * (Lamina, section 5: attention workers pull the KV of prefilled prompts in their idle times).
 */
class PagePuller : public std::enable_shared_from_this<PagePuller> {
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
  /** True once all pages of the pull are here, or all that were received. Unknown numbers: true. */
  bool is_done(int pull) const;
  /** Drops the pages that are not pulled yet. Nothing of them is written after it returns. */
  void cancel(int pull);
  PullCounts counts() const;

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

  void slot_received(int pull, int slot);
  bool has_work() const;
  void copy_slot(ReceivedPull& pull);

  void serve();
  void copy_next();

  const std::shared_ptr<KvPool> pool_;
  std::atomic<int> calls_{0};  // that compute or wait to
  std::mutex copying_;         // held by one call, or while one page is copied
  mutable std::mutex mutex_;   // guards the next members; taken after `copying_`
  std::condition_variable changed_;
  std::deque<Pull> pulls_;
  std::deque<ReceivedPull> received_;
  int last_ = 0;
  bool ended_ = false;
  PullCounts counts_;
  std::thread thread_;
};

}  // namespace kvasir
