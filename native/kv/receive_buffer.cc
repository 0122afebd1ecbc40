// Every write holds the lock that `close` takes, so no page is reused while a transfer can still touch it.
#include "kv/receive_buffer.hpp"

#include <algorithm>
#include <cstring>
#include <stdexcept>

namespace kvasir {

void CompletionQueue::push(int buffer) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    completed_.push_back(buffer);
  }
  wake_();
}

int CompletionQueue::take(int32_t* out, int limit) {
  std::lock_guard<std::mutex> lock(mutex_);
  const int count = std::min(limit, static_cast<int>(completed_.size()));
  std::copy_n(completed_.begin(), count, out);
  completed_.erase(completed_.begin(), completed_.begin() + count);
  return count;
}

ReceiveBuffer::ReceiveBuffer(std::shared_ptr<KvPool> pool, std::shared_ptr<CompletionQueue> queue, std::vector<int32_t> pages, std::shared_ptr<LayerArrivals> arrivals)
    : pool_(std::move(pool)), queue_(std::move(queue)), pages_(std::move(pages)), arrivals_(std::move(arrivals)) {
  int highest = -1;
  for (const int32_t page : pages_) {
    if (page < 0 || page >= pool_->pages) {
      throw std::runtime_error("Cannot open a receive buffer: the pool has " + std::to_string(pool_->pages) + " pages: " + std::to_string(page));
    }
    highest = std::max(highest, page);
  }
  pool_->expect_use(highest + 1);
}

bool ReceiveBuffer::write(int slot_index, const uint8_t* bytes) {
  const bool open = while_open([&] { std::memcpy(slot(slot_index), bytes, pool_->layout.page_bytes()); });
  if (open) page_received(slot_index);
  return open;
}

void ReceiveBuffer::page_received(int index) {
  if (arrivals_) arrivals_->page_arrived(index);
  std::lock_guard<std::mutex> lock(observing_);
  for (const auto& observer : observers_) observer(index);
}

void ReceiveBuffer::observe(std::function<void(int slot)> observer) {
  std::lock_guard<std::mutex> lock(observing_);
  observers_.push_back(std::move(observer));
}

void ReceiveBuffer::complete() {
  {
    std::lock_guard<std::mutex> lock(writing_);
    if (closed_) return;
    closed_ = true;
  }
  if (arrivals_) arrivals_->finish();
  queue_->push(number_);
}

void ReceiveBuffer::close() {
  {
    std::lock_guard<std::mutex> lock(writing_);
    closed_ = true;
  }
  if (arrivals_) arrivals_->finish();
}

}  // namespace kvasir
