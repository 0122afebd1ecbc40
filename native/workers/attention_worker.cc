// One thread for each connection reads a frame, computes, and answers. While it computes, later frames wait in the
// connection.
#include "workers/attention_worker.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

namespace kvasir {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kStallMs = 20000;  // longest wait between the parts of one frame
constexpr auto kHeartbeatInterval = std::chrono::milliseconds(250);
constexpr auto kSupersedeWait = std::chrono::milliseconds(800);  // below the time that a link waits for its answer
constexpr int kHeartbeatMs = 1000;  // longest wait for a heartbeat to be sent

uint64_t nanoseconds_since(Clock::time_point begin) { return static_cast<uint64_t>(std::chrono::nanoseconds(Clock::now() - begin).count()); }

/** The part of a frame that any step would allow. */
bool has_valid_limits(const WorkerFrame& frame) {
  return is_valid_worker_header(frame) && frame.rows > 0 && frame.rows <= kWorkerRowsMost && frame.words <= kWorkerWordsMost;
}

}  // namespace

AttentionWorker::AttentionWorker(std::shared_ptr<Backend> backend, std::shared_ptr<KvPool> pool, const HostPort& address, Transport transport, const HashKey& key,
                                 bool overlaps)
    : backend_(std::move(backend)),
      pool_(std::move(pool)),
      overlaps_(overlaps),
      puller_(pool_),
      heartbeats_(*this),
      listener_(address, transport, key, pool_->layout, [this](Connection& connection, const std::atomic<bool>& ended) { serve(connection, ended); }) {}

AttentionWorker::HeartbeatThread::~HeartbeatThread() {
  {
    const std::lock_guard<std::mutex> lock(worker.sessions_mutex_);
    worker.ended_ = true;
  }
  worker.ends_.notify_all();
  thread.join();
}

AttentionWorkerCounts AttentionWorker::counts() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return counts_;
}

void AttentionWorker::serve(Connection& connection, const std::atomic<bool>& ended) {
  try {
    Session session(connection, ShardAttention(backend_, pool_, overlaps_, ranges_done_));
    if (!open(session, ended)) return;
    try {
      serve_frames(session, ended);
    } catch (const std::bad_alloc&) {
      count([](AttentionWorkerCounts& counts) { counts.broken++; });
    }
    close(session);
  } catch (const std::bad_alloc&) {
    count([](AttentionWorkerCounts& counts) { counts.broken++; });
  }
}

/** Both sides describe themselves. False if links of another owner are open. */
bool AttentionWorker::open(Session& session, const std::atomic<bool>& ended) {
  ModelWorkerHello peer;
  const Deadline deadline = in_milliseconds(kStallMs);
  if (!session.connection.receive(&peer, sizeof peer, deadline, ended) || !is_valid_worker_header(peer)) return false;
  WorkerHello hello = {};
  hello.isa = static_cast<int32_t>(pool_->isa);
  hello.pages = pool_->pages;
  {
    std::unique_lock<std::mutex> lock(sessions_mutex_);
    hello.is_taken = has_pages(lock, peer.owner) ? 0 : 1;
    if (hello.is_taken == 0) {
      owner_ = peer.owner;
      sessions_.push_back(&session);
    }
  }
  if (hello.is_taken != 0) count([](AttentionWorkerCounts& counts) { counts.refused++; });
  hello.checksum = worker_checksum(hello);
  const bool sent = session.connection.send(&hello, sizeof hello, deadline, ended);
  if (!sent && hello.is_taken == 0) close(session);
  return sent && hello.is_taken == 0;
}

/** True once no session of another owner is left. Those of an earlier generation of its links end, with their calls. */
bool AttentionWorker::has_pages(std::unique_lock<std::mutex>& lock, uint64_t owner) {
  const auto is_free = [&] { return sessions_.empty() || owner_ == owner; };
  if (is_free()) return true;
  const auto generations = static_cast<int16_t>((owner & kOwnerGenerations) - (owner_ & kOwnerGenerations));
  if ((owner & ~kOwnerGenerations) != (owner_ & ~kOwnerGenerations) || generations < 0) return false;
  for (Session* session : sessions_) {
    session->is_superseded = true;
    session->connection.shut_down();
  }
  return ends_.wait_for(lock, kSupersedeWait, is_free);
}

void AttentionWorker::close(Session& session) {
  {
    const std::lock_guard<std::mutex> lock(sessions_mutex_);
    sessions_.erase(std::find(sessions_.begin(), sessions_.end(), &session));
  }
  ends_.notify_all();
}

void AttentionWorker::serve_frames(Session& session, const std::atomic<bool>& ended) {
  WorkerFrame frame;
  for (;;) {
    const auto begin = Clock::now();
    if (!session.connection.receive(&frame, sizeof frame, kNever, ended) || session.is_superseded) return;
    const bool within_step = frame.kind == WorkerFrameKind::keys || frame.call > 0;
    if (within_step) count([&](AttentionWorkerCounts& counts) { counts.idle_nanoseconds += nanoseconds_since(begin); });
    if (has_valid_limits(frame) && serve_frame(session, frame, ended)) continue;
    if (!ended) count([](AttentionWorkerCounts& counts) { counts.broken++; });
    return;
  }
}

/** Every interval: a session receives a heartbeat if its call waits and the threads have computed something. */
void AttentionWorker::send_heartbeats() {
  std::unique_lock<std::mutex> lock(sessions_mutex_);
  while (!ends_.wait_for(lock, kHeartbeatInterval, [this] { return ended_; }))
    for (Session* session : sessions_) send_heartbeat(*session);
}

void AttentionWorker::send_heartbeat(Session& session) {
  const std::unique_lock<std::mutex> sending(session.sending, std::try_to_lock);
  const uint64_t done = ranges_done_.load(std::memory_order_relaxed);
  if (!sending || !session.computes || done == session.ranges_seen) return;
  session.ranges_seen = done;
  AttentionFrame heartbeat = {};
  heartbeat.kind = AttentionFrameKind::heartbeat;
  heartbeat.step = session.step;
  heartbeat.call = session.call;
  heartbeat.checksum = worker_checksum(heartbeat);
  const std::atomic<bool> never{false};
  if (!session.connection.send(&heartbeat, sizeof heartbeat, in_milliseconds(kHeartbeatMs), never)) session.connection.shut_down();
  count([](AttentionWorkerCounts& counts) { counts.heartbeats++; });
}

void AttentionWorker::set_computes(Session& session, const WorkerFrame& frame, bool computes) {
  const std::lock_guard<std::mutex> sending(session.sending);
  session.computes = computes;
  session.step = frame.step;
  session.call = frame.call;
  if (computes) session.ranges_seen = ranges_done_.load(std::memory_order_relaxed);
}

/** False if the frame is invalid or the connection broke. */
bool AttentionWorker::serve_frame(Session& session, const WorkerFrame& frame, const std::atomic<bool>& ended) {
  ShardAttention& shard = session.shard;
  MessageReader body(session.connection, pool_->isa, in_milliseconds(kStallMs), ended);
  switch (frame.kind) {
    case WorkerFrameKind::step: {
      std::vector<int32_t> words;
      if (!body.receive(words, frame.words) || !body.receive_sum()) return false;
      count([&](AttentionWorkerCounts& counts) {
        counts.steps++;
        counts.bytes_in += words.size() * sizeof(int32_t);
      });
      return shard.begin(frame, words);
    }
    case WorkerFrameKind::query: {
      std::vector<float> slopes;
      std::vector<uint8_t> query;
      if (!shard.accepts_query(frame) || !body.receive(slopes, frame.slopes) || !body.receive(query, frame.bytes) || !body.receive_sum()) return false;
      set_computes(session, frame, true);
      const PagePuller::Call computing(puller_);
      const auto begin = Clock::now();
      shard.query(frame, std::move(slopes), std::move(query), ended);
      session.early_nanoseconds = nanoseconds_since(begin);
      count([&](AttentionWorkerCounts& counts) {
        counts.early_calls += shard.computed_early() ? 1 : 0;
        counts.early_nanoseconds += session.early_nanoseconds;
        counts.bytes_in += frame.bytes;
      });
      set_computes(session, frame, false);
      return true;
    }
    case WorkerFrameKind::keys: {
      std::vector<uint8_t> keys;
      if (!shard.accepts_keys(frame) || !body.receive(keys, frame.bytes) || !body.receive_sum()) return false;
      AttentionFrame result;
      result.step = frame.step;
      result.call = frame.call;
      result.early_nanoseconds = session.early_nanoseconds;
      set_computes(session, frame, true);
      {
        const PagePuller::Call computing(puller_);
        const auto begin = Clock::now();
        shard.keys(keys, ended);
        result.late_nanoseconds = nanoseconds_since(begin);
      }
      set_computes(session, frame, false);
      result.bytes = shard.result().size() * sizeof(float);
      count([&](AttentionWorkerCounts& counts) {
        counts.calls++;
        counts.rows += static_cast<uint64_t>(frame.rows);
        counts.late_nanoseconds += result.late_nanoseconds;
        counts.bytes_in += frame.bytes;
        counts.bytes_out += result.bytes;
      });
      return !ended && send_result(session, result, ended);
    }
    case WorkerFrameKind::pages:
      return store_pages(session, frame, ended);
  }
  return false;
}

/** The pages are written between attention calls. The model worker sends no more of them before it has the answer. */
bool AttentionWorker::store_pages(Session& session, const WorkerFrame& frame, const std::atomic<bool>& ended) {
  const uint64_t bytes_expected = static_cast<uint64_t>(frame.rows) * pool_->layout.page_bytes();
  // A frame that arrives twice would overwrite what steps have written since.
  if (frame.step != session.pages_frames + 1) return false;
  const bool has_valid_size = frame.words == static_cast<uint32_t>(frame.rows) && frame.bytes == bytes_expected && (frame.rows == 1 || frame.bytes <= kWorkerPagesBytesMost);
  std::vector<int32_t> pages;
  std::vector<uint8_t> bytes;
  MessageReader body(session.connection, pool_->isa, in_milliseconds(kStallMs), ended);
  if (!has_valid_size || !body.receive(pages, frame.words) || !body.receive(bytes, frame.bytes) || !body.receive_sum()) return false;
  if (!std::all_of(pages.begin(), pages.end(), [this](int32_t page) { return page >= 0 && page < pool_->pages; })) return false;
  set_computes(session, frame, true);
  const bool stored = puller_.store(pages, bytes, ended);
  set_computes(session, frame, false);
  session.pages_frames++;
  count([&](AttentionWorkerCounts& counts) { counts.bytes_in += frame.bytes; });
  AttentionFrame result = {};
  result.step = frame.step;
  result.call = frame.call;
  const std::lock_guard<std::mutex> sending(session.sending);
  result.checksum = worker_checksum(result);
  MessageWriter message(session.connection, pool_->isa, in_milliseconds(kStallMs), ended);
  message.head(result);
  message.add(nullptr, 0);
  return stored && message.close();
}

bool AttentionWorker::send_result(Session& session, AttentionFrame& result, const std::atomic<bool>& ended) {
  const std::lock_guard<std::mutex> sending(session.sending);
  result.checksum = worker_checksum(result);
  MessageWriter message(session.connection, pool_->isa, in_milliseconds(kStallMs), ended);
  message.head(result);
  message.add(session.shard.result());
  return message.close();
}

}  // namespace kvasir
