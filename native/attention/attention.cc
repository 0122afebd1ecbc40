// The attention driver: tasks stream over ranges of keys, merge partials in the tree, and write rows.
#include "attention/attention.hpp"

#include "attention/plan.hpp"
#include "attention/stream.hpp"

namespace kvasir {
namespace {

/** One call: the state that its tasks share. */
class Attention {
 public:
  Attention(const AttentionArgs& args, const void* query, StreamOutput output, int threads, uint8_t* scratch)
      : args_(args),
        output_(output),
        stream_(args, query),
        workspaces_(scratch),
        partials_(reinterpret_cast<float*>(scratch + StreamWorkspace::bytes(shape()) * threads)),
        plan_(plan_attention(args, threads, reinterpret_cast<AttentionTile*>(partials_ + shape().partial_floats * partials_max(threads)))) {}

  const AttentionPlan& plan() const { return plan_; }

  void run_task(int task, int thread) const {
    const AttentionTile& tile = plan_.tile_of_task(task);
    int kv_head = (task - tile.first_task) / tile.groups;
    int group = (task - tile.first_task) % tile.groups;
    const AttentionSequence sequence = args_.sequences[tile.sequence].of_kv_head(kv_head);
    const TileRows rows = {&sequence, tile.token, tile.tokens, tile.first_block};
    StreamWorkspace workspace(shape(), workspaces_ + StreamWorkspace::bytes(shape()) * thread);
    stream_.load_queries(rows, kv_head, workspace.query);
    PartialRows whole = tile.groups == 1 ? shape().partial(workspace.stack) : partial(tile, kv_head, group);
    const int origin = (tile.first_group + group) * tile.group_ranges;
    const int end_block = (rows.end_key() + kPageTokens - 1) / kPageTokens;
    stream_.stream(rows, kv_head, origin, tile.group_ranges, end_block, workspace, whole, [] { return true; });
    if (tile.groups == 1) stream_.write_rows(rows, kv_head, whole, output_, 0);
  }

  /** Second pass: merges the groups of one (tile, KV head) in place. */
  void run_merge(int merge) const {
    const AttentionTile& tile = plan_.tile_of_merge(merge);
    const TileRows rows = rows_of(tile);
    int kv_head = merge - tile.first_merge;
    int stack[kMergeLevels];
    int depth = 0;
    auto merge_top = [&] {
      stream_.merge(partial(tile, kv_head, stack[depth - 2]), partial(tile, kv_head, stack[depth - 1]), rows);
      depth--;
    };
    for (int missing = tile.first_group; missing != 0; missing &= missing - 1) stack[depth++] = -1;
    for (int group = 0; group < tile.groups; group++) {
      stack[depth++] = group;
      for (int merges = merges_after(tile.first_group + group); merges > 0; merges--) {
        if (stack[depth - 2] < 0) {
          stack[depth - 2] = stack[depth - 1];
          depth--;
        } else {
          merge_top();
        }
      }
    }
    while (depth > 1 && stack[depth - 2] >= 0) merge_top();
    stream_.write_rows(rows, kv_head, partial(tile, kv_head, stack[depth - 1]), output_, 0);
  }

 private:
  PartialRows partial(const AttentionTile& tile, int kv_head, int group) const {
    int index = tile.first_partial + kv_head * tile.groups + group;
    return shape().partial(partials_ + shape().partial_floats * index);
  }

  TileRows rows_of(const AttentionTile& tile) const { return {args_.sequences + tile.sequence, tile.token, tile.tokens, tile.first_block}; }
  const StreamShape& shape() const { return stream_.shape; }

  const AttentionArgs& args_;
  StreamOutput output_;
  TileStream stream_;
  uint8_t* workspaces_;
  float* partials_;  // (plan.partials, shape.partial_floats)
  AttentionPlan plan_;
};

}  // namespace

size_t attention_scratch_bytes(Isa, const KvLayout& layout, int heads, int threads, int tokens_max, int) {
  StreamShape shape(layout, heads);
  return StreamWorkspace::bytes(shape) * threads + sizeof(float) * shape.partial_floats * partials_max(threads) +
         align_up(sizeof(AttentionTile) * tokens_max);
}

void run_attention(ThreadPool& pool, const AttentionArgs& args, const void* query, const StreamOutput& output, void* scratch) {
  Attention attention(args, query, output, pool.size(), static_cast<uint8_t*>(scratch));
  auto task = [&](int index, int thread) { attention.run_task(index, thread); };
  pool.run(attention.plan().tasks, task);
  auto merge = [&](int index, int) { attention.run_merge(index); };
  if (attention.plan().merges > 0) pool.run(attention.plan().merges, merge);
}

}  // namespace kvasir
