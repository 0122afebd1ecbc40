// The work split of attention. It may depend on threads and on the batch, since neither tiles nor groups change bits.
#include "attention/plan.hpp"

#include <vector>

#include "attention/stream.hpp"

namespace kvasir {
namespace {

constexpr int kTileRows = 48;
constexpr int kTasksPerThread = 16;
constexpr int kWholeSequence = 1 << 19;  // ranges of a group, larger than any sequence

// Minimum number of ranges in a task, by context length. Short contexts have few ranges: each is a task, so that all
// threads have work. Long contexts have many: tasks of several ranges produce fewer partials.
constexpr int kShortContext = 8192;
constexpr int kMiddleContext = 32768;

int group_ranges_min(int context) { return context < kShortContext ? 1 : context < kMiddleContext ? 8 : 32; }

constexpr int kRangeBlocks = kRangeTokens / kPageTokens;

/** Number of ranges with keys from block `first_block` to position `end`, exclusive. */
int ranges_between(int first_block, int end) { return (end - 1) / kRangeTokens - first_block / kRangeBlocks + 1; }

/** Number of (range, tile, KV head), as if each were a task. */
long long count_ranges(const AttentionArgs& args, int tile_tokens) {
  long long total = 0;
  for (int i = 0; i < args.sequence_count; i++) {
    const AttentionSequence& s = args.sequences[i];
    for (int token = 0; token < s.rows; token += tile_tokens) {
      int end = token + tile_tokens < s.rows ? token + tile_tokens : s.rows;
      total += ranges_between(args.first_block(s, token), s.end_key(end));
    }
  }
  return total * args.layout.kv_heads;
}

AttentionTile make_tile(const AttentionArgs& args, int sequence, int token, int tile_tokens, int group_ranges_wanted) {
  const AttentionSequence& s = args.sequences[sequence];
  AttentionTile tile{};
  tile.sequence = sequence;
  tile.token = token;
  tile.tokens = tile_tokens < s.rows - token ? tile_tokens : s.rows - token;
  tile.first_block = args.first_block(s, token);
  int end = s.end_key(token + tile.tokens);
  int smallest = group_ranges_min(end - tile.first_block * kPageTokens);
  tile.group_ranges = group_ranges_wanted > smallest ? group_ranges_wanted : smallest;
  if (ranges_between(tile.first_block, end) <= tile.group_ranges) tile.group_ranges = kWholeSequence;
  tile.first_group = tile.first_block / kRangeBlocks / tile.group_ranges;
  tile.groups = (end - 1) / kRangeTokens / tile.group_ranges - tile.first_group + 1;
  return tile;
}

/** The last tile with a `first` not above `value`. */
template <class First>
const AttentionTile& find_tile(const AttentionPlan& plan, int value, First first) {
  int low = 0;
  int high = plan.tile_count - 1;
  while (low < high) {
    int middle = (low + high + 1) / 2;
    if (first(plan.tiles[middle]) <= value) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return plan.tiles[low];
}

}  // namespace

const AttentionTile& AttentionPlan::tile_of_task(int task) const {
  return find_tile(*this, task, [](const AttentionTile& tile) { return tile.first_task; });
}

const AttentionTile& AttentionPlan::tile_of_merge(int merge) const {
  return find_tile(*this, merge, [](const AttentionTile& tile) { return tile.first_merge; });
}

int tile_rows_max(int group) { return group > kTileRows ? group : kTileRows; }

int tile_tokens_max(int group) { return kTileRows / group > 1 ? kTileRows / group : 1; }

int tasks_wanted(int threads) { return threads > 1 ? threads * kTasksPerThread : 1; }

AttentionPlan plan_attention(const AttentionArgs& args, int threads, AttentionTile* tiles) {
  AttentionPlan plan{};
  plan.tiles = tiles;
  int group = args.heads / args.layout.kv_heads;
  plan.tile_tokens = tile_tokens_max(group);
  int tasks = tasks_wanted(threads);
  long long share = (count_ranges(args, plan.tile_tokens) + tasks - 1) / tasks;
  int wanted = 1;
  while (wanted < share) wanted *= 2;
  for (int i = 0; i < args.sequence_count; i++) {
    for (int token = 0; token < args.sequences[i].rows; token += plan.tile_tokens) {
      AttentionTile tile = make_tile(args, i, token, plan.tile_tokens, wanted);
      tile.first_task = plan.tasks;
      tile.first_merge = plan.merges;
      tile.first_partial = -1;
      plan.tasks += tile.groups * args.layout.kv_heads;
      if (tile.groups > 1) {
        tile.first_partial = plan.partials;
        plan.partials += tile.groups * args.layout.kv_heads;
        plan.merges += args.layout.kv_heads;
      }
      int ranges = ranges_between(tile.first_block, args.sequences[i].end_key(token + tile.tokens));
      int task_ranges = ranges < tile.group_ranges ? ranges : tile.group_ranges;
      if (task_ranges > plan.group_ranges) plan.group_ranges = task_ranges;
      tiles[plan.tile_count++] = tile;
    }
  }
  return plan;
}

AttentionSplit attention_split(const AttentionArgs& args, int threads) {
  std::vector<AttentionTile> tiles(args.tokens > 0 ? args.tokens : 1);
  AttentionPlan plan = plan_attention(args, threads, tiles.data());
  return {plan.tile_tokens, plan.group_ranges, plan.tasks, plan.merges};
}

}  // namespace kvasir
