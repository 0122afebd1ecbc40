// Attention over keys of several instances: this pool has some, and creditors return partials of the others. Debtor and
// creditors both run it, so that the tree of partials, and every bit, equals that of one pool.
#pragma once
#include <cstdlib>
#include <memory>
#include <vector>

#include "attention/stream.hpp"

namespace kvasir {

/**
 * Ranges [first, first + ranges) of a sequence: a subtree of the aligned binary tree, complete except for the last one.
 */
struct AttentionPiece {
  int first;
  int ranges;
  const Partial* remote_partial;  // the partial of the root's rows from a creditor; null: computed here
  bool is_remote;                 // `remote_partial` must be set before the merge
};

/** Appends the aligned subtrees that cover ranges [from, to), none longer than `most`, a power of two. */
template <class Add>
void add_subtrees(int from, int to, int most, const Add& add) {
  while (from < to) {
    int ranges = most;
    while (from % ranges != 0 || from + ranges > to) ranges /= 2;
    add(from, ranges);
    from += ranges;
  }
}

constexpr int kRangesMost = 1 << 19;

/** The longest subtree, a power of two, that still gives each thread its share of tasks. */
int subtree_ranges(long long ranges_of_all_tasks, int threads);

/** Rows of one sequence with partials that merge into one output: normalised, or unnormalised with its statistics. */
struct AttentionRoot {
  const AttentionSequence* sequence;
  int token;   // rows [token, token + tokens) of the sequence
  int tokens;
  std::vector<AttentionPiece> pieces;  // ascending
  StreamOutput output;
  size_t first_row;  // the batch row at which `output` begins

  /** True for a single piece of this pool: its task writes the output, and nothing is merged. */
  bool is_whole() const { return pieces.size() == 1 && !pieces[0].is_remote; }
};

/** Aligned memory that grows and never shrinks. */
class GrowingMemory {
 public:
  uint8_t* at_least(size_t bytes) {
    if (bytes > bytes_) {
      data_.reset();
      bytes_ = align_up(bytes);
      data_.reset(static_cast<uint8_t*>(std::aligned_alloc(kStreamAlign, bytes_)));
      if (data_ == nullptr) throw std::bad_alloc();
    }
    return data_.get();
  }

 private:
  struct Free {
    void operator()(uint8_t* data) const { std::free(data); }
  };
  std::unique_ptr<uint8_t, Free> data_;
  size_t bytes_ = 0;
};

/**
 * One call over roots: first tasks compute the local pieces, in any order and on any thread; then merges, once all
 * pieces are present.
 */
class AttentionPieces {
 public:
  /** `roots` and what they point to must stay valid until the last merge. */
  AttentionPieces(const AttentionArgs& args, const void* query, const AttentionRoot* roots, int count);

  int tasks() const { return tasks_; }
  int merges() const { return merges_; }
  size_t workspace_bytes() const { return StreamWorkspace::bytes(stream_.shape); }
  size_t partial_bytes() const { return sizeof(float) * stream_.shape.partial_floats * static_cast<size_t>(partials_); }
  void use_partials(uint8_t* memory) { memory_ = reinterpret_cast<float*>(memory); }

  int root_of_task(int task) const { return find(first_task_, task); }
  const AttentionPiece& piece_of_task(int task) const {
    const Place place = place_of(task);
    return place.root->pieces[place.piece];
  }
  int root_of_merge(int merge) const { return find(first_merge_, merge); }
  /** False if `keep_going`, called before each range, ended the task. */
  template <class KeepGoing>
  bool run_task(int task, uint8_t* workspace, const KeepGoing& keep_going) const {
    const Place place = place_of(task);
    const TileRows tile = tile_rows(*place.root, place.tile);
    const AttentionPiece& piece = place.root->pieces[place.piece];
    if (piece.first * kRangeTokens >= tile.end_key()) return true;
    StreamWorkspace space(stream_.shape, workspace);
    stream_.load_queries(tile, place.kv_head, space.query);
    const bool whole = place.root->is_whole();
    const PartialRows out = whole ? stream_.shape.partial(space.stack) : place.partial;
    const int keys_end = (tile.end_key() + kPageTokens - 1) / kPageTokens;
    const int end_block = std::min(keys_end, (piece.first + piece.ranges) * kRangePages);
    if (!stream_.stream(tile, place.kv_head, piece.first, piece.ranges, end_block, space, out, keep_going)) return false;
    if (whole) stream_.write_rows(tile, place.kv_head, out, place.root->output, place.root->first_row);
    return true;
  }
  void run_merge(int merge, uint8_t* workspace) const;

 private:
  /** The location of a task. */
  struct Place {
    const AttentionRoot* root;
    int tile, kv_head, piece;
    PartialRows partial;
  };

  static int find(const std::vector<int>& firsts, int value);
  Place place_of(int task) const;
  TileRows tile_rows(const AttentionRoot& root, int tile) const;
  PartialRows partial(int root, int tile, int kv_head, int local) const;

  const AttentionArgs& args_;
  TileStream stream_;
  const AttentionRoot* roots_;
  int tile_tokens_;
  // Per root:
  std::vector<int> first_task_, first_merge_, first_partial_;
  std::vector<std::vector<int>> locals_;  // its locally computed pieces
  int tasks_ = 0;
  int merges_ = 0;
  int partials_ = 0;
  float* memory_ = nullptr;
};

}  // namespace kvasir
