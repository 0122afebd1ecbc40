// How one call of attention is shared out: tiles of query rows, groups of ranges, and where their partials lie.
#pragma once
#include "attention/attention.hpp"
#include "attention/range.hpp"

namespace kvasir {

/** A tile of one sequence: `tokens` rows from `token` of the sequence on. Its tasks are (KV head, group of ranges), groups innermost. */
struct AttentionTile {
  int sequence;
  int token;
  int tokens;
  int first_block;  // with a key that the first row sees
  int first_group;  // in units of the tile's own groups
  int groups;
  int group_ranges;  // a power of two: a group is an aligned subtree
  int first_task;
  int first_partial;  // of the step's partials (tile rows each), or -1: one group writes out directly
  int first_merge;    // of the second pass
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

/** Tasks that a step should have. A tile with r ranges is split only into more than one group of g >= all ranges / this: r / g + 2 of them. */
int tasks_wanted(int threads);

/** The most partials (of a tile's rows each) that a step keeps. */
inline int partials_max(int threads) { return 3 * tasks_wanted(threads); }

/** Fills `tiles` (room for one per row of the batch). */
AttentionPlan plan_attention(const AttentionArgs& args, int threads, AttentionTile* tiles);

}  // namespace kvasir
