// An attention worker: it holds keys and values of a shard of the KV heads and no weights, and answers the steps of
// model workers.
#pragma once
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "net/listener.hpp"
#include "workers/page_puller.hpp"
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
  uint64_t refused = 0;  // connections of another owner than that of the open links
  uint64_t heartbeats = 0;  // sent while calls waited for their results
};

/**
 * Serves the links of one model worker, over one connection each. Their steps share the threads call by call. While a
 * call computes, or waits for the threads, its link receives heartbeats.
 */
class AttentionWorker {
 public:
  /** `overlaps` as in ShardAttention. Port 0 chooses a free port. @throws std::runtime_error if the address cannot be bound */
  AttentionWorker(std::shared_ptr<Backend> backend, std::shared_ptr<KvPool> pool, const HostPort& address, Transport transport, const HashKey& key,
                  bool overlaps);
  AttentionWorker(const AttentionWorker&) = delete;
  AttentionWorker& operator=(const AttentionWorker&) = delete;

  int port() const { return listener_.port(); }
  AttentionWorkerCounts counts() const;
  PagePuller& puller() { return puller_; }

 private:
  void serve(Connection& connection, const std::atomic<bool>& ended);
  /** A connection of the model worker. */
  struct Session {
    Session(Connection& of, ShardAttention with) : connection(of), shard(std::move(with)) {}

    Connection& connection;
    ShardAttention shard;
    uint64_t early_nanoseconds = 0;  // of the call in progress
    uint32_t pages_frames = 0;       // frames of pages that were stored
    std::atomic<bool> is_superseded{false};  // a later generation of links has the pages
    std::mutex sending;              // held by the thread that sends
    // Guarded by `sending`:
    bool computes = false;     // heartbeats are sent
    uint32_t step = 0;         // of the call
    int call = 0;
    uint64_t ranges_seen = 0;  // at the last heartbeat
  };

  bool open(Session& session, const std::atomic<bool>& ended);
  bool has_pages(std::unique_lock<std::mutex>& lock, uint64_t owner);
  void close(Session& session);
  void serve_frames(Session& session, const std::atomic<bool>& ended);
  void send_heartbeats();
  void send_heartbeat(Session& session);
  void set_computes(Session& session, const WorkerFrame& frame, bool computes);

  bool serve_frame(Session& session, const WorkerFrame& frame, const std::atomic<bool>& ended);
  bool store_pages(Session& session, const WorkerFrame& frame, const std::atomic<bool>& ended);
  bool send_result(Session& session, AttentionFrame& result, const std::atomic<bool>& ended);
  template <class Change>
  void count(const Change& change) {
    const std::lock_guard<std::mutex> lock(mutex_);
    change(counts_);
  }

  const std::shared_ptr<Backend> backend_;
  const std::shared_ptr<KvPool> pool_;
  const bool overlaps_;
  PagePuller puller_;  // a call holds it while it uses the threads
  mutable std::mutex mutex_;  // guards `counts_`
  AttentionWorkerCounts counts_;
  std::atomic<uint64_t> ranges_done_{0};  // of all calls
  std::mutex sessions_mutex_;  // guards the next members
  std::vector<Session*> sessions_;
  uint64_t owner_ = 0;  // of the sessions
  bool ended_ = false;
  std::condition_variable ends_;
  /** The thread that sends heartbeats. */
  struct HeartbeatThread {
    explicit HeartbeatThread(AttentionWorker& of) : worker(of), thread([&of] { of.send_heartbeats(); }) {}
    ~HeartbeatThread();
    AttentionWorker& worker;
    std::thread thread;
  } heartbeats_;
  Listener listener_;  // last: its threads use the other members
};

}  // namespace kvasir
