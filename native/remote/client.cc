// Two threads: one sends queries, the other receives answers.
#include "remote/client.hpp"

#include <system_error>
#include <utility>

#include "base/spin.hpp"

namespace kvasir {
namespace {

constexpr int kConnectMs = 1000;

}  // namespace

RemoteAttentionClient::RemoteAttentionClient(const KvLayout& layout, HostPort address, Transport transport, const HashKey& key)
    : layout_(layout), address_(std::move(address)), transport_(transport), key_(key), thread_([this] { serve(); }) {}

void RemoteAttentionClient::close() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (std::exchange(closed_, true)) return;
  }
  ended_ = true;
  event_.notify();
  thread_.join();
}

void RemoteAttentionClient::post(std::shared_ptr<RemoteQuery> query) {
  if (send_at_once(query)) return;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!closed_) queue_.push_back(std::exchange(query, nullptr));
  }
  if (query != nullptr) query->end(RemoteQuery::State::refused);
  event_.notify();
}

void RemoteAttentionClient::serve() {
  while (!ended_) {
    const uint32_t seen = event_.epoch();
    if (broken_) disconnect();
    if (!send_next() && !ended_ && !spin([&] { return event_.epoch() != seen; })) event_.wait(seen);
  }
  disconnect();
}

/**
 * Sends from the calling thread, which saves a wake-up, if that does not block: no other query is being sent, and the
 * connection has free space.
 */
bool RemoteAttentionClient::send_at_once(const std::shared_ptr<RemoteQuery>& query) {
  const std::unique_lock<std::mutex> sending(sending_, std::try_to_lock);
  if (!sending.owns_lock() || connection_ == nullptr || broken_ || !connection_->can_reserve() || query_message_bytes(*query) > Connection::kReserveBytes) return false;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (closed_ || !queue_.empty()) return false;
    sent_[++sequence_] = query;
  }
  if (send_query(*connection_, *query, sequence_, in_milliseconds(kStallMs), ended_)) return true;
  broken_ = true;
  event_.notify();
  return true;
}

/** False if the queue is empty. */
bool RemoteAttentionClient::send_next() {
  std::shared_ptr<RemoteQuery> query;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (queue_.empty()) return false;
  }
  if (connection_ == nullptr && !connect()) {
    refuse_all();
    return true;
  }
  const std::lock_guard<std::mutex> sending(sending_);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    query = std::move(queue_.front());
    queue_.pop_front();
    sent_[++sequence_] = query;
  }
  if (!send_query(*connection_, *query, sequence_, in_milliseconds(kStallMs), ended_)) broken_ = true;
  return true;
}

bool RemoteAttentionClient::connect() {
  auto connection = open_connection(address_, transport_, key_, layout_, kConnectMs, ended_);
  if (connection == nullptr) return false;
  {
    const std::lock_guard<std::mutex> sending(sending_);
    connection_ = std::move(connection);
    sequence_ = 0;
    broken_ = false;
  }
  try {
    answer_thread_ = std::thread([this] { receive_answers(); });
  } catch (const std::system_error&) {
    // No thread can start now: as if the peer had not answered.
    const std::lock_guard<std::mutex> sending(sending_);
    connection_ = nullptr;
    return false;
  }
  return true;
}

void RemoteAttentionClient::receive_answers() {
  AnswerHeader header;
  while (!broken_ && receive_answer_header(*connection_, header, broken_)) {
    std::shared_ptr<RemoteQuery> query;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      const auto found = sent_.find(header.sequence);
      if (found == sent_.end()) break;
      query = found->second;
    }
    // An answer can arrive while `send_next` still reads the query: wait until it is sent.
    { const std::lock_guard<std::mutex> sent(sending_); }
    if (!receive_answer_body(*connection_, header, *query, in_milliseconds(kStallMs), broken_)) break;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      sent_.erase(header.sequence);
    }
    query->end(header.answered != 0 ? RemoteQuery::State::answered : RemoteQuery::State::refused);
  }
  broken_ = true;
  event_.notify();
}

void RemoteAttentionClient::disconnect() {
  broken_ = true;
  if (connection_ != nullptr) connection_->shut_down();
  if (answer_thread_.joinable()) answer_thread_.join();
  {
    const std::lock_guard<std::mutex> sending(sending_);
    connection_ = nullptr;
    broken_ = false;
  }
  refuse_all();
}

void RemoteAttentionClient::refuse_all() {
  std::unordered_map<uint32_t, std::shared_ptr<RemoteQuery>> sent;
  std::deque<std::shared_ptr<RemoteQuery>> queue;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    sent.swap(sent_);
    queue.swap(queue_);
  }
  for (const auto& [sequence, query] : sent) query->end(RemoteQuery::State::refused);
  for (const auto& query : queue) query->end(RemoteQuery::State::refused);
}

}  // namespace kvasir
