// The key-major pass over K: weights of rows with known softmax statistics, summed over rows and reduced over heads.
#pragma once
#include "attention/attention.hpp"
#include "attention/pieces.hpp"
#include "ops/step.hpp"
#include "sparse/slots.hpp"

namespace kvasir {

/** Rows of one sequence that score its keys. */
struct KeyScoring {
  AttentionSequence sequence;
  int first_row;    // rows [first_row, sequence.rows) score
  float* scores;    // (KV heads, keys): the reduced sums; null: they go to `slots`
  const LayerSlots* slots;  // running scores: score = score x decay + sum
  float decay;
  HeadReduce head_reduce;

  int keys() const { return sequence.start + sequence.rows; }
};

/**
 * Scores keys with `query` and the statistics (tokens, heads) that attention returned for its rows. A key's sum runs
 * over rows in ascending order, so its bits depend neither on threads nor on other sequences.
 */
void score_keys(ThreadPool& pool, const AttentionArgs& args, const void* query, const float* max, const float* sum, const std::vector<KeyScoring>& list,
                GrowingMemory& memory);

}  // namespace kvasir
