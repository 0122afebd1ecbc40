// Progress over a KV pool, layer by layer: of the running step, and of pages that are being loaded.
#pragma once
#include <atomic>
#include <cstdint>

#include "base/event_count.hpp"

namespace kvasir {

/**
 * Progress of the steps over a pool, numbered from 1. A step's ops post one word, (step, layers ready); page senders
 * read it to decide which pages they may send.
 */
class StepProgress {
 public:
  /** The number of the next step. */
  uint32_t next() const { return step_of(posted_.load(std::memory_order_acquire)) + 1; }
  void begin() { post(number(next(), 0)); }
  /** Keys and values of the step's first `layers` layers are in their pages. */
  void ready(uint32_t layers) { post(number(step_of(posted_.load(std::memory_order_relaxed)), layers)); }
  /** The step writes nothing more: all layers are ready, or it was aborted and reruns under another number. */
  void end() { ready(kAll); }

  /** True if what `step` writes of `layer` may be read. Step 0 stands for everything computed before. */
  bool is_ready(uint32_t step, uint32_t layer) const {
    const uint64_t posted = posted_.load(std::memory_order_acquire);
    return step < step_of(posted) || (step == step_of(posted) && layer < layers_of(posted));
  }
  /** True if a step has begun and not ended. */
  bool runs() const {
    const uint64_t posted = posted_.load(std::memory_order_acquire);
    return posted != 0 && layers_of(posted) != kAll;
  }

  EventCount event;  // notified at every change, and when something is queued to be sent

 private:
  static constexpr uint32_t kAll = UINT32_MAX;
  static uint64_t number(uint32_t step, uint32_t layers) { return (static_cast<uint64_t>(step) << 32) | layers; }
  static uint32_t step_of(uint64_t posted) { return static_cast<uint32_t>(posted >> 32); }
  static uint32_t layers_of(uint64_t posted) { return static_cast<uint32_t>(posted); }
  void post(uint64_t value) {
    posted_.store(value, std::memory_order_seq_cst);
    event.notify();
  }

  std::atomic<uint64_t> posted_{0};
};

/** Progress of loading the pages that a step reads. Attention waits for it, layer by layer. */
class LoadProgress {
 public:
  /** A load begins: no layer is ready. */
  void begin() { ready_.store(0, std::memory_order_seq_cst); }
  /** Pages of the first `layers` layers are loaded. */
  void ready(uint32_t layers) {
    ready_.store(layers, std::memory_order_seq_cst);
    event_.notify();
  }
  void end() { ready(kAll); }

  /** True if the layer's pages are loaded. Costs one atomic load if nothing is being loaded. */
  bool is_ready(uint32_t layer) const { return ready_.load(std::memory_order_seq_cst) > layer; }
  EventCount& event() { return event_; }

  void await_all() {
    while (!is_ready(kAll - 1)) {
      const uint32_t seen = event_.epoch();
      if (!is_ready(kAll - 1)) event_.wait(seen);
    }
  }

 private:
  static constexpr uint32_t kAll = UINT32_MAX;

  std::atomic<uint32_t> ready_{kAll};
  EventCount event_;
};

}  // namespace kvasir
