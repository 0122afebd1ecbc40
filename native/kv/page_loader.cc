// The loader's thread: loads one set of blocks at a time and reports each layer to the running step.
#include "kv/page_loader.hpp"

#include <algorithm>
#include <cstring>
#include <stdexcept>

namespace kvasir {

PageLoader::PageLoader(std::shared_ptr<KvPool> pool) : pool_(std::move(pool)), thread_([this] { serve(); }) {}

PageLoader::~PageLoader() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    closing_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void PageLoader::begin(int layers, std::vector<int32_t> from, std::vector<int32_t> to) {
  const auto is_page = [this](int32_t page) { return page >= 0 && page < pool_->pages; };
  const bool known = layers > 0 && from.size() == to.size() && from.size() % static_cast<size_t>(layers) == 0 && std::all_of(from.begin(), from.end(), is_page) &&
                     std::all_of(to.begin(), to.end(), is_page);
  if (!known) throw std::runtime_error("Cannot load pages: the pool has " + std::to_string(pool_->pages) + ": " + std::to_string(from.size()) + " to " + std::to_string(to.size()));
  finish();
  {
    std::lock_guard<std::mutex> lock(mutex_);
    pool_->loading.begin();
    layers_ = layers;
    from_ = std::move(from);
    to_ = std::move(to);
  }
  changed_.notify_one();
}

void PageLoader::serve() {
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return closing_ || layers_ > 0; });
    if (layers_ == 0) return;
    // Unlocked: `begin` waits for the end of this load, so nothing changes meanwhile.
    lock.unlock();
    for (int layer = 0; layer < layers_; layer++) {
      copy_layer(layer);
      pool_->loading.ready(static_cast<uint32_t>(layer) + 1);
    }
    lock.lock();
    layers_ = 0;
    pool_->loading.end();
  }
}

void PageLoader::copy_layer(int layer) const {
  for (size_t i = static_cast<size_t>(layer); i < from_.size(); i += static_cast<size_t>(layers_))
    if (from_[i] != to_[i]) std::memcpy(pool_->page(to_[i]), pool_->page(from_[i]), pool_->layout.page_bytes());
}

}  // namespace kvasir
