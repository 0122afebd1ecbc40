// Two threads: one asks, one hears.
#include "remote/client.hpp"

#include <utility>

#include "base/spin.hpp"

namespace kvasir {
namespace {

constexpr int kReachMs = 1000;
constexpr int kStallMs = 20000;  // between the parts of one frame

}  // namespace

FarRoom::FarRoom(const KvLayout& layout, HostPort address, Way way, const HashKey& key)
    : layout_(layout), address_(std::move(address)), way_(way), key_(key), thread_([this] { serve(); }) {}

void FarRoom::close() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (std::exchange(closed_, true)) return;
  }
  ended_ = true;
  bell_.ring();
  thread_.join();
}

void FarRoom::post(std::shared_ptr<GuestQuery> query) {
  if (send_at_once(query)) return;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!closed_) waiting_.push_back(std::exchange(query, nullptr));
  }
  if (query != nullptr) query->end(GuestQuery::State::refused);
  bell_.ring();
}

void FarRoom::serve() {
  while (!ended_) {
    const uint32_t seen = bell_.rung();
    if (broken_) disconnect();
    if (!send_next() && !ended_ && !spin([&] { return bell_.rung() != seen; })) bell_.wait(seen);
  }
  disconnect();
}

/** From the thread that asks, which saves waking another: only where it waits for nothing, on its turn and on a line that has room. */
bool FarRoom::send_at_once(const std::shared_ptr<GuestQuery>& query) {
  const std::unique_lock<std::mutex> sending(sending_, std::try_to_lock);
  if (!sending.owns_lock() || line_ == nullptr || broken_ || !line_->has_room() || query_letter_bytes(*query) > Line::kDraftBytes) return false;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (closed_ || !waiting_.empty()) return false;
    asked_[++sequence_] = query;
  }
  if (send_query(*line_, *query, sequence_, in_milliseconds(kStallMs), ended_)) return true;
  broken_ = true;
  bell_.ring();
  return true;
}

/** False where nothing waits to be sent. */
bool FarRoom::send_next() {
  std::shared_ptr<GuestQuery> query;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (waiting_.empty()) return false;
  }
  if (line_ == nullptr && !connect()) {
    refuse_all();
    return true;
  }
  const std::lock_guard<std::mutex> sending(sending_);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    query = std::move(waiting_.front());
    waiting_.pop_front();
    asked_[++sequence_] = query;
  }
  if (!send_query(*line_, *query, sequence_, in_milliseconds(kStallMs), ended_)) broken_ = true;
  return true;
}

bool FarRoom::connect() {
  auto line = reach(address_, way_, key_, layout_, kReachMs, ended_);
  if (line == nullptr) return false;
  {
    const std::lock_guard<std::mutex> sending(sending_);
    line_ = std::move(line);
    sequence_ = 0;
    broken_ = false;
  }
  ears_ = std::thread([this] { hear(); });
  return true;
}

void FarRoom::hear() {
  AnswerHeader header;
  while (!broken_ && receive_answer_header(*line_, header, broken_)) {
    std::shared_ptr<GuestQuery> query;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      const auto found = asked_.find(header.sequence);
      if (found == asked_.end()) break;
      query = found->second;
    }
    // Nobody answers what has not left; one that does is not believed before it has.
    { const std::lock_guard<std::mutex> sent(sending_); }
    if (!receive_partials(*line_, header, *query, in_milliseconds(kStallMs), broken_)) break;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      asked_.erase(header.sequence);
    }
    query->end(header.answered != 0 ? GuestQuery::State::answered : GuestQuery::State::refused);
  }
  broken_ = true;
  bell_.ring();
}

void FarRoom::disconnect() {
  broken_ = true;
  if (line_ != nullptr) line_->cut();
  if (ears_.joinable()) ears_.join();
  {
    const std::lock_guard<std::mutex> sending(sending_);
    line_ = nullptr;
    broken_ = false;
  }
  refuse_all();
}

void FarRoom::refuse_all() {
  std::unordered_map<uint32_t, std::shared_ptr<GuestQuery>> asked;
  std::deque<std::shared_ptr<GuestQuery>> waiting;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    asked.swap(asked_);
    waiting.swap(waiting_);
  }
  for (const auto& [sequence, query] : asked) query->end(GuestQuery::State::refused);
  for (const auto& query : waiting) query->end(GuestQuery::State::refused);
}

}  // namespace kvasir
