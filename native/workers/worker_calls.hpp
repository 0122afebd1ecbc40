// The attention calls of a model worker's step: query rows and keys go to the attention workers, by shards of KV heads
// or by sequences, and results return.
#pragma once
#include <memory>
#include <vector>

#include "ops/buffer.hpp"
#include "ops/step.hpp"
#include "workers/worker_link.hpp"

namespace kvasir {

/** Attention of one layer. */
struct WorkerCall {
  int number;  // within the step, in the order of computation
  int group, layer;
  int heads, kv_heads, head_dim;
  float scale, softcap;
  const float* slopes;  // (heads); null: none
};

class WorkerCalls {
 public:
  /**
   * Begins a step over `pages` pages at its attention workers. If a link is broken or stalled, the sequences of its
   * worker fail, with 1 in `failed_sequences`: all of the step if each worker has a shard of the heads. All arguments
   * must stay valid until the step ends. Costs nothing without attention workers.
   */
  void begin(const StepView& step, int pages, const std::vector<std::vector<AttentionSequence>>& groups, const std::vector<LayerGroup>& layers,
             uint8_t* failed_sequences, const int32_t* abort);
  bool aborted() const { return aborted_; }
  /** True if all sequences have failed: nothing more can be computed. */
  bool all_failed() const { return all_failed_; }

  /** `query`: rows of all heads in the KV type. */
  void send_query(const WorkerCall& call, const Buffer& query);
  /** `keys`: rows of K of all KV heads, then V, in the KV type. */
  void send_keys(const WorkerCall& call, const Buffer& keys);
  /** Waits for the results and writes (rows, heads, headDim) to `out`; rows of failed sequences are 0. */
  void receive(const WorkerCall& call, float* out, const int32_t* abort);

 private:
  WorkerFrame frame_of(const WorkerCall& call, const WorkerShare& share) const;
  int workers() const { return static_cast<int>(step_->attention_workers.size()); }
  /** True if the worker has rows of the step, and its link works. */
  bool computes(int worker) const { return !all_failed_ && shares_[worker].rows > 0 && failed_workers_[worker] == 0; }
  void share_sequences(int pages, const std::vector<LayerGroup>& layers);
  void fail(int worker);
  static bool has_failed(const WorkerLink& link) { return link.is_broken() || link.is_stalled(); }
  std::optional<StallLimits> stall_limits(int worker) const;

  const StepView* step_ = nullptr;
  uint8_t* failed_sequences_ = nullptr;
  bool aborted_ = false;
  bool all_failed_ = false;
  std::vector<WorkerShare> shares_;      // of each worker
  std::vector<uint8_t> failed_workers_;  // (workers)
  std::vector<uint8_t> bytes_;   // rows of one shard
  std::vector<float> values_;
};

}  // namespace kvasir
