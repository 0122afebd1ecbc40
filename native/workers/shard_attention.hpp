// Attention over the pages of one shard of the KV heads: it begins when the queries arrive and ends when the keys of
// the step have arrived.
#pragma once
#include <atomic>
#include <memory>
#include <vector>

#include "attention/pieces.hpp"
#include "base/backend.hpp"
#include "kv/kv_pool.hpp"
#include "sparse/sparse_attention.hpp"
#include "workers/worker_frames.hpp"

namespace kvasir {

/**
 * One model worker's steps over a pool, in the form of its queries; this is the form `ranges`. Keys before the 256-key range of a sequence's first row are complete when its
 * queries arrive: their attention is computed at once. The other ranges follow when K and V of the step are in their
 * pages. The partials merge in the tree of one pool, so the bits are those of one instance (Lamina, overlapping; the
 * order is that of docs/internals/kernels.md). In the form `prev_new` a sequence of one row is computed over all earlier keys at once.
 */
class ShardAttention {
 public:
  /**
   * Without `overlaps` everything is computed after the keys of the step have arrived: a baseline for comparisons.
   * `ranges_done` counts the ranges of all calls.
   */
  ShardAttention(std::shared_ptr<Backend> backend, std::shared_ptr<KvPool> pool, bool overlaps, std::atomic<uint64_t>& ranges_done)
      : backend_(std::move(backend)), pool_(std::move(pool)), overlaps_(overlaps), ranges_done_(ranges_done), written_(static_cast<size_t>(pool_->pages)) {}

  /** Begins a step; calls of earlier steps end. False if the frame is invalid. */
  bool begin(const WorkerFrame& frame, const std::vector<int32_t>& words);
  /** True if a query frame may follow what came before; its sizes are within those of the step. */
  bool accepts_query(const WorkerFrame& frame) const;
  /**
   * Computes attention over the keys of earlier ranges. `query` (rows, heads, headDim) in the KV type. Ends early once
   * `ended` is set.
   */
  void query(const WorkerFrame& frame, std::vector<float> slopes, std::vector<uint8_t> query, const std::atomic<bool>& ended);
  /** True if the call in progress computed something before the keys of the step arrived. */
  bool computed_early() const { return call_ != nullptr && call_->computed_early; }
  bool accepts_keys(const WorkerFrame& frame) const;
  /** Writes K and V of the step's rows, (rows, 2 kvHeads, headDim) in the KV type, and computes the rest. */
  void keys(const std::vector<uint8_t>& keys, const std::atomic<bool>& ended);
  /** (rows, heads, headDim) of the last call that ended. */
  const std::vector<float>& result() const { return result_; }

 private:
  /** The attention call in progress. */
  struct Call {
    int number = 0;
    int group = 0;
    std::vector<float> slopes;
    std::vector<uint8_t> query;
    AttentionArgs args = {};
    std::vector<AttentionRoot> roots;
    std::unique_ptr<AttentionPieces> pieces;  // null: computed when the keys have arrived
    std::vector<int> late;                    // tasks that read keys of the step
    AttentionForm form = AttentionForm::ranges;
    // In the form prev_new:
    std::vector<AttentionSequence> earlier;  // sequences of one row, at the position before that row
    std::vector<AttentionSequence> whole;    // the others
    std::vector<float> max, sum;             // (rows, heads): softmax statistics over earlier keys
    bool computed_early = false;
    uint8_t* workspaces = nullptr;
    size_t workspace_bytes = 0;
  };

  size_t query_row_bytes(int heads) const { return query_bytes(pool_->isa, pool_->layout.type, heads, pool_->layout.head_dim, 1); }
  bool has_pages(const ShardGroup& group, const std::vector<int32_t>& table) const;
  bool writes_each_page_once();
  /** Prepares the sparse sequences of the step. False if an entry is invalid. */
  bool begin_sparse();
  /** The result of a call, with statistics if its group has sparse sequences. */
  StreamOutput output_of(const Call& call);
  /** Attention of these sequences but sparse ones. */
  void attend_full(const Call& call, const std::vector<AttentionSequence>& sequences);
  void compute_early(Call& call, const std::atomic<bool>& ended);
  void compute_earlier_keys(Call& call);
  void combine_prev_new(const Call& call, const std::vector<uint8_t>& keys);
  void attend(const AttentionArgs& args, const std::vector<uint8_t>& query, const StreamOutput& output);
  uint8_t* attention_scratch(const AttentionArgs& args);
  void run_tasks(const Call& call, const std::vector<int>& tasks, const std::atomic<bool>& ended);
  void write_keys(const Call& call, const std::vector<uint8_t>& keys);
  void compute_late(Call& call, const std::vector<uint8_t>& keys, const std::atomic<bool>& ended);

  std::shared_ptr<Backend> backend_;
  std::shared_ptr<KvPool> pool_;
  bool overlaps_;
  std::atomic<uint64_t>& ranges_done_;
  std::vector<uint32_t> written_;  // (pages): number of the last step, of this connection, that writes the page
  uint32_t begun_ = 0;             // steps of this connection
  uint32_t step_number_ = 0;
  int rows_ = 0;
  ShardStep step_;
  std::vector<std::vector<int32_t>> tables_;                // of each group: (blocks, layers) pages, kept from step to step
  std::vector<std::vector<AttentionSequence>> sequences_;  // of each group
  StepView view_;                       // rows and sparse sequences of the step, over `step_` and `row_positions_`
  std::vector<int32_t> row_positions_;  // (rows)
  std::vector<std::vector<uint8_t>> in_slots_;  // (groups, sequences): 1 if a sequence keeps only some tokens
  std::vector<uint8_t> answered_;       // (sequences): 0
  SparseAttention sparse_;
  int next_call_ = 0;
  std::unique_ptr<Call> call_;
  std::vector<float> result_;
  GrowingMemory memory_;
};

}  // namespace kvasir
