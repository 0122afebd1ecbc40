// One step as views of the caller's arrays, and the check that every index in them is valid.
#pragma once
#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "attention/attention.hpp"
#include "ops/sample.hpp"

namespace kvasir {

template <class T>
struct Span {
  const T* data = nullptr;
  size_t size = 0;

  T operator[](size_t i) const { return data[i]; }
};

class KvPool;
class LayerArrivals;
class RemoteAttentionEndpoint;
class WorkerLink;

/** Mirrors RemoteKeys. */
struct RemoteKeysView {
  int sequence, group, first_block;
  std::shared_ptr<RemoteAttentionEndpoint> endpoint;  // null: unknown handle
  int loan;
  Span<int32_t> blocks;
};

/** Mirrors ArrivingKeys. */
struct ArrivingKeysView {
  int sequence;
  std::shared_ptr<LayerArrivals> arrivals;  // null: unknown handle
  std::chrono::milliseconds within;
};

/** Mirrors RowPages: consecutive float32 rows across pages of a pool that holds nothing else. */
struct RowPagesView {
  std::shared_ptr<KvPool> pool;  // null: none
  Span<int32_t> pages;
};

/** Mirrors PendingRows. */
struct ArrivingRowsView {
  RowPagesView rows;
  std::shared_ptr<LayerArrivals> arrivals;  // null: unknown handle
  std::chrono::milliseconds within;
};

/** Mirrors SlotTable. */
struct SlotTableView {
  Span<int32_t> pages;
  Span<int32_t> page_start;  // (layers + 1)
  Span<int32_t> states;
};

enum class HeadReduce : int { max = 0, mean = 1 };
enum class Pooling : int { max = 0, mean = 1 };

/** Mirrors SparseKeys. */
struct SparseKeysView {
  int sequence, group;
  SlotTableView slots;
  Span<int32_t> kept, budget;  // (layers)
  int compact_every, recent;
  float decay;
  HeadReduce head_reduce;
};

/** Mirrors KvSelection. */
struct KvSelectionView {
  int sequence, group;
  SlotTableView slots;
  Span<int32_t> budget;  // (layers)
  int observed, recent;
  Pooling pooling;
  int pooling_width;
  HeadReduce head_reduce;
};

/** Mirrors PageSelection. */
struct PageSelectionView {
  int sequence, group;
  Span<int32_t> bounds;
  int bounded, budget;
  float top_p;
};

struct StepGroupView {
  Span<int32_t> page_table;  // (rBlocks, layers)
  int layers = 0;
  Span<int32_t> blocks;
  Span<int32_t> block_start;  // (sequences)
  Span<int32_t> first_block;  // (sequences)
};

/** Mirrors StepSampling, with lengths. */
struct StepSamplingView {
  Span<float> temperature, top_p, min_p, repetition_penalty, frequency_penalty, presence_penalty;
  Span<int32_t> top_k, top_logprobs, target;
  Span<uint32_t> seed, token_index;
  Span<uint8_t> has_target;
  Span<int32_t> seen_start, seen_tokens, seen_counts;
  Span<int32_t> bias_start, bias_tokens;
  Span<float> bias_values;
  Span<int32_t> mask_start;  // empty: no row has a mask
  Span<uint32_t> mask_words;

  SamplingArgs args() const;
};

struct StepView {
  Span<int32_t> tokens, positions, row_start, logit_rows;
  std::vector<StepGroupView> groups;
  std::vector<RemoteKeysView> remote;  // ordered by (sequence, group, first_block)
  std::vector<ArrivingKeysView> arriving;
  int32_t* waiting = nullptr;  // 1 while the step waits for rows_in, when an abort loses no work
  std::vector<std::shared_ptr<WorkerLink>> attention_workers;  // null: unknown handle
  Span<int32_t> sequence_workers;  // (sequences): the attention worker with all KV heads of a sequence; empty: each has a shard of the heads
  ArrivingRowsView rows_in;  // the step's rows, computed by earlier layers
  RowPagesView rows_out;   // receives the rows for later layers
  std::vector<SparseKeysView> sparse;
  std::vector<KvSelectionView> selections;
  std::vector<PageSelectionView> page_selections;
  StepSamplingView sampling;
  Span<uint8_t> token_types;  // (tokens); empty: all are 0
  bool needs_logits = true;

  bool any_sparse() const { return !sparse.empty() || !selections.empty() || !page_selections.empty(); }
  int sequences() const { return row_start.size == 0 ? 0 : static_cast<int>(row_start.size) - 1; }
};

/** Layers with a common block table, and their attention window in tokens. */
struct LayerGroup {
  int layers;
  int window;
};

/** The limits of a step's indices. */
struct StepLimits {
  int tokens_max;
  int logit_rows_max;
  int context_max;
  int table_rows;  // rows of the smallest embedding table
  int vocabulary;  // columns of the logits; 0: no sampling
  int pages;
  std::vector<LayerGroup> groups;
  int slot_pages_of_state = 1;  // pages of slots with states in one page
  KvType kv_type = KvType::bf16;
  bool has_slopes = false;      // an attention op has ALiBi slopes
  int token_types = 1;          // of the embedding
  bool bidirectional = false;   // a step has whole sequences
};

/** Checks sparse keys, selections and page selections. Returns the highest page that they name; -1: none. */
int check_sparse(const StepView& step, const StepLimits& limits);
/** True if the sequence keeps only some tokens in the group, and lists no blocks there. */
bool has_slots(const StepView& step, int sequence, int group);

/**
 * Checks everything before anything is computed. Returns how many pages of the pool, from its start, contain all pages
 * of the step. @throws std::runtime_error that names the first invalid index
 */
int check_step(const StepView& step, const StepLimits& limits);

}  // namespace kvasir
