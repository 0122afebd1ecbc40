// How far the loading of pages that a step reads has come: what its attention waits for, layer by layer.
#pragma once
#include <atomic>
#include <cstdint>

#include "step_progress.hpp"

namespace kvasir {

class PageArrivals {
 public:
  /** Pages are about to be loaded: none is there. */
  void expect() { ready_.store(0, std::memory_order_seq_cst); }
  /** Those of the first `layers` layers are there. */
  void arrived(uint32_t layers) {
    ready_.store(layers, std::memory_order_seq_cst);
    bell_.ring();
  }
  void all_arrived() { arrived(kAll); }

  /** WAIT_LAYER: returns when a layer's pages are there. Costs a load while none are expected. */
  void await(uint32_t layer) {
    while (ready_.load(std::memory_order_acquire) <= layer) {
      const uint32_t seen = bell_.rung();
      if (ready_.load(std::memory_order_seq_cst) <= layer) bell_.wait(seen);
    }
  }
  void await_all() { await(kAll - 1); }

 private:
  static constexpr uint32_t kAll = UINT32_MAX;

  std::atomic<uint32_t> ready_{kAll};
  Bell bell_;
};

}  // namespace kvasir
