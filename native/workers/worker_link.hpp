// A model worker's connection to one attention worker. It is used by one thread, the one that runs the steps.
#pragma once
#include <chrono>
#include <deque>
#include <initializer_list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "net/listener.hpp"
#include "ops/step.hpp"
#include "workers/pull_queue.hpp"
#include "workers/worker_frames.hpp"

namespace kvasir {

struct WorkerLinkCounts {
  uint64_t calls = 0;
  uint64_t bytes_out = 0;
  uint64_t bytes_in = 0;
  uint64_t wait_nanoseconds = 0;   // of the model worker for results
  uint64_t early_nanoseconds = 0;  // of the attention worker, before the keys of a step arrived
  uint64_t late_nanoseconds = 0;   // of the attention worker, after that
};

/** The part of a step that one attention worker computes. */
struct WorkerShare {
  std::vector<int> sequences;  // of the step, ascending
  int rows = 0;                // of these sequences
  int heads_of = 1;            // workers that share the heads of these sequences
  int heads_at = 0;            // index of the worker among them
  int first_page = 0;          // number, in the step's page tables, of the worker's page 0
  std::vector<int> first_block;  // of each layer group: number of the worker's block 0
};

/** How long a step waits for a worker that sends nothing and reads nothing. Then the step fails there, and the link is stalled. */
struct StallLimits {
  std::chrono::milliseconds first;    // of a link that is not stalled
  std::chrono::milliseconds stalled;  // of a stalled link
};

/**
 * The owner of the process's links to an address. Links that are open at the same time have one owner. After they have
 * closed, or one of them broke, the next ones are of a new generation.
 */
std::shared_ptr<const uint64_t> link_owner(const HostPort& address);

class WorkerLink {
 public:
  /**
   * Connects to the attention worker at `address`, whose pages have `layout`. The link breaks if the worker sends
   * neither a result nor a heartbeat for `deadline`. `form` is that of every query. The pages of the link begin at
   * `first_page`: links for several shards have pages of their own.
   * @throws std::runtime_error if it does not answer, belongs to another process, or computes with another instruction
   * set than `isa`
   */
  WorkerLink(Isa isa, const KvLayout& layout, const HostPort& address, Transport transport, const HashKey& key, std::chrono::milliseconds deadline,
             AttentionForm form = AttentionForm::ranges, int first_page = 0);
  WorkerLink(const WorkerLink&) = delete;
  WorkerLink& operator=(const WorkerLink&) = delete;

  const KvLayout& layout() const { return layout_; }
  /** Pages of the attention worker's pool. */
  int pages() const { return pages_; }
  /** A broken link stays broken; its owner opens another. From any thread. */
  bool is_broken() const { return broken_.load(std::memory_order_acquire); }
  /**
   * The worker has sent and read nothing for the limit of a step: the step fails there. The next step goes on as soon as
   * the worker does. After the deadline the link is broken.
   */
  bool is_stalled() const { return stalled_since_.has_value(); }
  const WorkerLinkCounts& counts() const { return counts_; }
  /** Each step begins when the sent pages of cancelled pulls have arrived: they would overwrite pages. */
  void follow(std::shared_ptr<PullQueue> pulls) { pulls_ = std::move(pulls); }

  /** The calls below do nothing once the link is broken. All return early once `abort` is set. */

  /**
   * Receives the results that an earlier step still has coming, then announces the worker's share of the step. `abort`
   * and `limits` are those of the step: without limits it waits until the deadline of the link.
   */
  void begin(const StepView& step, const WorkerShare& share, const std::vector<std::vector<AttentionSequence>>& groups, const std::vector<LayerGroup>& layers,
             const int32_t* abort, std::optional<StallLimits> limits = std::nullopt);
  /** `frame` has the fields of the call; `query` (rows, heads of the shard, headDim) in the KV type. */
  void send_query(WorkerFrame frame, const float* slopes, const std::vector<uint8_t>& query);
  /** The result of the call has `count` values, and is pending from now on. */
  void send_keys(WorkerFrame frame, const std::vector<uint8_t>& keys, size_t count);
  /**
   * Sends pages of the attention worker, (pages) in `bytes`, and waits until it has stored them. For a link without
   * steps.
   */
  bool send_pages(const std::vector<int32_t>& pages, const std::vector<uint8_t>& bytes);
  /** Breaks the link; the others of its generation stay open. From any thread. */
  void shut_down() {
    is_closing_ = true;
    connection_->shut_down();
  }
  /** Waits for the result of the oldest call. False if the link is or gets broken, or `abort` was set. */
  bool receive(std::vector<float>& values, const int32_t* abort);

 private:
  /** A call whose result has not been received. */
  struct PendingCall {
    uint32_t step;
    int call;
    uint64_t bytes;
  };

  void send(WorkerFrame& frame, std::initializer_list<iovec> body);
  bool send_parts(std::vector<iovec> parts);
  bool finish_earlier_steps();
  bool is_over(Deadline since);
  bool receive_heartbeat();
  bool receive_frame(AttentionFrame& frame, std::vector<float>& values);
  void fail();

  const Isa isa_;
  const KvLayout layout_;
  const std::chrono::milliseconds deadline_;
  const AttentionForm form_;
  const int first_page_;
  std::atomic<bool> ended_{false};
  std::atomic<bool> is_closing_{false};
  const HostPort address_;
  const std::shared_ptr<const uint64_t> owner_;
  std::unique_ptr<Connection> connection_;
  int pages_ = 0;
  std::atomic<bool> broken_{false};
  std::shared_ptr<PullQueue> pulls_;  // null: none
  const int32_t* abort_;  // of the step
  std::optional<StallLimits> limits_;
  std::optional<Deadline> stalled_since_;
  std::vector<uint8_t> unsent_;  // the rest of a frame of an aborted or stalled step
  std::vector<std::vector<int32_t>> tables_;  // of each group: the pages that the attention worker has for each block
  uint32_t step_number_ = 0;
  std::deque<PendingCall> pending_;
  std::vector<float> discarded_;
  WorkerLinkCounts counts_;
};

/** A link that a thread of its own opens. */
class WorkerLinkAttempt {
 public:
  /** Arguments as those of the link. */
  WorkerLinkAttempt(Isa isa, const KvLayout& layout, const HostPort& address, Transport transport, const HashKey& key, std::chrono::milliseconds deadline,
                    AttentionForm form = AttentionForm::ranges, int first_page = 0);
  WorkerLinkAttempt(const WorkerLinkAttempt&) = delete;
  WorkerLinkAttempt& operator=(const WorkerLinkAttempt&) = delete;

  /** Null while the attempt lasts. @throws std::runtime_error if it has failed */
  std::shared_ptr<WorkerLink> poll() const;

 private:
  struct State {
    std::mutex mutex;
    std::shared_ptr<WorkerLink> link;
    std::string error;
  };

  const std::shared_ptr<State> state_;  // the thread may outlive the attempt
};

}  // namespace kvasir
