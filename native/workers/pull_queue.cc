// A slot that is received again while it is copied is queued again: its sender reports it after the last byte.
#include "workers/pull_queue.hpp"

#include <cstring>
#include <stdexcept>
#include <string>

namespace kvasir {
namespace {

[[noreturn]] void refuse(const char* why) { throw std::runtime_error(std::string("Cannot pull pages: ") + why); }

}  // namespace

void PullQueue::check(const KvLayout& from, int shard) const {
  if (from.type != shard_.type || from.head_dim != shard_.head_dim || from.kv_heads % shard_.kv_heads != 0) refuse("their layout is not one of which the worker holds a shard");
  if (shard < 0 || shard >= from.kv_heads / shard_.kv_heads) refuse("the shard does not exist");
}

int PullQueue::pull(std::shared_ptr<KvPool> source, int shard, std::vector<PulledPage> pages) {
  if (!source->has_memory()) refuse("their pool has no memory");
  check(source->layout, shard);
  for (const PulledPage& page : pages)
    if (page.from < 0 || page.from >= source->pages || !is_page(page.to)) refuse("a page does not exist");
  const std::lock_guard<std::mutex> lock(mutex_);
  last_++;
  if (!pages.empty()) pulls_.push_back({last_, std::move(source), shard, std::move(pages), 0});
  changed_.notify_all();
  return last_;
}

int PullQueue::pull_received(std::shared_ptr<ReceiveBuffer> buffer, int shard, std::vector<int32_t> pages) {
  check(buffer->layout(), shard);
  if (pages.size() != static_cast<size_t>(buffer->slots())) refuse("the buffer has another number of slots");
  if (!std::all_of(pages.begin(), pages.end(), [this](int32_t page) { return is_page(page); })) refuse("a page does not exist");
  int number = 0;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    number = ++last_;
    const size_t slots = pages.size();
    received_.push_back({number, buffer, shard, std::move(pages), {}, std::vector<uint8_t>(slots)});
  }
  buffer->observe([self = weak_from_this(), number](int slot) {
    if (const auto queue = self.lock()) queue->slot_received(number, slot);
  });
  return number;
}

void PullQueue::slot_received(int pull, int slot) {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (ReceivedPull& each : received_) {
    if (each.number != pull || each.is_queued[static_cast<size_t>(slot)] != 0) continue;
    each.is_queued[static_cast<size_t>(slot)] = 1;
    each.slots.push_back(slot);
    changed_.notify_all();
  }
}

bool PullQueue::has_page() const {
  return !pulls_.empty() || std::any_of(received_.begin(), received_.end(), [](const ReceivedPull& pull) { return !pull.slots.empty(); });
}

bool PullQueue::is_done(int pull) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (is_in_flight(pull)) return false;
  for (const ReceivedPull& each : received_)
    if (each.number == pull) return each.slots.empty();
  return std::none_of(pulls_.begin(), pulls_.end(), [&](const Pull& each) { return each.number == pull; });
}

void PullQueue::cancel(int pull) {
  // A page is copied under `mutex_`.
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto is_it = [&](const auto& each) { return each.number == pull; };
  pulls_.erase(std::remove_if(pulls_.begin(), pulls_.end(), is_it), pulls_.end());
  received_.erase(std::remove_if(received_.begin(), received_.end(), is_it), received_.end());
  cancelled_in_flight_ = cancelled_in_flight_ || is_in_flight(pull);
  in_flight_.erase(std::remove(in_flight_.begin(), in_flight_.end(), pull), in_flight_.end());
}

bool PullQueue::await_cancelled(std::chrono::steady_clock::time_point deadline) {
  std::unique_lock<std::mutex> lock(mutex_);
  return changed_.wait_until(lock, deadline, [this] { return ended_ || !cancelled_in_flight_; }) && !cancelled_in_flight_;
}

bool PullQueue::await_page() {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [this] { return ended_ || has_page(); });
  return !ended_;
}

void PullQueue::end() {
  const std::lock_guard<std::mutex> lock(mutex_);
  ended_ = true;
  changed_.notify_all();
}

bool PullQueue::has_ended() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return ended_;
}

void PullQueue::arrived() {
  const std::lock_guard<std::mutex> lock(mutex_);
  in_flight_.clear();
  cancelled_in_flight_ = false;
  changed_.notify_all();
}

void PullQueue::copy_shard(const uint8_t* page, int shard, uint8_t* to) const {
  const size_t bytes = shard_.page_bytes();
  // The KV head is the outermost dimension of a page: a shard is one slice.
  std::memcpy(to, page + bytes * static_cast<size_t>(shard), bytes);
}

}  // namespace kvasir
