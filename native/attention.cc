// The driver of attention: tasks stream over ranges of keys, merge partials in the tree, and write rows out.
#include "attention.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "amx_tiles.hpp"
#include "attention_merge.hpp"
#include "attention_plan.hpp"
#include "attention_range.hpp"

namespace kvasir {
namespace {

constexpr size_t kAlign = 64;

// Bytes of K and V that lie between a prefetch and its use: more only pollutes the first-level cache.
constexpr size_t kPrefetchBytes = 8192;

size_t align_up(size_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

/** The kernel of a form on this machine. AMX takes what its tiles can hold; the rest of its forms are those of AVX-512. */
const AttentionKernel& find_kernel([[maybe_unused]] Isa isa, const KvLayout& layout) {
#if defined(KVASIR_HAVE_AVX512)
  [[maybe_unused]] bool tiles = isa == Isa::amx && layout.type == KvType::bf16 && layout.head_dim % 16 == 0;
  if (tiles && amx_emulated()) return *attention_kernel_amx_emulated();
#if defined(KVASIR_HAVE_AMX)
  if (tiles) return *attention_kernel_amx();
#endif
  if (isa >= Isa::avx512) return *attention_kernel_avx512(layout.type);
#endif
#if defined(KVASIR_HAVE_AVX2)
  if (isa >= Isa::avx2) return *attention_kernel_avx2(layout.type);
#endif
  return *attention_kernel_portable(layout.type);
}

/** Sizes that follow from the model's shape. */
struct Shape {
  int head_dim;
  int group;
  int rows_max;      // of a tile
  int o_stride;      // floats
  size_t partial_floats;  // of one partial of a tile: o, max, sum

  Shape(const KvLayout& layout, int heads)
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

/** Per-thread workspace: operands of a tile and the stack of partials. */
struct Workspace {
  void* query;
  float* scores;
  void* weights;
  float* stack;

  static size_t bytes(const Shape& shape) {
    size_t rows = shape.rows_max;
    return align_up(4 * rows * shape.head_dim) + 2 * 4 * rows * kRangeStride + kMergeLevels * 4 * shape.partial_floats;
  }

  Workspace(const Shape& shape, uint8_t* at) {
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

/** Output of a call: rows of (heads, head_dim), with or without statistics. */
struct Output {
  float* out;
  float* max;
  float* sum;
};

/** One call: everything that its tasks share. */
class Attention {
 public:
  Attention(const AttentionArgs& args, const void* query, Output output, int threads, uint8_t* scratch)
      : args_(args),
        query_(static_cast<const uint8_t*>(query)),
        output_(output),
        shape_(args.layout, args.heads),
        kernel_(find_kernel(args.isa, args.layout)),
        workspaces_(scratch),
        partials_(reinterpret_cast<float*>(scratch + Workspace::bytes(shape_) * threads)),
        plan_(plan_attention(args, threads, reinterpret_cast<AttentionTile*>(partials_ + shape_.partial_floats * partials_max(threads)))) {}

  const AttentionPlan& plan() const { return plan_; }

  void run_task(int task, int thread) const {
    const AttentionTile& tile = plan_.tile_of_task(task);
    int kv_head = (task - tile.first_task) / tile.groups;
    int group = (task - tile.first_task) % tile.groups;
    Workspace workspace(shape_, workspaces_ + Workspace::bytes(shape_) * thread);
    load_queries(tile, kv_head, workspace.query);
    PartialRows whole = tile.groups == 1 ? shape_.partial(workspace.stack) : partial(tile, kv_head, group);
    stream_ranges(tile, kv_head, tile.first_group + group, workspace, whole);
    if (tile.groups == 1) write_rows(tile, kv_head, whole);
  }

  /** Second pass: merges the groups of one (tile, KV head), in place. */
  void run_merge(int merge) const {
    const AttentionTile& tile = plan_.tile_of_merge(merge);
    int kv_head = merge - tile.first_merge;
    int stack[kMergeLevels];
    int depth = 0;
    auto merge_top = [&] {
      merge_partial(partial(tile, kv_head, stack[depth - 2]), partial(tile, kv_head, stack[depth - 1]), tile);
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
    write_rows(tile, kv_head, partial(tile, kv_head, stack[depth - 1]));
  }

 private:
  PartialRows partial(const AttentionTile& tile, int kv_head, int group) const {
    int index = tile.first_partial + kv_head * tile.groups + group;
    return shape_.partial(partials_ + shape_.partial_floats * index);
  }

  void merge_partial(const PartialRows& left, const PartialRows& right, const AttentionTile& tile) const {
    merge_rows(left, right, tile.tokens * shape_.group, shape_.head_dim, shape_.o_stride, shape_.o_stride);
  }

  /** Query rows of the tile, (tokens x group, head_dim), as the kernel wants them. */
  void load_queries(const AttentionTile& tile, int kv_head, void* out) const {
    size_t head_bytes = query_bytes(args_.isa, args_.layout.type, 1, shape_.head_dim, 1);
    int values = shape_.group * shape_.head_dim;
    for (int token = 0; token < tile.tokens; token++) {
      size_t row = args_.sequences[tile.sequence].row + tile.token + token;
      const uint8_t* from = query_ + head_bytes * (row * args_.heads + static_cast<size_t>(kv_head) * shape_.group);
      kernel_.load_query(from, values, static_cast<uint8_t*>(out) + static_cast<size_t>(kernel_.query_element_bytes) * values * token);
    }
  }

  /** Partial of the ranges of group `group` to `out`, the bottom of the stack. */
  void stream_ranges(const AttentionTile& tile, int kv_head, int group, const Workspace& workspace, const PartialRows& out) const {
    const AttentionSequence& sequence = args_.sequences[tile.sequence];
    int end_key = sequence.start + tile.token + tile.tokens;
    int origin = group * tile.group_ranges;
    int first = std::max(origin, tile.first_block / kRangePages);
    int last = std::min((end_key - 1) / kRangeTokens, origin + tile.group_ranges - 1);
    int depth = 0;
    auto level = [&](int index) { return index == 0 ? out : shape_.partial(workspace.stack + shape_.partial_floats * index); };
    auto merge_top = [&] {
      merge_partial(level(depth - 2), level(depth - 1), tile);
      depth--;
    };
    // Ranges before the first key are empty; what stands for them keeps the tree aligned.
    for (int missing = first - origin; missing != 0; missing &= missing - 1) clear_rows(level(depth++), tile);
    for (int range = first; range <= last; range++) {
      run_range(tile, kv_head, range, workspace, level(depth++));
      for (int merges = merges_after(range - origin); merges > 0; merges--) merge_top();
    }
    while (depth > 1) merge_top();
  }

  void clear_rows(const PartialRows& rows, const AttentionTile& tile) const {
    int count = tile.tokens * shape_.group;
    std::fill(rows.o, rows.o + static_cast<size_t>(count) * shape_.o_stride, 0.0f);
    std::fill(rows.max, rows.max + count, -INFINITY);
    std::fill(rows.sum, rows.sum + count, 0.0f);
  }

  void run_range(const AttentionTile& tile, int kv_head, int range, const Workspace& workspace, const PartialRows& out) const {
    const AttentionSequence& sequence = args_.sequences[tile.sequence];
    int end_block = (sequence.start + tile.token + tile.tokens + kPageTokens - 1) / kPageTokens;
    int first_block = std::max(range * kRangePages, tile.first_block);
    int range_end = std::min((range + 1) * kRangePages, end_block);
    size_t head_bytes = args_.layout.page_bytes() / args_.layout.kv_heads;
    size_t head_offset = head_bytes * kv_head;
    const uint8_t* pages[kRangePages + kPrefetchPages];
    for (int i = 0; i < range_end - first_block + kPrefetchPages; i++) {
      int block = std::min(first_block + i, end_block - 1);
      pages[i] = args_.page(sequence, block) + head_offset;
    }
    RangeWork work{};
    work.head_dim = shape_.head_dim;
    work.group = shape_.group;
    work.tokens = tile.tokens;
    work.first_position = sequence.start + tile.token;
    work.window = args_.window;
    work.scale = args_.scale;
    work.softcap = args_.softcap;
    work.slopes = args_.slopes == nullptr ? nullptr : args_.slopes + static_cast<size_t>(kv_head) * shape_.group;
    work.first_key = first_block * kPageTokens;
    work.page_count = range_end - first_block;
    work.pages = pages;
    work.prefetch_pages = head_bytes < kPrefetchBytes ? kPrefetchPages : 1;
    work.query = workspace.query;
    work.o_stride = shape_.o_stride;
    work.scores = workspace.scores;
    work.weights = workspace.weights;
    work.o = out.o;
    work.max = out.max;
    work.sum = out.sum;
    kernel_.run_range(work);
  }

  void write_rows(const AttentionTile& tile, int kv_head, const PartialRows& rows) const {
    for (int row = 0; row < tile.tokens * shape_.group; row++) {
      size_t token = args_.sequences[tile.sequence].row + tile.token + row / shape_.group;
      size_t place = token * args_.heads + static_cast<size_t>(kv_head) * shape_.group + row % shape_.group;
      const float* o = rows.o + static_cast<size_t>(row) * shape_.o_stride;
      float* out = output_.out + place * shape_.head_dim;
      if (output_.max == nullptr) {
        for (int i = 0; i < shape_.head_dim; i++) out[i] = o[i] / rows.sum[row];
        continue;
      }
      std::memcpy(out, o, sizeof(float) * shape_.head_dim);
      output_.max[place] = rows.max[row];
      output_.sum[place] = rows.sum[row];
    }
  }

  const AttentionArgs& args_;
  const uint8_t* query_;
  Output output_;
  Shape shape_;
  const AttentionKernel& kernel_;
  uint8_t* workspaces_;
  float* partials_;  // (plan.partials, shape.partial_floats)
  AttentionPlan plan_;
};

}  // namespace

size_t attention_scratch_bytes(Isa, const KvLayout& layout, int heads, int threads, int tokens_max, int) {
  Shape shape(layout, heads);
  return Workspace::bytes(shape) * threads + sizeof(float) * shape.partial_floats * partials_max(threads) +
         align_up(sizeof(AttentionTile) * tokens_max);
}

void run_attention(ThreadPool& pool, const AttentionArgs& args, const void* query, float* out, float* max, float* sum, void* scratch) {
  Attention attention(args, query, {out, max, sum}, pool.size(), static_cast<uint8_t*>(scratch));
  auto task = [&](int index, int thread) { attention.run_task(index, thread); };
  pool.run(attention.plan().tasks, task);
  auto merge = [&](int index, int) { attention.run_merge(index); };
  if (attention.plan().merges > 0) pool.run(attention.plan().merges, merge);
}

}  // namespace kvasir
