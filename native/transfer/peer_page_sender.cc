// Two threads: one sends frames, the other receives acknowledgements.
#include "transfer/peer_page_sender.hpp"

#include <algorithm>
#include <system_error>
#include <unordered_set>
#include <utility>

namespace kvasir {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

/** Most unacknowledged bytes, plus one frame. */
constexpr size_t kWindowBytes = size_t{8} << 20;
constexpr int kConnectMs = 3000;
/** The peer is considered dead after this time without an acknowledgement. */
constexpr int kAckTimeoutMs = 10000;
constexpr int kAckPollMs = 100;  // interval of checks of that time and of the end
constexpr int kBackoffMs = 20, kBackoffMaxMs = 1000;

/** Keeps the last page of each slot: two pages for one slot in a frame would break its checksum. */
std::vector<PageDescriptor> deduplicated(const std::vector<PageDescriptor>& descriptors) {
  const auto is_next = [](const PageDescriptor& a, const PageDescriptor& b) { return a.slot >= b.slot; };
  if (std::adjacent_find(descriptors.begin(), descriptors.end(), is_next) == descriptors.end()) return descriptors;
  std::unordered_set<int32_t> slots;
  std::vector<PageDescriptor> latest;
  for (auto at = descriptors.rbegin(); at != descriptors.rend(); ++at)
    if (slots.insert(at->slot).second) latest.push_back(*at);
  std::reverse(latest.begin(), latest.end());
  return latest;
}

}  // namespace

PeerPageSender::PeerPageSender(std::shared_ptr<KvPool> pool, HostPort address, Transport transport, const HashKey& key, size_t frame_bytes, int give_up_ms)
    : pool_(std::move(pool)),
      address_(std::move(address)),
      transport_(transport),
      key_(key),
      page_bytes_(pool_->layout.page_bytes()),
      batch_pages_(std::clamp<size_t>(frame_bytes / page_bytes_, 1, kFramePagesMax)),
      give_up_ms_(give_up_ms),
      queue_(pool_->progress),
      thread_([this] { serve(); }) {}

PeerPageSender::~PeerPageSender() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    ended_ = true;
  }
  ended_changed_.notify_all();
  pool_->progress.event.notify();
  thread_.join();
}

void PeerPageSender::send(const RemoteReceiveBuffer& buffer, const std::vector<PageDescriptor>& descriptors, bool last) {
  check_descriptors(*pool_, buffer.slots, descriptors);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (is_given_up(buffer)) return;
    queue_.add(buffer, descriptors, last);
  }
  pool_->progress.event.notify();
}

void PeerPageSender::stop(const RemoteReceiveBuffer& buffer) {
  queue_.stop([&](const RemoteReceiveBuffer& target) { return target == buffer; });
  std::lock_guard<std::mutex> lock(mutex_);
  for (auto* all : {&given_up_, &unreported_}) all->erase(std::remove(all->begin(), all->end(), buffer), all->end());
}

size_t PeerPageSender::pending(const RemoteReceiveBuffer& buffer) const {
  return queue_.pending([&](const RemoteReceiveBuffer& target) { return target == buffer; });
}

/** Requires the lock. */
bool PeerPageSender::is_given_up(const RemoteReceiveBuffer& buffer) const {
  return std::find(given_up_.begin(), given_up_.end(), buffer) != given_up_.end();
}

PeerSendCounts PeerPageSender::counts() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return counts_;
}

std::vector<RemoteReceiveBuffer> PeerPageSender::take_given_up() {
  std::lock_guard<std::mutex> lock(mutex_);
  return std::exchange(unreported_, {});
}

bool PeerPageSender::is_idle() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return !connected_ && given_up_.empty() && queue_.empty();
}

void PeerPageSender::serve() {
  while (!ended_) {
    const uint32_t seen = pool_->progress.event.epoch();
    if (queue_.empty()) {
      if (!ended_) pool_->progress.event.wait(seen);
      continue;
    }
    if (connect()) {
      send_batches();
      disconnect();
    }
    if (!ended_) back_off();
  }
}

bool PeerPageSender::connect() {
  connection_ = open_connection(address_, transport_, key_, pool_->layout, kConnectMs, ended_);
  if (connection_ == nullptr) return false;
  transport_in_use_ = connection_->transport();
  writer_ = std::make_unique<FrameWriter>(*pool_, *connection_, broken_);
  sequence_ = 0;
  broken_ = false;
  try {
    ack_thread_ = std::thread([this] { receive_acks(); });
  } catch (const std::system_error&) {
    // No thread can start now: as if the peer had not answered.
    writer_ = nullptr;
    connection_ = nullptr;
    return false;
  }
  std::lock_guard<std::mutex> lock(mutex_);
  connected_ = true;
  return true;
}

void PeerPageSender::disconnect() {
  broken_ = true;
  connection_->shut_down();
  ack_thread_.join();
  writer_ = nullptr;
  connection_ = nullptr;
  std::lock_guard<std::mutex> lock(mutex_);
  connected_ = false;
  if (unacknowledged_.empty()) failing_ = false;
  else counts_.broken++;
  for (; !unacknowledged_.empty(); unacknowledged_.pop_back()) queue_.requeue(unacknowledged_.back().batch);
  unacknowledged_bytes_ = 0;
}

/** After a failure: waits with exponential backoff, and gives up in the end. */
void PeerPageSender::back_off() {
  std::unique_lock<std::mutex> lock(mutex_);
  if (!failing_) failing_since_ = steady_clock::now();
  failing_ = true;
  if (steady_clock::now() - failing_since_ >= milliseconds(give_up_ms_)) {
    give_up();
    return;
  }
  ended_changed_.wait_for(lock, milliseconds(backoff_ms_), [this] { return ended_.load(); });
  backoff_ms_ = std::clamp(2 * backoff_ms_, kBackoffMs, kBackoffMaxMs);
}

/** Requires the lock. */
void PeerPageSender::give_up() {
  counts_.given_up++;
  failing_ = false;
  backoff_ms_ = 0;
  for (const RemoteReceiveBuffer& buffer : queue_.targets()) {
    given_up_.push_back(buffer);
    unreported_.push_back(buffer);
  }
  queue_.stop([&](const RemoteReceiveBuffer& target) { return is_given_up(target); });
}

void PeerPageSender::send_batches() {
  Queue::Batch batch;
  while (!ended_ && !broken_) {
    const uint32_t seen = pool_->progress.event.epoch();
    if (is_full() || !queue_.next_batch(batch_pages_, batch)) {
      connection_->flush();
      if (!ended_ && !broken_) pool_->progress.event.wait(seen);
    } else if (!send_batch(batch)) {
      return;
    }
  }
}

bool PeerPageSender::is_full() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return unacknowledged_bytes_ >= kWindowBytes;
}

bool PeerPageSender::send_batch(const Queue::Batch& batch) {
  // The stream was stopped meanwhile: nothing of the batch is sent.
  if (queue_.is_stopped(batch)) return true;
  const auto begin = steady_clock::now();
  const std::vector<PageDescriptor> descriptors = deduplicated(batch.descriptors);
  const RemoteReceiveBuffer& buffer = batch.stream->target;
  FrameHeader header;
  header.kind = batch.last ? FrameKind::last_pages : FrameKind::pages;
  header.sequence = ++sequence_;
  header.buffer = buffer.number;
  header.count = static_cast<uint32_t>(descriptors.size());
  header.buffer_key = buffer.key;
  header.bytes = descriptors.size() * page_bytes_;
  SendCounts sent;
  sent.streams = batch.first ? 1 : 0;
  sent.first_pages = batch.ready_pages;
  sent.pages = header.count;
  sent.bytes = header.bytes;
  sent.early_bytes = pool_->progress.runs() ? header.bytes : 0;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (unacknowledged_.empty()) last_ack_ = begin;
    unacknowledged_.push_back({batch, header.sequence, header.bytes});
    unacknowledged_bytes_ += header.bytes;
    // Counted before the peer can acknowledge it.
    counts_.sent += sent;
  }
  const ReadAccess reading = {[&] { return queue_.begin_reading(batch); }, [&] { queue_.end_reading(batch); }};
  const bool done = writer_->write(header, descriptors, reading);
  SendCounts spent;
  spent.nanoseconds = static_cast<uint64_t>(std::chrono::nanoseconds(steady_clock::now() - begin).count());
  std::lock_guard<std::mutex> lock(mutex_);
  counts_.sent += spent;
  return done;
}

/** Any invalid acknowledgement ends the connection. */
void PeerPageSender::receive_acks() {
  Ack ack;
  for (;;) {
    if (!connection_->await_readable(in_milliseconds(kAckPollMs), broken_)) {
      if (broken_ || ended_ || acks_timed_out()) break;
      continue;
    }
    if (!connection_->receive(&ack, sizeof ack, in_milliseconds(kAckTimeoutMs), broken_) || !take_ack(ack)) break;
    pool_->progress.event.notify();
  }
  broken_ = true;
  connection_->shut_down();
  pool_->progress.event.notify();
}

bool PeerPageSender::acks_timed_out() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return !unacknowledged_.empty() && steady_clock::now() - last_ack_ > milliseconds(kAckTimeoutMs);
}

/** An acknowledgement covers its frame and all earlier ones. */
bool PeerPageSender::take_ack(const Ack& ack) {
  std::vector<Queue::Batch> acknowledged;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    const bool is_valid = ack.magic == kAckMagic && !unacknowledged_.empty() && ack.sequence >= unacknowledged_.front().sequence &&
                         ack.sequence <= unacknowledged_.back().sequence;
    if (!is_valid) return false;
    while (!unacknowledged_.empty() && unacknowledged_.front().sequence <= ack.sequence) {
      unacknowledged_bytes_ -= unacknowledged_.front().bytes;
      acknowledged.push_back(std::move(unacknowledged_.front().batch));
      unacknowledged_.pop_front();
    }
    last_ack_ = steady_clock::now();
    failing_ = false;
    backoff_ms_ = 0;
  }
  for (const Queue::Batch& batch : acknowledged) {
    queue_.acknowledge(batch);
    if (batch.last) queue_.finish(batch);
  }
  if (ack.status == AckStatus::closed) stop(acknowledged.back().stream->target);
  return true;
}

}  // namespace kvasir
