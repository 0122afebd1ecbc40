// The interface between the attention driver and an instruction set: one range of keys for one tile of query rows.
#pragma once
#include <cstdint>

#include "attention/merge.hpp"
#include "base/types.hpp"

namespace kvasir {

constexpr int kRangePages = kRangeTokens / kPageTokens;
// elements of a row of scores or weights; not a power of two, to spread rows over cache sets
constexpr int kRangeStride = kRangeTokens + 32;
constexpr int kPrefetchPages = 8;  // at most so many pages ahead the loops prefetch

/**
 * A tile (tokens x group rows; the heads of a token are adjacent) against the keys of one range. Inputs: query,
 * o_stride and all fields above them. Outputs: o (rows, o_stride) unnormalised, max (rows) of the scores, sum (rows) of
 * the weights. A row without keys in this range gets 0, -infinity, 0.
 */
struct RangeWork {
  int head_dim;
  int group;           // query heads that share the KV head
  int tokens;
  int first_position;  // of the last key that the tile's first token may see; one more for each later token
  int end_key = INT32_MAX;  // no row sees this key or a later one
  int window;          // last keys that a row sees, including its own
  float scale;
  float softcap;         // of the scaled scores; 0: none
  const float* slopes;   // (group): score decrease per position between key and row; null: none
  int first_key;                 // position of the first key of pages[0], the first page with a key for the first token
  int page_count;                // pages up to the last one with a key for the last token
  const uint8_t* const* pages;   // K of this KV head, directly followed by V; kPrefetchPages more may be prefetched
  int prefetch_pages;            // how many pages ahead to prefetch
  const void* query;             // (rows, head_dim), as loaded by the kernel
  int o_stride;                  // floats of a row of o: head_dim rounded up to 16
  float* scores;                 // workspace (rows, kRangeStride)
  void* weights;                 // workspace (rows, kRangeStride) of at most 4 bytes each
  float* o;
  float* max;
  float* sum;
};

/** Statistics of a tile's rows over all their keys, and the sums of their weights by key. */
struct KeyScores {
  const float* max;          // (rows)
  const float* inverse_sum;  // (rows)
  float* sums;  // (group, kRangeTokens) from the range's page 0 on: a row's weights are added in the order of rows
};

/**
 * Bounds of the products of queries with the keys of pages. Page i of `pages` holds, for one KV head, in place of K the
 * maxima of 32 pages' keys, and in place of V their minima, laid out as K.
 */
struct BoundWork {
  int head_dim;
  int group;
  const void* positive;  // (group, head_dim), loaded: dimensions of the queries below 0 are 0
  const void* negative;  // the others
  const uint8_t* const* pages;
  int page_count;
  float* bounds;  // (group, stride): 32 of each page
  int stride;
};

struct AttentionKernel {
  /** Bytes of a query element in `run_range`. */
  int query_element_bytes;
  /** Widens or copies `count` elements of a query buffer row. */
  void (*load_query)(const void* row, int count, void* out);
  void (*run_range)(const RangeWork& work);
  /**
   * Adds the weights p = exp(score - max) / sum of the tile's rows to `scores.sums`. V, weights, o, max and sum of
   * `work` are not used.
   */
  void (*score_range)(const RangeWork& work, const KeyScores& scores);
  /** Fills `work.bounds` with positive . maxima + negative . minima. Null for q8. */
  void (*bound_pages)(const BoundWork& work);
  /**
   * left = left + right, where the keys of `left` precede those of `right`. An empty side changes no bit of the other;
   * every family gives the same bits.
   */
  void (*merge_rows)(const PartialRows& left, const PartialRows& right, int rows, int columns, size_t left_stride, size_t right_stride);
};

// Kernels by family. Families that the compiler does not support have no definition.
const AttentionKernel* attention_kernel_portable(KvType type);
const AttentionKernel* attention_kernel_avx2(KvType type);
const AttentionKernel* attention_kernel_avx512(KvType type);
/** bf16 only; head_dim is a multiple of 16. */
const AttentionKernel* attention_kernel_amx();
const AttentionKernel* attention_kernel_amx_emulated();

}  // namespace kvasir
