// The compute state of one backend: its instruction set, its threads, the locks on them, and its counters.
#pragma once
#include <atomic>
#include <mutex>

#include "base/thread_pool.hpp"
#include "base/types.hpp"

namespace kvasir {

/** A lock on the threads of a backend. Steps have priority: remote queries release it at their next range of keys. */
class StepPriorityLock {
 public:
  void lock() {
    step_waits_.store(true, std::memory_order_seq_cst);
    mutex_.lock();
    step_waits_.store(false, std::memory_order_relaxed);
    step_runs_.store(true, std::memory_order_relaxed);
  }
  void unlock() {
    step_runs_.store(false, std::memory_order_relaxed);
    mutex_.unlock();
  }
  bool step_runs() const { return step_runs_.load(std::memory_order_relaxed); }

  bool try_lock_for_query() { return !step_waits() && mutex_.try_lock(); }
  void unlock_after_query() { mutex_.unlock(); }
  bool step_waits() const { return step_waits_.load(std::memory_order_relaxed); }

 private:
  std::mutex mutex_;
  std::atomic<bool> step_waits_{false};
  std::atomic<bool> step_runs_{false};
};

/** Queries that steps have sent to remote attention servers. */
struct RemoteCounters {
  std::atomic<uint64_t> queries{0};
  std::atomic<uint64_t> bytes_out{0};
  std::atomic<uint64_t> bytes_in{0};
  std::atomic<uint64_t> wait_nanoseconds{0};
};

struct Backend {
  Backend(Isa of, int threads) : isa(of), pool(threads) {}

  Isa isa;
  ThreadPool pool;
  std::mutex busy;  // held by one step or packing at a time
  StepPriorityLock threads_lock;  // taken while `busy` is held
  RemoteCounters remote;
  std::atomic<uint64_t> arrival_wait_nanoseconds{0};  // that steps have waited for pages in transfer
};

/** Holds the threads for a step. */
class StepLock {
 public:
  explicit StepLock(Backend& backend) : lock_(backend.threads_lock) { lock_.lock(); }
  ~StepLock() { lock_.unlock(); }
  StepLock(const StepLock&) = delete;
  StepLock& operator=(const StepLock&) = delete;

 private:
  StepPriorityLock& lock_;
};

}  // namespace kvasir
