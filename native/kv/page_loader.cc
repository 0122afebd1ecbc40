// The loader's thread: runs one load and one store at a time. The step waits for loaded layers; stores wait for computed
// ones.
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
  step_ended_.store(true, std::memory_order_seq_cst);
  pool_->progress.event.notify();
  changed_.notify_one();
  thread_.join();
}

PageLoader::Copies PageLoader::checked(int layers, std::vector<int32_t> from, std::vector<int32_t> to) const {
  const auto is_page = [this](int32_t page) { return page >= 0 && page < pool_->pages; };
  const bool known = layers > 0 && from.size() == to.size() && from.size() % static_cast<size_t>(layers) == 0 && std::all_of(from.begin(), from.end(), is_page) &&
                     std::all_of(to.begin(), to.end(), is_page);
  if (!known) throw std::runtime_error("Cannot copy pages: the pool has " + std::to_string(pool_->pages) + ": " + std::to_string(from.size()) + " to " + std::to_string(to.size()));
  return {layers, std::move(from), std::move(to)};
}

void PageLoader::begin(int layers, std::vector<int32_t> from, std::vector<int32_t> to) {
  Copies copies = checked(layers, std::move(from), std::move(to));
  finish();
  {
    std::lock_guard<std::mutex> lock(mutex_);
    pool_->loading.begin();
    load_ = std::move(copies);
  }
  changed_.notify_one();
}

void PageLoader::begin_storing(int layers, std::vector<int32_t> from, std::vector<int32_t> to) {
  Copies copies = checked(layers, std::move(from), std::move(to));
  finish_storing();
  {
    std::lock_guard<std::mutex> lock(mutex_);
    step_ended_.store(false, std::memory_order_relaxed);
    store_step_ = pool_->progress.next();
    store_ = std::move(copies);
  }
  changed_.notify_one();
}

void PageLoader::finish_storing() {
  step_ended_.store(true, std::memory_order_seq_cst);
  pool_->progress.event.notify();
  std::unique_lock<std::mutex> lock(mutex_);
  stored_.wait(lock, [this] { return store_.layers == 0; });
}

// Copies are made without the lock: `begin` and `begin_storing` wait for the end of theirs, so nothing changes meanwhile.
void PageLoader::serve() {
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return closing_ || load_.layers > 0 || store_.layers > 0; });
    if (load_.layers > 0) {
      lock.unlock();
      for (int layer = 0; layer < load_.layers; layer++) {
        copy_layer(load_, layer);
        pool_->loading.ready(static_cast<uint32_t>(layer) + 1);
      }
      lock.lock();
      load_.layers = 0;
      pool_->loading.end();
    } else if (store_.layers > 0) {
      lock.unlock();
      store();
      lock.lock();
      store_.layers = 0;
      stored_.notify_all();
    } else {
      return;
    }
  }
}

void PageLoader::store() {
  const uint64_t pages_of_layer = store_.from.size() / static_cast<size_t>(store_.layers);
  for (int layer = 0; layer < store_.layers; layer++) {
    for (;;) {
      const uint32_t seen = pool_->progress.event.epoch();
      // Read first: the step posts its last layer before it counts as ended.
      const bool ended = step_ended_.load(std::memory_order_seq_cst);
      if (pool_->progress.is_ready(store_step_, static_cast<uint32_t>(layer))) break;
      if (ended) return;
      pool_->progress.event.wait(seen);
    }
    copy_layer(store_, layer);
    if (!step_ended_.load(std::memory_order_relaxed)) stored_early_.fetch_add(pages_of_layer, std::memory_order_relaxed);
  }
}

void PageLoader::copy_layer(const Copies& copies, int layer) const {
  for (size_t i = static_cast<size_t>(layer); i < copies.from.size(); i += static_cast<size_t>(copies.layers))
    if (copies.from[i] != copies.to[i]) std::memcpy(pool_->page(copies.to[i]), pool_->page(copies.from[i]), pool_->layout.page_bytes());
}

}  // namespace kvasir
