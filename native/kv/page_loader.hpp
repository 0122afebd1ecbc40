// Copies blocks within a pool's mapping while a step computes, layer by layer: loads what the step reads, and stores
// what it computes.
#pragma once
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "kv/kv_pool.hpp"

namespace kvasir {

class PageLoader {
 public:
  explicit PageLoader(std::shared_ptr<KvPool> pool);
  ~PageLoader();
  PageLoader(const PageLoader&) = delete;
  PageLoader& operator=(const PageLoader&) = delete;

  /**
   * Copies pages `from` to pages `to`, both (blocks, layers), in layer order. Waits for the previous load. @throws
   * std::runtime_error if a page does not exist
   */
  void begin(int layers, std::vector<int32_t> from, std::vector<int32_t> to);
  /** Returns once all begun loads are complete. */
  void finish() { pool_->loading.await_all(); }

  /**
   * The same for pages that the next step over the pool computes: each layer is copied once the step has computed it.
   * Called after the `begin` of the same step, whose loads precede it. Waits for the previous store.
   */
  void begin_storing(int layers, std::vector<int32_t> from, std::vector<int32_t> to);
  /**
   * Called after the step: returns once all layers that it has computed are copied. Of an aborted step the copies have
   * no defined contents.
   */
  void finish_storing();
  /** Pages stored while the step that computed them ran, so hidden behind computation. */
  uint64_t stored_early() const { return stored_early_.load(std::memory_order_relaxed); }

 private:
  struct Copies {
    int layers = 0;  // 0: none
    std::vector<int32_t> from, to;
  };

  void serve();
  void store();
  void copy_layer(const Copies& copies, int layer) const;
  Copies checked(int layers, std::vector<int32_t> from, std::vector<int32_t> to) const;

  std::shared_ptr<KvPool> pool_;
  std::mutex mutex_;
  std::condition_variable changed_, stored_;
  Copies load_, store_;
  uint32_t store_step_ = 0;
  std::atomic<bool> step_ended_{true};  // layers that are not ready by now will not be
  std::atomic<uint64_t> stored_early_{0};
  bool closing_ = false;
  std::thread thread_;
};

}  // namespace kvasir
