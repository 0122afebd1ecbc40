// One page is copied at a time: a call that arrives waits for a memcpy of one shard.
#include "workers/page_puller.hpp"

#include <chrono>
#include <cstring>

namespace kvasir {
namespace {

constexpr auto kYield = std::chrono::microseconds(50);

}  // namespace

PagePuller::PagePuller(std::shared_ptr<KvPool> pool)
    : pool_(std::move(pool)), queue_(std::make_shared<PullQueue>(pool_->layout, pool_->pages)), thread_([this] { serve(); }) {}

PagePuller::~PagePuller() {
  ended_ = true;
  queue_->end();
  thread_.join();
}

bool PagePuller::store(const std::vector<int32_t>& pages, const std::vector<uint8_t>& bytes, const std::atomic<bool>& ended) {
  const size_t page_bytes = pool_->layout.page_bytes();
  for (size_t i = 0; i < pages.size(); i++) {
    const auto copy = [&] { std::memcpy(counted_page(pages[i]), bytes.data() + i * page_bytes, page_bytes); };
    if (!copy_when_idle(copy, ended)) return false;
  }
  return true;
}

PullCounts PagePuller::counts() const {
  PullCounts counts;
  counts.pages = pages_.load(std::memory_order_relaxed);
  counts.bytes = counts.pages * pool_->layout.page_bytes();
  counts.yields = yields_.load(std::memory_order_relaxed);
  return counts;
}

void PagePuller::serve() {
  // The queue has no page if its pull was cancelled meanwhile.
  const auto copy = [this] { queue_->take([this](int32_t page) { return counted_page(page); }); };
  while (queue_->await_page()) copy_when_idle(copy, ended_);
}

uint8_t* PagePuller::counted_page(int32_t page) {
  pages_.fetch_add(1, std::memory_order_relaxed);
  return pool_->page(page);
}

template <class Copy>
bool PagePuller::copy_when_idle(const Copy& copy, const std::atomic<bool>& ended) {
  for (; !ended; std::this_thread::sleep_for(kYield)) {
    std::unique_lock<std::mutex> idle(copying_, std::defer_lock);
    if (calls_.load() == 0 && idle.try_lock()) {
      copy();
      return true;
    }
    yields_.fetch_add(1, std::memory_order_relaxed);
  }
  return false;
}

}  // namespace kvasir
