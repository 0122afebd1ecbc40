// Log-probabilities and sampling, row by row. The order of operations is that of StepSampling in src/util/step.ts.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "base/thread_pool.hpp"
#include "ops/rows.hpp"

namespace kvasir {

constexpr int kTopLogprobsMax = 20;

/** One entry per row; ragged lists have rows + 1 offsets. Mirrors StepSampling. */
struct SamplingArgs {
  const float* temperature;
  const float* top_p;
  const int32_t* top_k;
  const float* min_p;
  const uint32_t* seed;  // (rows, 2)
  const uint32_t* token_index;
  const float* repetition_penalty;
  const float* frequency_penalty;
  const float* presence_penalty;
  const int32_t* seen_start;
  const int32_t* seen_tokens;
  const int32_t* seen_counts;
  const int32_t* bias_start;
  const int32_t* bias_tokens;
  const float* bias_values;
  const int32_t* top_logprobs;
  const uint8_t* has_target;
  const int32_t* target;
  const int32_t* mask_start;  // null: no row has a mask
  const uint32_t* mask_words;
};

/** Words of a row's mask, one bit for each token. */
constexpr int mask_words(int vocabulary) { return (vocabulary + 31) / 32; }

/** Mirrors rowFailures of src/util/step.ts. */
enum class RowFailure : uint8_t { none = 0, not_finite = 1, no_token = 2 };

/** Mirrors StepResult. */
struct SamplingResult {
  int32_t* tokens;
  float* logprobs;
  int32_t* top_tokens;  // (rows, kTopLogprobsMax)
  float* top_logprobs;
  uint8_t* failed;
};

/** A candidate token: its logit after penalties and bias, and exp((logit - max) / temperature). */
struct Candidate {
  float value;
  float weight;
  int32_t id;
};

/** A thread's memory for its rows. */
struct SampleScratch {
  explicit SampleScratch(int vocabulary);

  std::vector<float> values;      // (vocabulary): logits after penalties and bias
  std::vector<float> weights;     // (vocabulary)
  std::vector<float> block_max;   // (vocabulary / kScanBlock)
  std::vector<float> bounds;      // as block_max
  std::vector<double> block_sum;  // (vocabulary / kSumBlock)
  std::vector<int32_t> ids;       // (vocabulary)
  std::vector<uint64_t> kept;     // (vocabulary / 64): one bit per id
  std::vector<Candidate> candidates;
};

class Sampler {
 public:
  Sampler(int vocabulary, int threads);
  /** Samples logits (rows, vocabulary). A row that fails is marked in the result and does not affect the others. */
  void run(ThreadPool& pool, const RowKernels& kernels, const float* logits, int rows, const SamplingArgs& args, const SamplingResult& result);

 private:
  int vocabulary_;
  std::vector<SampleScratch> scratch_;
};

/** A row of logits prepared for the draw. */
struct DrawRow {
  const float* values;  // (vocabulary)
  int vocabulary;
  float max;
  bool weighted;  // scratch.weights and scratch.block_sum already hold those of `values`
  float temperature;
  float top_p;
  int top_k;
  float min_p;
  double uniform;
};

/** Draws a token; requires scratch.block_max of the row's values. */
int32_t draw_token(const RowKernels& kernels, const DrawRow& row, SampleScratch& scratch);

/**
 * Fills scratch.candidates with the `count` best values of a row, unordered and without weights; requires
 * scratch.block_max.
 */
void select_best(const RowKernels& kernels, const float* values, int vocabulary, int count, SampleScratch& scratch);

/** Order by value descending, then id ascending. */
inline bool ranks_before(const Candidate& a, const Candidate& b) { return a.value > b.value || (a.value == b.value && a.id < b.id); }

}  // namespace kvasir
