// Arrival of the pages of one transfer, layer by layer, for steps that compute while the transfer runs.
#pragma once
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <vector>

#include "base/event_count.hpp"

namespace kvasir {

/**
 * Pages (blocks, layers) of one transfer; each may arrive more than once. Receivers and stores report arrivals, steps
 * wait for layers.
 */
class LayerArrivals {
 public:
  using Clock = std::chrono::steady_clock;

  LayerArrivals(int layers, int blocks) : layers_(layers), missing_(static_cast<size_t>(layers), blocks), arrived_(static_cast<size_t>(layers) * blocks), blocks_(blocks) {
    last_arrival_.store(Clock::now().time_since_epoch().count(), std::memory_order_relaxed);
  }

  int layers() const { return layers_; }

  /** Reduces the transfer to its first `blocks` blocks. */
  void expect(int blocks) {
    std::lock_guard<std::mutex> lock(mutex_);
    for (int block = std::max(0, blocks); block < blocks_; block++)
      for (int layer = 0; layer < layers_; layer++) missing_[layer] -= arrived_[place(block, layer)] == 0;
    blocks_ = std::min(blocks_, std::max(0, blocks));
    advance();
  }

  /** Reports that page `at` of (blocks, layers) has arrived complete and verified. */
  void page_arrived(int at) {
    std::lock_guard<std::mutex> lock(mutex_);
    last_arrival_.store(Clock::now().time_since_epoch().count(), std::memory_order_relaxed);
    if (at < 0 || at >= blocks_ * layers_ || arrived_[at] != 0) return;
    arrived_[at] = 1;
    if (--missing_[at % layers_] == 0) advance();
  }

  /** Ends the transfer: steps that wait for missing pages fail. */
  void finish() {
    ended_.store(true, std::memory_order_seq_cst);
    event_.notify();
  }

  /** True if all pages of this layer and of earlier layers have arrived. */
  bool is_ready(int layer) const { return ready_.load(std::memory_order_acquire) > layer; }
  bool ended() const { return ended_.load(std::memory_order_seq_cst); }
  /** Time of the last arrival. */
  Clock::time_point last_arrival() const { return Clock::time_point(Clock::duration(last_arrival_.load(std::memory_order_relaxed))); }
  EventCount& event() { return event_; }

 private:
  size_t place(int block, int layer) const { return static_cast<size_t>(block) * layers_ + layer; }

  /** Requires the lock. */
  void advance() {
    int ready = ready_.load(std::memory_order_relaxed);
    const int before = ready;
    while (ready < layers_ && missing_[ready] == 0) ready++;
    if (ready == before) return;
    ready_.store(ready, std::memory_order_seq_cst);
    event_.notify();
  }

  const int layers_;
  std::mutex mutex_;
  std::vector<int> missing_;    // (layers): pages still missing
  std::vector<uint8_t> arrived_;   // (blocks, layers)
  int blocks_;
  std::atomic<int> ready_{0};
  std::atomic<bool> ended_{false};
  std::atomic<Clock::rep> last_arrival_;
  EventCount event_;
};

}  // namespace kvasir
