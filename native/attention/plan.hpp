// The work split of one attention call: tiles of query rows, groups of ranges, and the offsets of their partials.
#pragma once
#include "attention/attention.hpp"
#include "attention/range.hpp"

namespace kvasir {

/**
 * A tile of one sequence: `tokens` rows from row `token` of the sequence on. Its tasks are (KV head, group of ranges),
 * groups innermost.
 */
struct AttentionTile {
  int sequence;
  int token;
  int tokens;
  int first_block;  // the first block with a key that the first row sees
  int first_group;  // in units of the tile's groups
  int groups;
  int group_ranges;  // a power of two: a group is an aligned subtree
  int first_task;
  int first_partial;  // index among the step's partials (tile rows each); -1: a single group writes the output directly
  int first_merge;    // index among the merges of the second pass
};

struct AttentionPlan {
  AttentionTile* tiles;
  int tile_count = 0;
  int tile_tokens = 1;
  int group_ranges = 1;
  int tasks = 0;
  int partials = 0;
  int merges = 0;

  const AttentionTile& tile_of_task(int task) const;
  const AttentionTile& tile_of_merge(int merge) const;
};

/**
 * The desired number of tasks of a step. A tile of r ranges is split only into groups of g >= all ranges / this, so
 * into at most r / g + 2.
 */
int tasks_wanted(int threads);

/** The most partials (of one tile's rows each) of a step. */
inline int partials_max(int threads) { return 3 * tasks_wanted(threads); }

/** Fills `tiles`, which has space for one per row of the batch. */
AttentionPlan plan_attention(const AttentionArgs& args, int threads, AttentionTile* tiles);

}  // namespace kvasir
