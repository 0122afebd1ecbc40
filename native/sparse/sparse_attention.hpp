// Attention of sequences that keep some tokens or read some pages: slots, selections of kept tokens, chosen pages.
#pragma once
#include "attention/pieces.hpp"
#include "ops/step.hpp"
#include "sparse/scoring.hpp"
#include "sparse/slots.hpp"

namespace kvasir {

/** One attention op of a step with sparse sequences. */
struct SparseAttentionCall {
  const AttentionArgs& args;  // of all sequences of the step
  ThreadPool& threads;
  const void* query;
  StreamOutput output;  // with statistics
  int group;
  void* scratch;  // for run_attention
};

/** The sparse sequences of a program's step, and its memory between K, V and attention. */
class SparseAttention {
 public:
  /** Begins a step. `failed_sequences` (sequences): entries of 1 have no keys. All arguments must stay valid until it ends. */
  void begin(const StepView& step, const uint8_t* failed_sequences) {
    step_ = &step;
    failed_sequences_ = failed_sequences;
  }
  bool any(int group) const;

  /** (tokens, 2 kv_heads, head_dim): K and V of rows that have no pages; valid until the next layer. */
  float* staged_rows(const KvLayout& layout) {
    return reinterpret_cast<float*>(staged_.at_least(sizeof(float) * step_->tokens.size * 2 * static_cast<size_t>(layout.kv_heads) * layout.head_dim));
  }
  /** (rows, heads) of max, then of sum. */
  float* statistics(int heads) { return reinterpret_cast<float*>(statistics_.at_least(sizeof(float) * 2 * step_->tokens.size * static_cast<size_t>(heads))); }

  /** Attention of the sparse sequences; their rows run one after another. */
  void attend(const SparseAttentionCall& call);
  /** Selects kept tokens; the rows of their sequences have their statistics. */
  void select(const SparseAttentionCall& call);

 private:
  /** The slots of one entry of Step.sparse in this layer. */
  struct Sparse {
    const SparseKeysView* keys;
    LayerSlots slots;
    int budget, end, recent;  // `end`: slots that may be filled
    int filled;
    int row, rows;              // of the batch
  };
  /** The pages of one entry of Step.page_selections in this layer. */
  struct Chosen {
    const PageSelectionView* selection;
    int bounded;
    int row, rows;
    int most;                     // pages that a KV head may read
    std::vector<int32_t> pages;   // (KV heads, most)
    std::vector<int32_t> starts;  // (KV heads)
  };

  /** Row `row` of each of these sequences. */
  void run_wave(const SparseAttentionCall& call, const std::vector<Sparse*>& slotted, const std::vector<Chosen*>& paged, int row);
  void write_row(const KvLayout& layout, const float* staged, const Sparse& sparse, int row, int head) const;
  void choose_pages(const SparseAttentionCall& call, Chosen& chosen, int row, int head) const;
  void compact(const SparseAttentionCall& call, const std::vector<Sparse*>& slotted, int row) const;
  int position_of(int row) const { return step_->positions[static_cast<size_t>(row)]; }

  const StepView* step_ = nullptr;
  const uint8_t* failed_sequences_ = nullptr;
  GrowingMemory staged_, statistics_, scoring_, scores_;
};

}  // namespace kvasir
