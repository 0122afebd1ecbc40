// How far the loading of pages that a step reads has come: what its attention waits for, layer by layer.
#pragma once
#include <atomic>
#include <cstdint>

#include "kv/step_progress.hpp"

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

  /** Are a layer's pages there? Costs a load while none are expected. */
  bool has(uint32_t layer) const { return ready_.load(std::memory_order_seq_cst) > layer; }
  Bell& bell() { return bell_; }

  void await_all() {
    while (!has(kAll - 1)) {
      const uint32_t seen = bell_.rung();
      if (!has(kAll - 1)) bell_.wait(seen);
    }
  }

 private:
  static constexpr uint32_t kAll = UINT32_MAX;

  std::atomic<uint32_t> ready_{kAll};
  Bell bell_;
};

}  // namespace kvasir
