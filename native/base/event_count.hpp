// An event count: threads sleep until a notification that follows their last check.
#pragma once
#include <chrono>

#include "base/futex.hpp"

namespace kvasir {

/**
 * A waiter reads the epoch, checks its condition, then waits for a later epoch: no notification between the two is
 * lost.
 */
class EventCount {
 public:
  /** Makes a system call only if a thread sleeps. */
  void notify() {
    word_.value.fetch_add(1, std::memory_order_seq_cst);
    if (sleepers_.load(std::memory_order_seq_cst) > 0) word_.wake_all();
  }
  uint32_t epoch() const { return word_.value.load(std::memory_order_seq_cst); }
  /** Returns after a notification later than `seen`, or spuriously. */
  void wait(uint32_t seen) {
    sleepers_.fetch_add(1, std::memory_order_seq_cst);
    if (epoch() == seen) word_.wait(seen);
    sleepers_.fetch_sub(1, std::memory_order_seq_cst);
  }
  /** As `wait`, for at most `limit`. */
  void wait_for(uint32_t seen, std::chrono::nanoseconds limit) {
    sleepers_.fetch_add(1, std::memory_order_seq_cst);
    if (epoch() == seen) word_.wait_for(seen, limit);
    sleepers_.fetch_sub(1, std::memory_order_seq_cst);
  }

 private:
  FutexWord word_;
  std::atomic<uint32_t> sleepers_{0};
};

}  // namespace kvasir
