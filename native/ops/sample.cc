// From rows of logits to log-probabilities, alternatives and tokens.
#include "ops/sample.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "ops/philox.hpp"

namespace kvasir {
namespace {

size_t parts(int count, int size) { return static_cast<size_t>((count + size - 1) / size); }

struct Row {
  const RowKernels& kernels;
  const SamplingArgs& args;
  const SamplingResult& result;
  const float* logits;
  int vocabulary;
  int index;
  SampleScratch& scratch;

  bool adjusts() const {
    const bool penalises =
        args.repetition_penalty[index] != 1.0f || args.frequency_penalty[index] != 0.0f || args.presence_penalty[index] != 0.0f;
    const bool seen = args.seen_start[index + 1] > args.seen_start[index];
    return (penalises && seen) || args.bias_start[index + 1] > args.bias_start[index];
  }

  void adjust(float* values) const {
    const float repetition = args.repetition_penalty[index];
    for (int i = args.seen_start[index]; i < args.seen_start[index + 1]; i++) {
      float& value = values[args.seen_tokens[i]];
      const int count = args.seen_counts[i];
      value = value > 0 ? value / repetition : value * repetition;
      value -= args.frequency_penalty[index] * static_cast<float>(count);
      if (count > 0) value -= args.presence_penalty[index];
    }
    for (int i = args.bias_start[index]; i < args.bias_start[index + 1]; i++) values[args.bias_tokens[i]] += args.bias_values[i];
  }

  int32_t first_of(const float* values, float max) const {
    int block = 0;
    while (scratch.block_max[block] != max) block++;
    int id = block * kScanBlock;
    while (values[id] != max) id++;
    return id;
  }

  void write_alternatives(double log_sum) const {
    const int count = std::min({args.top_logprobs[index], kTopLogprobsMax, vocabulary});
    if (count <= 0) return;
    select_best(kernels, logits, vocabulary, count, scratch);
    std::sort(scratch.candidates.begin(), scratch.candidates.end(), ranks_before);
    for (int rank = 0; rank < count; rank++) {
      const Candidate& candidate = scratch.candidates[rank];
      result.top_tokens[index * kTopLogprobsMax + rank] = candidate.id;
      result.top_logprobs[index * kTopLogprobsMax + rank] = static_cast<float>(candidate.value - log_sum);
    }
  }

  int32_t choose(const float* values, float max, bool weighted) const {
    if (args.has_target[index]) return args.target[index];
    const float temperature = args.temperature[index];
    if (!(temperature > 0)) return first_of(values, max);
    const double uniform = counter_uniform(args.seed[2 * index], args.seed[2 * index + 1], args.token_index[index]);
    const DrawRow row = {values,         vocabulary,           max,    weighted, temperature, args.top_p[index], args.top_k[index],
                         args.min_p[index], uniform};
    return draw_token(kernels, row, scratch);
  }

  /** False if the row holds NaN or has no finite maximum. */
  bool run() const {
    RowScan seen = kernels.scan(logits, vocabulary, scratch.block_max.data());
    if (seen.nan || !std::isfinite(seen.max)) return false;
    const bool adjusted = adjusts();
    // At temperature 1 the weights of the draw equal those of the log-probabilities: one pass computes both.
    const bool shared = !adjusted && args.temperature[index] == 1.0f;
    float* weights = shared ? scratch.weights.data() : nullptr;
    kernels.exp_row(logits, vocabulary, seen.max, 1.0f, weights, scratch.block_sum.data());
    const double log_sum = std::accumulate(scratch.block_sum.begin(), scratch.block_sum.end(), 0.0);
    const double log_total = seen.max + std::log(log_sum);
    write_alternatives(log_total);

    const float* values = logits;
    if (adjusted) {
      std::memcpy(scratch.values.data(), logits, sizeof(float) * static_cast<size_t>(vocabulary));
      adjust(scratch.values.data());
      values = scratch.values.data();
      seen = kernels.scan(values, vocabulary, scratch.block_max.data());
      if (seen.nan || !std::isfinite(seen.max)) return false;
    }
    const int32_t token = choose(values, seen.max, shared);
    result.tokens[index] = token;
    result.logprobs[index] = static_cast<float>(logits[token] - log_total);
    return true;
  }
};

}  // namespace

SampleScratch::SampleScratch(int vocabulary)
    : values(vocabulary),
      weights(vocabulary),
      block_max(parts(vocabulary, kScanBlock)),
      bounds(parts(vocabulary, kScanBlock)),
      block_sum(parts(vocabulary, kSumBlock)),
      ids(vocabulary),
      kept(parts(vocabulary, 64)) {
  candidates.reserve(vocabulary);
}

Sampler::Sampler(int vocabulary, int threads) : vocabulary_(vocabulary) {
  for (int i = 0; i < threads; i++) scratch_.emplace_back(vocabulary);
}

void Sampler::run(ThreadPool& pool, const RowKernels& kernels, const float* logits, int rows, const SamplingArgs& args,
                  const SamplingResult& result) {
  pool.run(rows, [&](int row, int thread) {
    const float* values = logits + static_cast<size_t>(row) * vocabulary_;
    result.failed[row] = Row{kernels, args, result, values, vocabulary_, row, scratch_[thread]}.run() ? 0 : 1;
  });
}

}  // namespace kvasir
