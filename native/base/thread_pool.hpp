// The threads of one backend: who may use them, and what their steps have asked of other instances.
#pragma once
#include <atomic>
#include <mutex>

#include "base/threads.hpp"
#include "base/types.hpp"

namespace kvasir {

/** Whose turn the threads are. A step takes them at once: guests let go at their next range of keys. */
class ThreadTurn {
 public:
  void take() {
    wanted_.store(true, std::memory_order_seq_cst);
    mutex_.lock();
    wanted_.store(false, std::memory_order_relaxed);
    step_runs_.store(true, std::memory_order_relaxed);
  }
  void give() {
    step_runs_.store(false, std::memory_order_relaxed);
    mutex_.unlock();
  }
  bool step_runs() const { return step_runs_.load(std::memory_order_relaxed); }

  /** For guests. */
  bool try_take() { return !wanted() && mutex_.try_lock(); }
  void give_back() { mutex_.unlock(); }
  bool wanted() const { return wanted_.load(std::memory_order_relaxed); }

 private:
  std::mutex mutex_;
  std::atomic<bool> wanted_{false};
  std::atomic<bool> step_runs_{false};
};

/** What steps have asked of guest rooms. */
struct RemoteTally {
  std::atomic<uint64_t> queries{0};
  std::atomic<uint64_t> bytes_out{0};
  std::atomic<uint64_t> bytes_in{0};
  std::atomic<uint64_t> wait_nanoseconds{0};
};

/** One step or packing at a time. */
struct Team {
  Team(Isa of, int threads) : isa(of), pool(threads) {}

  Isa isa;
  ThreadPool pool;
  std::mutex busy;
  ThreadTurn turn;  // within `busy`
  RemoteTally remote;
  std::atomic<uint64_t> arrival_wait_nanoseconds{0};  // that steps waited for pages on their way
};

/** Holds the threads for a step of their own. */
class StepTurn {
 public:
  explicit StepTurn(Team& team) : turn_(team.turn) { turn_.take(); }
  ~StepTurn() { turn_.give(); }
  StepTurn(const StepTurn&) = delete;
  StepTurn& operator=(const StepTurn&) = delete;

 private:
  ThreadTurn& turn_;
};

}  // namespace kvasir
