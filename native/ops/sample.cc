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

constexpr uint32_t kMinusInfinity = 0xff800000;

/** For four bits of a mask, a word of ones for each that is 1. */
struct NibbleMasks {
  uint32_t words[16][4];
  constexpr NibbleMasks() : words() {
    for (int nibble = 0; nibble < 16; nibble++)
      for (int k = 0; k < 4; k++) words[nibble][k] = (nibble >> k & 1) != 0 ? ~0u : 0;
  }
  constexpr const uint32_t* operator[](uint32_t nibble) const { return words[nibble]; }
};
constexpr NibbleMasks kNibbleMasks;

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

  /** The words of the row's mask; null: it has none. */
  const uint32_t* mask() const {
    if (!args.mask_start || args.mask_start[index + 1] == args.mask_start[index]) return nullptr;
    return args.mask_words + args.mask_start[index];
  }

  /** Copies the values of tokens with a 1 bit; the others become -infinity. `to` may be `from`. */
  void exclude(const float* from, const uint32_t* words, float* to) const {
    int begin = 0;
    for (; begin + 32 <= vocabulary; begin += 32) {
      const uint32_t word = words[begin / 32];
      if (word == 0) {
        std::fill(to + begin, to + begin + 32, -INFINITY);
        continue;
      }
      uint32_t bits[32];
      std::memcpy(bits, from + begin, sizeof(bits));
      for (int nibble = 0; nibble < 8; nibble++) {
        const uint32_t* keep = kNibbleMasks[word >> (4 * nibble) & 15];
        for (int k = 0; k < 4; k++) bits[4 * nibble + k] = (bits[4 * nibble + k] & keep[k]) | (kMinusInfinity & ~keep[k]);
      }
      std::memcpy(to + begin, bits, sizeof(bits));
    }
    for (int id = begin; id < vocabulary; id++) to[id] = (words[id / 32] >> (id % 32) & 1) != 0 ? from[id] : -INFINITY;
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

  RowFailure run() const {
    RowScan seen = kernels.scan(logits, vocabulary, scratch.block_max.data());
    if (seen.nan || !std::isfinite(seen.max)) return RowFailure::not_finite;
    const uint32_t* allowed = mask();
    const bool penalised = adjusts();
    const bool adjusted = penalised || allowed;
    // At temperature 1 the weights of the draw equal those of the log-probabilities: one pass computes both.
    const bool shared = !adjusted && args.temperature[index] == 1.0f;
    float* weights = shared ? scratch.weights.data() : nullptr;
    kernels.exp_row(logits, vocabulary, seen.max, 1.0f, weights, scratch.block_sum.data());
    const double log_sum = std::accumulate(scratch.block_sum.begin(), scratch.block_sum.end(), 0.0);
    const double log_total = seen.max + std::log(log_sum);
    write_alternatives(log_total);

    const float* values = logits;
    if (adjusted) {
      if (penalised) {
        std::memcpy(scratch.values.data(), logits, sizeof(float) * static_cast<size_t>(vocabulary));
        adjust(scratch.values.data());
      }
      if (allowed) exclude(penalised ? scratch.values.data() : logits, allowed, scratch.values.data());
      values = scratch.values.data();
      seen = kernels.scan(values, vocabulary, scratch.block_max.data());
      if (seen.nan || !std::isfinite(seen.max)) return allowed && !seen.nan ? RowFailure::no_token : RowFailure::not_finite;
    }
    const int32_t token = choose(values, seen.max, shared);
    result.tokens[index] = token;
    result.logprobs[index] = static_cast<float>(logits[token] - log_total);
    return RowFailure::none;
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
    result.failed[row] = static_cast<uint8_t>(Row{kernels, args, result, values, vocabulary_, row, scratch_[thread]}.run());
  });
}

}  // namespace kvasir
