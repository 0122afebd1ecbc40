// One page is copied at a time: a call that arrives waits for a memcpy of one shard.
#include "workers/page_puller.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <stdexcept>
#include <string>

namespace kvasir {
namespace {

constexpr auto kYield = std::chrono::microseconds(50);

}  // namespace

PagePuller::PagePuller(std::shared_ptr<KvPool> pool) : pool_(std::move(pool)), thread_([this] { serve(); }) {}

PagePuller::~PagePuller() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    ended_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

int PagePuller::pull(std::shared_ptr<KvPool> source, int shard, std::vector<PulledPage> pages) {
  const KvLayout &from = source->layout, &to = pool_->layout;
  const auto refuse = [](const char* why) { throw std::runtime_error(std::string("Cannot pull pages: ") + why); };
  if (!source->has_memory()) refuse("their pool has no memory");
  if (from.type != to.type || from.head_dim != to.head_dim || from.kv_heads % to.kv_heads != 0) refuse("their layout is not one of which the worker holds a shard");
  if (shard < 0 || shard >= from.kv_heads / to.kv_heads) refuse("the shard does not exist");
  for (const PulledPage& page : pages)
    if (page.from < 0 || page.from >= source->pages || page.to < 0 || page.to >= pool_->pages) refuse("a page does not exist");
  const std::lock_guard<std::mutex> lock(mutex_);
  last_++;
  if (!pages.empty()) pulls_.push_back({last_, std::move(source), shard, std::move(pages), 0});
  changed_.notify_all();
  return last_;
}

int PagePuller::pull_received(std::shared_ptr<ReceiveBuffer> buffer, int shard, std::vector<int32_t> pages) {
  const KvLayout &from = buffer->layout(), &to = pool_->layout;
  const auto refuse = [](const char* why) { throw std::runtime_error(std::string("Cannot pull received pages: ") + why); };
  if (from.type != to.type || from.head_dim != to.head_dim || from.kv_heads % to.kv_heads != 0) refuse("their layout is not one of which the worker holds a shard");
  if (shard < 0 || shard >= from.kv_heads / to.kv_heads) refuse("the shard does not exist");
  if (pages.size() != static_cast<size_t>(buffer->slots())) refuse("the buffer has another number of slots");
  for (const int32_t page : pages)
    if (page < 0 || page >= pool_->pages) refuse("a page does not exist");
  int number = 0;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    number = ++last_;
    const size_t slots = pages.size();
    received_.push_back({number, buffer, shard, std::move(pages), {}, std::vector<uint8_t>(slots)});
  }
  buffer->observe([self = weak_from_this(), number](int slot) {
    if (const auto puller = self.lock()) puller->slot_received(number, slot);
  });
  return number;
}

void PagePuller::slot_received(int pull, int slot) {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (ReceivedPull& each : received_) {
    if (each.number != pull || each.is_queued[static_cast<size_t>(slot)] != 0) continue;
    each.is_queued[static_cast<size_t>(slot)] = 1;
    each.slots.push_back(slot);
    changed_.notify_all();
  }
}

bool PagePuller::has_work() const {
  return !pulls_.empty() || std::any_of(received_.begin(), received_.end(), [](const ReceivedPull& pull) { return !pull.slots.empty(); });
}

bool PagePuller::is_done(int pull) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const ReceivedPull& each : received_)
    if (each.number == pull) return each.slots.empty();
  return std::none_of(pulls_.begin(), pulls_.end(), [&](const Pull& each) { return each.number == pull; });
}

void PagePuller::cancel(int pull) {
  // A page is copied under `mutex_`.
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto is_it = [&](const auto& each) { return each.number == pull; };
  pulls_.erase(std::remove_if(pulls_.begin(), pulls_.end(), is_it), pulls_.end());
  received_.erase(std::remove_if(received_.begin(), received_.end(), is_it), received_.end());
}

PullCounts PagePuller::counts() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return counts_;
}

void PagePuller::serve() {
  for (;;) {
    {
      std::unique_lock<std::mutex> lock(mutex_);
      changed_.wait(lock, [this] { return ended_ || has_work(); });
      if (ended_) return;
    }
    std::unique_lock<std::mutex> idle(copying_, std::defer_lock);
    if (calls_.load() == 0 && idle.try_lock()) {
      copy_next();
      continue;
    }
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      counts_.yields++;
    }
    std::this_thread::sleep_for(kYield);
  }
}

void PagePuller::copy_next() {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (ReceivedPull& received : received_)
    if (!received.slots.empty()) return copy_slot(received);
  if (pulls_.empty()) return;
  Pull& pull = pulls_.front();
  const PulledPage page = pull.pages[pull.next++];
  const size_t bytes = pool_->layout.page_bytes();
  // The KV head is the outermost dimension of a page: a shard is one slice.
  std::memcpy(pool_->page(page.to), pull.source->page(page.from) + bytes * static_cast<size_t>(pull.shard), bytes);
  counts_.pages++;
  counts_.bytes += bytes;
  if (pull.next == pull.pages.size()) pulls_.pop_front();
}

/** A slot that is received again meanwhile is queued again: its sender reports it after the last byte. */
void PagePuller::copy_slot(ReceivedPull& pull) {
  const int slot = pull.slots.front();
  pull.slots.pop_front();
  pull.is_queued[static_cast<size_t>(slot)] = 0;
  const size_t bytes = pool_->layout.page_bytes();
  const auto copy = [&] { std::memcpy(pool_->page(pull.pages[static_cast<size_t>(slot)]), pull.buffer->slot(slot) + bytes * static_cast<size_t>(pull.shard), bytes); };
  // Nothing is written to a closed buffer.
  if (!pull.buffer->while_open(copy)) copy();
  counts_.pages++;
  counts_.bytes += bytes;
}

}  // namespace kvasir
