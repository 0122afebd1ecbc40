// Log-probabilities and sampling, row by row. The order of operations is the one of StepSampling in src/util/step.ts.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "base/thread_pool.hpp"
#include "ops/rows.hpp"

namespace kvasir {

constexpr int kTopLogprobsMax = 20;

/** One entry for each row; ragged lists have one more offset than rows. Mirrors StepSampling. */
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
};

/** Mirrors StepResult. */
struct SamplingResult {
  int32_t* tokens;
  float* logprobs;
  int32_t* top_tokens;  // (rows, kTopLogprobsMax)
  float* top_logprobs;
  uint8_t* failed;
};

/** A token that may be drawn: its logit after penalties and bias, and exp((logit - max) / temperature). */
struct Candidate {
  float value;
  float weight;
  int32_t id;
};

/** Memory for the rows of one thread. */
struct SampleScratch {
  explicit SampleScratch(int vocabulary);

  std::vector<float> values;      // (vocabulary): logits after penalties and bias
  std::vector<float> weights;     // (vocabulary)
  std::vector<float> block_max;   // (vocabulary / kScanBlock)
  std::vector<float> bounds;      // as block_max
  std::vector<double> block_sum;  // (vocabulary / kSumBlock)
  std::vector<int32_t> ids;       // (vocabulary)
  std::vector<uint64_t> kept;     // (vocabulary / 64): one bit for each id
  std::vector<Candidate> candidates;
};

class Sampler {
 public:
  Sampler(int vocabulary, int threads);
  /** logits is (rows, vocabulary); rows that fail say so in the result and leave the others alone. */
  void run(ThreadPool& pool, const RowKernels& kernels, const float* logits, int rows, const SamplingArgs& args, const SamplingResult& result);

 private:
  int vocabulary_;
  std::vector<SampleScratch> scratch_;
};

/** A row of logits ready for the draw. */
struct DrawRow {
  const float* values;  // (vocabulary)
  int vocabulary;
  float max;
  bool weighted;  // scratch.weights and scratch.block_sum are those of `values` already
  float temperature;
  float top_p;
  int top_k;
  float min_p;
  double uniform;
};

/** Draws a token; scratch.block_max is that of the row's values. */
int32_t draw_token(const RowKernels& kernels, const DrawRow& row, SampleScratch& scratch);

/** Fills scratch.candidates with the `count` best values of a row, unordered and without weights; needs scratch.block_max. */
void select_best(const RowKernels& kernels, const float* values, int vocabulary, int count, SampleScratch& scratch);

/** By value descending, then id ascending. */
inline bool ranks_before(const Candidate& a, const Candidate& b) { return a.value > b.value || (a.value == b.value && a.id < b.id); }

}  // namespace kvasir
