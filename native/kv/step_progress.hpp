// How far the step that runs over a pool has come: what tells a messenger, layer by layer, which pages it may send.
#pragma once
#include <atomic>
#include <cstdint>

#include "base/futex.hpp"

namespace kvasir {

/** Something happened: whoever waits for more to do looks again. */
class Bell {
 public:
  /** Costs a system call only while somebody sleeps. */
  void ring() {
    word_.value.fetch_add(1, std::memory_order_seq_cst);
    if (sleepers_.load(std::memory_order_seq_cst) > 0) word_.wake_all();
  }
  uint32_t rung() const { return word_.value.load(std::memory_order_seq_cst); }
  /** Returns once it has been rung since `seen`; may also return for no reason. */
  void wait(uint32_t seen) {
    sleepers_.fetch_add(1, std::memory_order_seq_cst);
    if (rung() == seen) word_.park(seen);
    sleepers_.fetch_sub(1, std::memory_order_seq_cst);
  }
  /** As `wait`, for so long at most. */
  void wait_for(uint32_t seen, std::chrono::nanoseconds most) {
    sleepers_.fetch_add(1, std::memory_order_seq_cst);
    if (rung() == seen) word_.park_for(seen, most);
    sleepers_.fetch_sub(1, std::memory_order_seq_cst);
  }

 private:
  ParkingWord word_;
  std::atomic<uint32_t> sleepers_{0};
};

/** Steps that begin are numbered from 1. One sequence number (step, layers ready) is posted by the ops of a step and read by messengers. */
class StepProgress {
 public:
  /** The number of the step that begins next. */
  uint32_t next() const { return step_of(posted_.load(std::memory_order_acquire)) + 1; }
  void begin() { post(number(next(), 0)); }
  /** Keys and values of the first `layers` layers of this step are in their pages. */
  void ready(uint32_t layers) { post(number(step_of(posted_.load(std::memory_order_relaxed)), layers)); }
  /** Nothing more comes of this step: all is ready, or it was aborted and runs again as another. */
  void end() { ready(kAll); }

  /** May what `step` writes of layer `layer` be read? Step 0 is whatever was computed before. */
  bool is_ready(uint32_t step, uint32_t layer) const {
    const uint64_t posted = posted_.load(std::memory_order_acquire);
    return step < step_of(posted) || (step == step_of(posted) && layer < layers_of(posted));
  }
  /** Is there a step that has begun and not ended? */
  bool runs() const {
    const uint64_t posted = posted_.load(std::memory_order_acquire);
    return posted != 0 && layers_of(posted) != kAll;
  }

  Bell bell;

 private:
  static constexpr uint32_t kAll = UINT32_MAX;
  static uint64_t number(uint32_t step, uint32_t layers) { return (static_cast<uint64_t>(step) << 32) | layers; }
  static uint32_t step_of(uint64_t posted) { return static_cast<uint32_t>(posted >> 32); }
  static uint32_t layers_of(uint64_t posted) { return static_cast<uint32_t>(posted); }
  void post(uint64_t value) {
    posted_.store(value, std::memory_order_seq_cst);
    bell.ring();
  }

  std::atomic<uint64_t> posted_{0};
};

}  // namespace kvasir
