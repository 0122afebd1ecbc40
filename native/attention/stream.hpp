// Streaming a tile of query rows over ranges of keys: the common part of attention over one pool and over several.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstring>

#include "attention/attention.hpp"
#include "attention/merge.hpp"
#include "attention/range.hpp"

namespace kvasir {

/**
 * The kernel of a form on this machine. AMX handles bf16 with head_dim a multiple of 16; its other forms use the
 * AVX-512 kernels.
 */
const AttentionKernel& find_attention_kernel(Isa isa, const KvLayout& layout);

/** Most rows (tokens x group) of a tile. */
int tile_rows_max(int group);
/** Most tokens of a tile. */
int tile_tokens_max(int group);

constexpr size_t kStreamAlign = 64;

inline size_t align_up(size_t bytes) { return (bytes + kStreamAlign - 1) / kStreamAlign * kStreamAlign; }

/** Sizes derived from the model's shape. */
struct StreamShape {
  int head_dim;
  int group;
  int rows_max;      // most rows of a tile
  int o_stride;      // floats
  size_t partial_floats;  // floats of one partial of a tile: o, max, sum

  StreamShape(const KvLayout& layout, int heads)
      : head_dim(layout.head_dim),
        group(heads / layout.kv_heads),
        rows_max(tile_rows_max(group)),
        o_stride((layout.head_dim + 15) / 16 * 16),
        partial_floats(align_up(sizeof(float) * rows_max * (o_stride + 2)) / sizeof(float)) {}

  PartialRows partial(float* base) const {
    float* max = base + static_cast<size_t>(rows_max) * o_stride;
    return {base, max, max + rows_max};
  }
};

/** A thread's workspace: the operands of a tile and the stack of partials. */
struct StreamWorkspace {
  void* query;
  float* scores;
  void* weights;
  float* stack;

  static size_t bytes(const StreamShape& shape) {
    size_t rows = shape.rows_max;
    return align_up(4 * rows * shape.head_dim) + 2 * 4 * rows * kRangeStride + kMergeLevels * 4 * shape.partial_floats;
  }

  StreamWorkspace(const StreamShape& shape, uint8_t* at) {
    size_t rows = shape.rows_max;
    query = at;
    at += align_up(4 * rows * shape.head_dim);
    scores = reinterpret_cast<float*>(at);
    at += 4 * rows * kRangeStride;
    weights = at;
    at += 4 * rows * kRangeStride;
    stack = reinterpret_cast<float*>(at);
  }
};

/** Rows [token, token + tokens) of a sequence. */
struct TileRows {
  const AttentionSequence* sequence;
  int token;
  int tokens;
  int first_block;  // the first block with a key that the first row sees

  int end_key() const { return sequence->end_key(token + tokens); }
};

class TileStream {
 public:
  TileStream(const AttentionArgs& args, const void* query)
      : shape(args.layout, args.heads), args_(args), query_(static_cast<const uint8_t*>(query)), kernel_(find_attention_kernel(args.isa, args.layout)) {}

  const StreamShape shape;

  /** Loads the tile's query rows to out (tokens x group, head_dim) in the kernel's form. */
  void load_queries(const TileRows& tile, int kv_head, void* out) const {
    size_t head_bytes = query_bytes(args_.isa, args_.layout.type, 1, shape.head_dim, 1);
    int values = shape.group * shape.head_dim;
    for (int token = 0; token < tile.tokens; token++) {
      size_t row = tile.sequence->row + tile.token + token;
      const uint8_t* from = query_ + head_bytes * (row * args_.heads + static_cast<size_t>(kv_head) * shape.group);
      kernel_.load_query(from, values, static_cast<uint8_t*>(out) + static_cast<size_t>(kernel_.query_element_bytes) * values * token);
    }
  }

  /**
   * Computes the partial of the ranges from `origin` (aligned to `most`, a power of two) that hold keys for the tile,
   * at most `most` of them, into `out`, the bottom of the stack. `pages` start at range `first`; earlier ranges hold no
   * keys for the tile. `keep_going` is called before each range: false leaves `out` unfinished and is returned.
   */
  template <class KeepGoing>
  bool stream(const TileRows& tile, int kv_head, int origin, int most, int end_block, const StreamWorkspace& workspace, const PartialRows& out,
              const KeepGoing& keep_going) const {
    int first = std::max(origin, tile.first_block / kRangePages);
    int last = std::min((tile.end_key() - 1) / kRangeTokens, origin + most - 1);
    int depth = 0;
    auto level = [&](int index) { return index == 0 ? out : shape.partial(workspace.stack + shape.partial_floats * index); };
    auto merge_top = [&] {
      merge(level(depth - 2), level(depth - 1), tile);
      depth--;
    };
    if (last < first) clear_rows(out, tile);  // this KV head has fewer keys than others
    // Ranges before the first key are empty; their empty partials keep the tree aligned.
    for (int missing = last < first ? 0 : first - origin; missing != 0; missing &= missing - 1) clear_rows(level(depth++), tile);
    for (int range = first; range <= last; range++) {
      if (!keep_going()) return false;
      run_range(tile, kv_head, range, end_block, workspace, level(depth++));
      if (args_.ranges_done != nullptr) args_.ranges_done->fetch_add(1, std::memory_order_relaxed);
      for (int merges = merges_after(range - origin); merges > 0; merges--) merge_top();
    }
    while (depth > 1) merge_top();
    return true;
  }

  void merge(const PartialRows& left, const PartialRows& right, const TileRows& tile) const {
    kernel_.merge_rows(left, right, tile.tokens * shape.group, shape.head_dim, shape.o_stride, shape.o_stride);
  }

  /** Writes (tokens x group, head_dim) rows. Row 0 of `output` is row `first_row` of the batch. */
  void write_rows(const TileRows& tile, int kv_head, const PartialRows& rows, const StreamOutput& output, size_t first_row) const {
    for (int row = 0; row < tile.tokens * shape.group; row++) {
      size_t place = this->place(tile, kv_head, row, first_row);
      const float* o = rows.o + static_cast<size_t>(row) * shape.o_stride;
      float* out = output.out + place * shape.head_dim;
      if (output.max == nullptr || output.normalised) {
        for (int i = 0; i < shape.head_dim; i++) out[i] = o[i] / rows.sum[row];
      } else {
        std::memcpy(out, o, sizeof(float) * shape.head_dim);
      }
      if (output.max == nullptr) continue;
      output.max[place] = rows.max[row];
      output.sum[place] = rows.sum[row];
    }
  }

  /** Reads rows that `write_rows` wrote with statistics. */
  void read_rows(const TileRows& tile, int kv_head, const Partial& from, size_t first_row, const PartialRows& rows) const {
    for (int row = 0; row < tile.tokens * shape.group; row++) {
      size_t place = this->place(tile, kv_head, row, first_row);
      std::memcpy(rows.o + static_cast<size_t>(row) * shape.o_stride, from.o + place * shape.head_dim, sizeof(float) * shape.head_dim);
      rows.max[row] = from.max[place];
      rows.sum[row] = from.sum[place];
    }
  }

 private:
  size_t place(const TileRows& tile, int kv_head, int row, size_t first_row) const {
    size_t token = tile.sequence->row + tile.token + row / shape.group - first_row;
    return token * args_.heads + static_cast<size_t>(kv_head) * shape.group + row % shape.group;
  }

  void clear_rows(const PartialRows& rows, const TileRows& tile) const {
    int count = tile.tokens * shape.group;
    std::fill(rows.o, rows.o + static_cast<size_t>(count) * shape.o_stride, 0.0f);
    std::fill(rows.max, rows.max + count, -INFINITY);
    std::fill(rows.sum, rows.sum + count, 0.0f);
  }

  void run_range(const TileRows& tile, int kv_head, int range, int end_block, const StreamWorkspace& workspace, const PartialRows& out) const;

  const AttentionArgs& args_;
  const uint8_t* query_;
  const AttentionKernel& kernel_;
};

}  // namespace kvasir
