// What the driver of attention asks of an instruction set: one range of keys for one tile of query rows.
#pragma once
#include "attention/merge.hpp"
#include "base/types.hpp"

namespace kvasir {

constexpr int kRangePages = kRangeTokens / kPageTokens;
constexpr int kRangeStride = kRangeTokens + 32;  // elements of a row of scores or weights: not a power of two, for the sake of cache sets
constexpr int kPrefetchPages = 2;  // how far ahead the loops over pages may prefetch

/**
 * A tile (tokens x group rows, the heads of a token side by side) against the keys of one range. In: query, o_stride and everything above.
 * Out: o (rows, o_stride) unnormalised, max (rows) of the scores, sum (rows). A row without keys here gets 0, -infinity, 0.
 */
struct RangeWork {
  int head_dim;
  int group;           // query heads that share the KV head
  int tokens;
  int first_position;  // of the tile's first token; tokens follow one another
  int window;          // last keys that a row sees, its own included
  float scale;
  float softcap;         // of the scaled scores; 0: none
  const float* slopes;   // (group): what a position between key and row takes from the score; null: nothing
  int first_key;                 // position of the first key of pages[0], the first page that holds a key for the first token
  int page_count;                // pages that hold a key for the last token
  const uint8_t* const* pages;   // K of this KV head, V right behind it; kPrefetchPages more may be prefetched
  int prefetch_pages;            // how far ahead to prefetch
  const void* query;             // (rows, head_dim): bf16 or f32, as the kernel loads it
  int o_stride;                  // floats of a row of o: head_dim rounded up to 16
  float* scores;                 // workspace (rows, kRangeStride)
  void* weights;                 // workspace (rows, kRangeStride) of 4 bytes at most
  float* o;
  float* max;
  float* sum;
};

struct AttentionKernel {
  /** Bytes of a query element as `run_range` wants it. */
  int query_element_bytes;
  /** Widens or copies `count` elements of a query buffer's row. */
  void (*load_query)(const void* row, int count, void* out);
  void (*run_range)(const RangeWork& work);
  /** left = left + right, the keys of `left` lying before those of `right`. An empty side changes no bit of the other; every family gives the same bits. */
  void (*merge_rows)(const PartialRows& left, const PartialRows& right, int rows, int columns, size_t left_stride, size_t right_stride);
};

// Kernels by family. Families that the compiler does not know have no definition.
const AttentionKernel* attention_kernel_portable(KvType type);
const AttentionKernel* attention_kernel_avx2(KvType type);
const AttentionKernel* attention_kernel_avx512(KvType type);
/** bf16, head_dim a multiple of 16. */
const AttentionKernel* attention_kernel_amx();
const AttentionKernel* attention_kernel_amx_emulated();

}  // namespace kvasir
