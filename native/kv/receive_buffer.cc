// Landings: every write happens under a lock that closing takes, so no page is reused while a transfer may still touch it.
#include "kv/receive_buffer.hpp"

#include <algorithm>
#include <cstring>
#include <stdexcept>

namespace kvasir {

void LandingBoard::tell(int landing) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    landed_.push_back(landing);
  }
  wake_();
}

int LandingBoard::take(int32_t* out, int room) {
  std::lock_guard<std::mutex> lock(mutex_);
  const int count = std::min(room, static_cast<int>(landed_.size()));
  std::copy_n(landed_.begin(), count, out);
  landed_.erase(landed_.begin(), landed_.begin() + count);
  return count;
}

Landing::Landing(std::shared_ptr<KvPool> pool, std::shared_ptr<LandingBoard> board, std::vector<int32_t> pages, std::shared_ptr<LayerArrivals> arrivals)
    : pool_(std::move(pool)), board_(std::move(board)), pages_(std::move(pages)), arrivals_(std::move(arrivals)) {
  int highest = -1;
  for (const int32_t page : pages_) {
    if (page < 0 || page >= pool_->pages) {
      throw std::runtime_error("Cannot open a landing: the pool has " + std::to_string(pool_->pages) + " pages: " + std::to_string(page));
    }
    highest = std::max(highest, page);
  }
  pool_->expect_use(highest + 1);
}

bool Landing::put(int place_index, const uint8_t* bytes) {
  const bool open = while_open([&] { std::memcpy(place(place_index), bytes, pool_->layout.page_bytes()); });
  if (open) landed(place_index);
  return open;
}

void Landing::complete() {
  {
    std::lock_guard<std::mutex> lock(writing_);
    if (closed_) return;
    closed_ = true;
  }
  if (arrivals_) arrivals_->end();
  board_->tell(number_);
}

void Landing::close() {
  {
    std::lock_guard<std::mutex> lock(writing_);
    closed_ = true;
  }
  if (arrivals_) arrivals_->end();
}

}  // namespace kvasir
