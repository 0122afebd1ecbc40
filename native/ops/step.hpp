// One step as the kernels see it: pointers into the caller's arrays, and the check that every index in them is safe to follow.
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

/** Mirrors RemoteKeys. */
struct RemoteKeysView {
  int sequence, group, first_block;
  std::shared_ptr<RemoteAttentionEndpoint> endpoint;  // null: there is none of that number
  int loan;
  Span<int32_t> blocks;
};

/** Mirrors ArrivingKeys. */
struct ArrivingKeysView {
  int sequence;
  std::shared_ptr<LayerArrivals> arrivals;  // null: there is none of that number
  std::chrono::milliseconds within;
};

/** Mirrors RowPages: float32 rows one after another, across pages of a pool that holds nothing else. */
struct RowPagesView {
  std::shared_ptr<KvPool> pool;  // null: there are none
  Span<int32_t> pages;
};

/** Mirrors ComingRows. */
struct ComingRowsView {
  RowPagesView rows;
  std::shared_ptr<LayerArrivals> arrivals;  // null: there is none of that number
  std::chrono::milliseconds within;
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

  SamplingArgs args() const;
};

struct StepView {
  Span<int32_t> tokens, positions, row_start, logit_rows;
  std::vector<StepGroupView> groups;
  std::vector<RemoteKeysView> remote;  // by (sequence, group, first_block)
  std::vector<ArrivingKeysView> arriving;
  int32_t* waiting = nullptr;  // 1 while it waits for rows_in: nothing is lost by an abort then
  ComingRowsView rows_in;  // what the layers before make of the step's tokens
  RowPagesView rows_out;   // where these leave them
  StepSamplingView sampling;

  int sequences() const { return row_start.size == 0 ? 0 : static_cast<int>(row_start.size) - 1; }
};

/** Layers that share a block table, and the last tokens that they see. */
struct LayerGroup {
  int layers;
  int window;
};

/** What a step may refer to. */
struct StepLimits {
  int tokens_max;
  int logit_rows_max;
  int context_max;
  int table_rows;  // rows of the smallest embedding table
  int vocabulary;  // columns of the logits; 0: nothing is sampled
  int pages;
  std::vector<LayerGroup> groups;
};

/**
 * Throws std::runtime_error that names the first index a kernel could not follow; checks everything before anything is computed.
 * Returns how many pages of the pool, from its start, hold all that the step touches.
 */
int check_step(const StepView& step, const StepLimits& limits);

}  // namespace kvasir
