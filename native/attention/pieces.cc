// Offsets of the tasks and merges of pieces, and the merge: neighbours of equal size first, the rest from the right.
#include "attention/pieces.hpp"

#include "attention/plan.hpp"

namespace kvasir {

int subtree_ranges(long long ranges_of_all_tasks, int threads) {
  const long long share = (ranges_of_all_tasks + tasks_wanted(threads) - 1) / tasks_wanted(threads);
  int ranges = 1;
  while (ranges < share && ranges < kRangesMost) ranges *= 2;
  return ranges;
}

AttentionPieces::AttentionPieces(const AttentionArgs& args, const void* query, const AttentionRoot* roots, int count)
    : args_(args), stream_(args, query), roots_(roots), tile_tokens_(tile_tokens_max(args.heads / args.layout.kv_heads)) {
  for (int r = 0; r < count; r++) {
    const AttentionRoot& root = roots[r];
    std::vector<int> locals;
    for (size_t i = 0; i < root.pieces.size(); i++)
      if (!root.pieces[i].is_remote) locals.push_back(static_cast<int>(i));
    first_task_.push_back(tasks_);
    first_merge_.push_back(merges_);
    first_partial_.push_back(partials_);
    const int tiles = (root.tokens + tile_tokens_ - 1) / tile_tokens_ * args.layout.kv_heads;
    const int tasks = tiles * static_cast<int>(locals.size());
    tasks_ += tasks;
    if (!root.is_whole()) {
      partials_ += tasks;
      merges_ += tiles;
    }
    locals_.push_back(std::move(locals));
  }
}

/** The last index with a value not above `value`: of equal ones the earlier are empty. */
int AttentionPieces::find(const std::vector<int>& firsts, int value) {
  return static_cast<int>(std::upper_bound(firsts.begin(), firsts.end(), value) - firsts.begin()) - 1;
}

AttentionPieces::Place AttentionPieces::place_of(int task) const {
  const int root = root_of_task(task);
  const int locals = static_cast<int>(locals_[root].size());
  const int index = task - first_task_[root];
  const int local = index % locals;
  const int kv_head = index / locals % args_.layout.kv_heads;
  const int tile = index / locals / args_.layout.kv_heads;
  return {roots_ + root, tile, kv_head, locals_[root][local], partial(root, tile, kv_head, local)};
}

TileRows AttentionPieces::tile_rows(const AttentionRoot& root, int tile) const {
  const int first = tile * tile_tokens_;
  return {root.sequence, root.token + first, std::min(tile_tokens_, root.tokens - first), 0};
}

PartialRows AttentionPieces::partial(int root, int tile, int kv_head, int local) const {
  const int locals = static_cast<int>(locals_[root].size());
  const size_t index = first_partial_[root] + (static_cast<size_t>(tile) * args_.layout.kv_heads + kv_head) * locals + local;
  return stream_.shape.partial(memory_ + stream_.shape.partial_floats * index);
}

void AttentionPieces::run_merge(int merge, uint8_t* workspace) const {
  const int root_index = root_of_merge(merge);
  const AttentionRoot& root = roots_[root_index];
  const int tile_index = (merge - first_merge_[root_index]) / args_.layout.kv_heads;
  const int kv_head = (merge - first_merge_[root_index]) % args_.layout.kv_heads;
  const TileRows tile = tile_rows(root, tile_index);
  const StreamWorkspace space(stream_.shape, workspace);
  struct Node {
    int first, ranges;
    PartialRows rows;
  };
  Node stack[kMergeLevels];
  int depth = 0;
  auto merge_top = [&] {
    stream_.merge(stack[depth - 2].rows, stack[depth - 1].rows, tile);
    stack[depth - 2].ranges *= 2;
    depth--;
  };
  int local = 0;
  for (const AttentionPiece& piece : root.pieces) {
    const int place = piece.is_remote ? 0 : local++;
    if (piece.first * kRangeTokens >= tile.end_key()) break;
    // A remote partial is copied, since merging works in place.
    PartialRows rows = piece.is_remote ? stream_.shape.partial(space.stack + stream_.shape.partial_floats * depth) : partial(root_index, tile_index, kv_head, place);
    if (piece.is_remote) stream_.read_rows(tile, kv_head, *piece.remote_partial, static_cast<size_t>(root.sequence->row + root.token), rows);
    stack[depth++] = {piece.first, piece.ranges, rows};
    while (depth > 1 && stack[depth - 2].ranges == stack[depth - 1].ranges && stack[depth - 2].first % (2 * stack[depth - 1].ranges) == 0) merge_top();
  }
  while (depth > 1) merge_top();
  stream_.write_rows(tile, kv_head, stack[0].rows, root.output, root.first_row);
}

}  // namespace kvasir
