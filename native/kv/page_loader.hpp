// Loads blocks into a pool while a step computes: a thread copies pages within the pool's mapping, layer by layer.
#pragma once
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

 private:
  void serve();
  void copy_layer(int layer) const;

  std::shared_ptr<KvPool> pool_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int layers_ = 0;  // layers of the running load; 0: none runs
  std::vector<int32_t> from_, to_;
  bool closing_ = false;
  std::thread thread_;
};

}  // namespace kvasir
