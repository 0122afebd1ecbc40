// Sends the shard of pages of this process to an attention worker of another process, which stores them between its
// attention calls.
#pragma once
#include <atomic>
#include <memory>
#include <thread>

#include "workers/pull_queue.hpp"
#include "workers/worker_link.hpp"

namespace kvasir {

/**
 * A thread sends pages in batches, the next one when the worker has stored all pages of the last. So at most one batch
 * lies in the connection while attention calls compute.
 */
class ShardSender {
 public:
  /** @param link used by this sender alone */
  explicit ShardSender(std::shared_ptr<WorkerLink> link);
  ~ShardSender();
  ShardSender(const ShardSender&) = delete;
  ShardSender& operator=(const ShardSender&) = delete;

  int pull(std::shared_ptr<KvPool> source, int shard, std::vector<PulledPage> pages) { return queue_->pull(std::move(source), shard, std::move(pages)); }
  int pull_received(std::shared_ptr<ReceiveBuffer> buffer, int shard, std::vector<int32_t> pages) {
    return queue_->pull_received(std::move(buffer), shard, std::move(pages));
  }
  /** False for every pull once the link is broken. */
  bool is_done(int pull) const { return queue_->is_done(pull) && !link_->is_broken(); }
  /** Returns at once. Links that follow the sender wait for pages that are on their way. */
  void cancel(int pull) { queue_->cancel(pull); }
  /** Steps of `link`, to the same worker, wait for the sent pages of cancelled pulls. Call it before the first step. */
  void precede(WorkerLink& link) const { link.follow(queue_); }
  /** Pages that the worker has stored. */
  uint64_t pages() const { return pages_.load(std::memory_order_relaxed); }

 private:
  void serve();

  const std::shared_ptr<WorkerLink> link_;
  const std::shared_ptr<PullQueue> queue_;
  std::atomic<uint64_t> pages_{0};
  std::thread thread_;
};

}  // namespace kvasir
