// An attention worker: it holds keys and values of a shard of the KV heads and no weights, and answers the steps of
// model workers.
#pragma once
#include <memory>
#include <mutex>

#include "net/listener.hpp"
#include "workers/shard_attention.hpp"

namespace kvasir {

struct AttentionWorkerCounts {
  uint64_t steps = 0;
  uint64_t calls = 0;  // attention of one layer in one step
  uint64_t rows = 0;   // of all calls
  uint64_t early_calls = 0;  // of which a part was computed before the keys of the step arrived
  uint64_t early_nanoseconds = 0;  // computing before the keys of the step arrived
  uint64_t late_nanoseconds = 0;   // computing after that
  uint64_t idle_nanoseconds = 0;   // waiting for frames between the first and the last call of steps
  uint64_t bytes_in = 0;
  uint64_t bytes_out = 0;
  uint64_t broken = 0;  // connections that ended in a frame, with an invalid frame, or without memory for one
};

/** Serves one connection for each model worker. Their steps share the threads call by call. */
class AttentionWorker {
 public:
  /** `overlaps` as in ShardAttention. Port 0 chooses a free port. @throws std::runtime_error if the address cannot be bound */
  AttentionWorker(std::shared_ptr<Backend> backend, std::shared_ptr<KvPool> pool, const HostPort& address, Transport transport, const HashKey& key,
                  bool overlaps);
  AttentionWorker(const AttentionWorker&) = delete;
  AttentionWorker& operator=(const AttentionWorker&) = delete;

  int port() const { return listener_.port(); }
  AttentionWorkerCounts counts() const;

 private:
  void serve(Connection& connection, const std::atomic<bool>& ended);
  void serve_frames(Connection& connection, const std::atomic<bool>& ended);
  /** A model worker's connection. */
  struct Session {
    ShardAttention shard;
    uint64_t early_nanoseconds;  // of the call in progress
  };

  bool serve_frame(Connection& connection, Session& session, const WorkerFrame& frame, const std::atomic<bool>& ended);
  bool send_result(Connection& connection, const ShardAttention& shard, AttentionFrame& result, const std::atomic<bool>& ended);
  template <class Change>
  void count(const Change& change) {
    const std::lock_guard<std::mutex> lock(mutex_);
    change(counts_);
  }

  const std::shared_ptr<Backend> backend_;
  const std::shared_ptr<KvPool> pool_;
  const bool overlaps_;
  std::mutex computing_;  // held while a call uses the threads
  mutable std::mutex mutex_;  // guards `counts_`
  AttentionWorkerCounts counts_;
  Listener listener_;  // last: its threads use the other members
};

}  // namespace kvasir
