// Loads blocks into a pool while a step computes: a thread that copies pages of the same mapping, layer by layer.
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

  /** Copies pages `from` to pages `to`, (blocks, layers) both, in the order of layers. Waits for what was begun before. Throws where there is no such page. */
  void begin(int layers, std::vector<int32_t> from, std::vector<int32_t> to);
  /** All that was begun is there when it returns. */
  void finish() { pool_->loading.await_all(); }

 private:
  void serve();
  void copy_layer(int layer) const;

  std::shared_ptr<KvPool> pool_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int layers_ = 0;  // of what is being loaded; 0: nothing is
  std::vector<int32_t> from_, to_;
  bool closing_ = false;
  std::thread thread_;
};

}  // namespace kvasir
