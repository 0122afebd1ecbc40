// One thread for each connection reads a frame, computes, and answers. While it computes, later frames wait in the
// connection.
#include "workers/attention_worker.hpp"

#include <chrono>
#include <utility>

namespace kvasir {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kStallMs = 20000;  // longest wait between the parts of one frame

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
      listener_(address, transport, key, pool_->layout, [this](Connection& connection, const std::atomic<bool>& ended) { serve(connection, ended); }) {}

AttentionWorkerCounts AttentionWorker::counts() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return counts_;
}

void AttentionWorker::serve(Connection& connection, const std::atomic<bool>& ended) {
  try {
    serve_frames(connection, ended);
  } catch (const std::bad_alloc&) {
    count([](AttentionWorkerCounts& counts) { counts.broken++; });
  }
}

void AttentionWorker::serve_frames(Connection& connection, const std::atomic<bool>& ended) {
  WorkerHello hello;
  hello.isa = static_cast<int32_t>(pool_->isa);
  hello.pages = pool_->pages;
  hello.checksum = worker_checksum(hello);
  if (!connection.send(&hello, sizeof hello, in_milliseconds(kStallMs), ended)) return;
  Session session = {ShardAttention(backend_, pool_, overlaps_), 0};
  WorkerFrame frame;
  for (;;) {
    const auto begin = Clock::now();
    if (!connection.receive(&frame, sizeof frame, kNever, ended)) return;
    const bool within_step = frame.kind == WorkerFrameKind::keys || frame.call > 0;
    if (within_step) count([&](AttentionWorkerCounts& counts) { counts.idle_nanoseconds += nanoseconds_since(begin); });
    if (has_valid_limits(frame) && serve_frame(connection, session, frame, ended)) continue;
    if (!ended) count([](AttentionWorkerCounts& counts) { counts.broken++; });
    return;
  }
}

/** False if the frame is invalid or the connection broke. */
bool AttentionWorker::serve_frame(Connection& connection, Session& session, const WorkerFrame& frame, const std::atomic<bool>& ended) {
  ShardAttention& shard = session.shard;
  MessageReader body(connection, pool_->isa, in_milliseconds(kStallMs), ended);
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
      const std::lock_guard<std::mutex> computing(computing_);
      const auto begin = Clock::now();
      shard.query(frame, std::move(slopes), std::move(query), ended);
      session.early_nanoseconds = nanoseconds_since(begin);
      count([&](AttentionWorkerCounts& counts) {
        counts.early_calls += shard.computed_early() ? 1 : 0;
        counts.early_nanoseconds += session.early_nanoseconds;
        counts.bytes_in += frame.bytes;
      });
      return true;
    }
    case WorkerFrameKind::keys: {
      std::vector<uint8_t> keys;
      if (!shard.accepts_keys(frame) || !body.receive(keys, frame.bytes) || !body.receive_sum()) return false;
      AttentionFrame result;
      result.step = frame.step;
      result.call = frame.call;
      result.early_nanoseconds = session.early_nanoseconds;
      {
        const std::lock_guard<std::mutex> computing(computing_);
        const auto begin = Clock::now();
        shard.keys(keys, ended);
        result.late_nanoseconds = nanoseconds_since(begin);
      }
      result.bytes = shard.result().size() * sizeof(float);
      count([&](AttentionWorkerCounts& counts) {
        counts.calls++;
        counts.rows += static_cast<uint64_t>(frame.rows);
        counts.late_nanoseconds += result.late_nanoseconds;
        counts.bytes_in += frame.bytes;
        counts.bytes_out += result.bytes;
      });
      return !ended && send_result(connection, shard, result, ended);
    }
  }
  return false;
}

bool AttentionWorker::send_result(Connection& connection, const ShardAttention& shard, AttentionFrame& result, const std::atomic<bool>& ended) {
  result.checksum = worker_checksum(result);
  MessageWriter message(connection, pool_->isa, in_milliseconds(kStallMs), ended);
  message.head(result);
  message.add(shard.result());
  return message.close();
}

}  // namespace kvasir
