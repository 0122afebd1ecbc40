// The draw: the tokens that top-k, top-p and min-p keep, and the inverse of their cumulative mass in ascending id.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "ops/sample.hpp"

namespace kvasir {
namespace {

using Candidates = std::vector<Candidate>;

double mass_of(const Candidate* begin, const Candidate* end) {
  double mass = 0;
  for (const Candidate* c = begin; c < end; c++) mass += c->weight;
  return mass;
}

/** The factor of exp((value - max) / temperature). A tiny temperature must not turn 0 x infinity into NaN. */
float inverse(float temperature) { return std::min(1.0f / temperature, 1e30f); }

void weigh_candidates(const RowKernels& kernels, const DrawRow& row, SampleScratch& scratch) {
  Candidates& candidates = scratch.candidates;
  const int count = static_cast<int>(candidates.size());
  for (int i = 0; i < count; i++) scratch.weights[i] = candidates[i].value;
  kernels.exp_row(scratch.weights.data(), count, row.max, inverse(row.temperature), scratch.weights.data(), scratch.block_sum.data());
  for (int i = 0; i < count; i++) candidates[i].weight = scratch.weights[i];
}

void gather_candidates(const RowKernels& kernels, const DrawRow& row, float weight_min, SampleScratch& scratch) {
  const int count = kernels.select_at_least(scratch.weights.data(), row.vocabulary, weight_min, scratch.ids.data());
  scratch.candidates.clear();
  for (int i = 0; i < count; i++) {
    const int32_t id = scratch.ids[i];
    scratch.candidates.push_back({row.values[id], scratch.weights[id], id});
  }
}

/**
 * Gathers the heaviest tokens with a total mass of at least `need`: few if the distribution is peaked, all if it is
 * flat.
 */
void gather_mass(const RowKernels& kernels, const DrawRow& row, double need, SampleScratch& scratch) {
  constexpr double kMargin = 1 + 1e-5;  // these sums are float32
  for (const float weight_min : {0x1p-3f, 0x1p-6f, 0x1p-9f, 0x1p-12f, 0x1p-16f, 0x1p-20f}) {
    if (kernels.mass_at_least(scratch.weights.data(), row.vocabulary, weight_min) < need * kMargin) continue;
    gather_candidates(kernels, row, weight_min, scratch);
    return;
  }
  gather_candidates(kernels, row, 0.0f, scratch);
}

/**
 * Reduces the candidates to the shortest ranked prefix with a mass of at least `need`, by selecting halves instead of
 * sorting.
 */
void keep_mass(Candidates& candidates, double need) {
  constexpr size_t kSorted = 64;
  Candidate* all = candidates.data();
  size_t begin = 0;
  size_t end = candidates.size();
  double before = 0;
  while (end - begin > kSorted) {
    const size_t middle = begin + (end - begin) / 2;
    std::nth_element(all + begin, all + middle, all + end, ranks_before);
    const double upper = mass_of(all + begin, all + middle);
    if (before + upper >= need) {
      end = middle;
    } else {
      before += upper;
      begin = middle;
    }
  }
  std::sort(all + begin, all + end, ranks_before);
  size_t kept = begin;
  do before += all[kept++].weight;
  while (kept < end && before < need);
  candidates.resize(kept);
}

/**
 * The first candidate in ascending id at which the cumulative mass exceeds the drawn share. One bit per id gives the
 * order without a sort.
 */
int32_t draw_candidate(const DrawRow& row, SampleScratch& scratch) {
  std::fill(scratch.kept.begin(), scratch.kept.end(), 0);
  for (const Candidate& c : scratch.candidates) {
    scratch.kept[c.id / 64] |= uint64_t{1} << (c.id % 64);
    scratch.weights[c.id] = c.weight;
  }
  const auto walk = [&](auto&& visit) {
    for (size_t word = 0; word < scratch.kept.size(); word++)
      for (uint64_t bits = scratch.kept[word]; bits != 0; bits &= bits - 1)
        if (visit(static_cast<int32_t>(word * 64 + __builtin_ctzll(bits)))) return;
  };
  double mass = 0;
  walk([&](int32_t id) { return mass += scratch.weights[id], false; });
  const double target = row.uniform * mass;
  double running = 0;
  int32_t drawn = 0;
  walk([&](int32_t id) { return running += scratch.weights[drawn = id], running > target; });
  return drawn;
}

/** All tokens are candidates: skips whole blocks by their sums. */
int32_t draw_any(const DrawRow& row, const SampleScratch& scratch) {
  const std::vector<double>& sums = scratch.block_sum;
  const double target = row.uniform * std::accumulate(sums.begin(), sums.end(), 0.0);
  double running = 0;
  int32_t drawn = 0;
  for (size_t block = 0; block < sums.size(); block++) {
    if (running + sums[block] <= target) {
      running += sums[block];
      continue;
    }
    const int begin = static_cast<int>(block) * kSumBlock;
    const int end = std::min(row.vocabulary, begin + kSumBlock);
    for (int id = begin; id < end; id++) {
      const float weight = scratch.weights[id];
      running += weight;
      if (weight > 0) drawn = id;
      if (running > target) return drawn;
    }
  }
  return drawn;
}

}  // namespace

void select_best(const RowKernels& kernels, const float* values, int vocabulary, int count, SampleScratch& scratch) {
  // Each of `count` blocks has a value no less than the count-th largest block maximum, which is therefore a lower
  // bound of the selection.
  float bound = -INFINITY;
  if (static_cast<size_t>(count) <= scratch.block_max.size()) {
    scratch.bounds = scratch.block_max;
    std::nth_element(scratch.bounds.begin(), scratch.bounds.begin() + (count - 1), scratch.bounds.end(), std::greater<float>());
    bound = scratch.bounds[count - 1];
  }
  const int found = kernels.select_at_least(values, vocabulary, bound, scratch.ids.data());
  Candidates& candidates = scratch.candidates;
  candidates.clear();
  for (int i = 0; i < found; i++) candidates.push_back({values[scratch.ids[i]], 0.0f, scratch.ids[i]});
  if (found <= count) return;
  std::nth_element(candidates.begin(), candidates.begin() + (count - 1), candidates.end(), ranks_before);
  candidates.resize(count);
}

int32_t draw_token(const RowKernels& kernels, const DrawRow& row, SampleScratch& scratch) {
  const bool limits_count = row.top_k > 0 && row.top_k < row.vocabulary;
  const bool limits_mass = row.top_p < 1.0f;
  if (limits_count) {
    select_best(kernels, row.values, row.vocabulary, row.top_k, scratch);
    weigh_candidates(kernels, row, scratch);
  } else if (!row.weighted) {
    kernels.exp_row(row.values, row.vocabulary, row.max, inverse(row.temperature), scratch.weights.data(), scratch.block_sum.data());
  }
  Candidates& candidates = scratch.candidates;
  if (limits_mass && limits_count) {
    keep_mass(candidates, row.top_p * mass_of(candidates.data(), candidates.data() + candidates.size()));
  } else if (limits_mass) {
    const double need = row.top_p * std::accumulate(scratch.block_sum.begin(), scratch.block_sum.end(), 0.0);
    gather_mass(kernels, row, need, scratch);
    keep_mass(candidates, need);
  } else if (!limits_count) {
    if (!(row.min_p > 0.0f)) return draw_any(row, scratch);
    gather_candidates(kernels, row, row.min_p, scratch);
  }
  const auto light = [&](const Candidate& c) { return c.weight < row.min_p; };
  candidates.erase(std::remove_if(candidates.begin(), candidates.end(), light), candidates.end());
  return draw_candidate(row, scratch);
}

}  // namespace kvasir
