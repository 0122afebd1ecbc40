// Attention over paged KV: writing K and V, causal or bidirectional attention with its softmax statistics, merging of partials. The
// order of operations is part of the form. Keys are split into ranges at absolute multiples of 256. A range computes
// all scores, their maximum, the weights exp(score - maximum), rounded if products take bf16 pairs, their sum, and the
// weighted values in key order. The partials (o, m, l) of ranges merge in a binary tree aligned at absolute positions.
// So the result's bits depend on (query, keys, ISA) alone, not on batch, chunking, threads or tiles.
#pragma once
#include <atomic>
#include <string>

#include "base/thread_pool.hpp"
#include "base/types.hpp"

namespace kvasir {

/**
 * The pages of one pool: each holds K and V of 32 tokens of one layer for all its KV heads. The KV head is the
 * outermost dimension of a page.
 */
struct KvLayout {
  KvType type;
  int kv_heads;
  int head_dim;
  size_t page_bytes() const;
  /** Why no pages have this layout; empty if they do. */
  std::string refusal() const;
  bool operator!=(const KvLayout& other) const { return type != other.type || kv_heads != other.kv_heads || head_dim != other.head_dim; }
};

/**
 * One sequence of a step: batch rows [row, row + rows) are its tokens at positions start .. start + rows - 1. With
 * `pages` its keys are those of listed pages: of slots, or of chosen pages. Positions then count these keys, and each KV
 * head may have pages and a number of keys of its own.
 */
struct AttentionSequence {
  int row;
  int rows;
  int start;
  const int32_t* blocks;      // rBlock ids, from absolute block first_block on
  int first_block;
  const int32_t* pages = nullptr;   // page ids in place of blocks; null: blocks
  int page_stride = 0;              // from one KV head's pages to the next one's
  const int32_t* starts = nullptr;  // (KV heads), none above `start`; null: all are `start`
  bool is_sparse = false;           // SparseAttention runs its attention
  bool bidirectional = false;       // its rows see the keys of all its rows

  /** The key after the last one that rows up to row `end`, exclusive, see. */
  int end_key(int end) const { return start + (bidirectional ? rows : end); }

  AttentionSequence of_kv_head(int kv_head) const {
    AttentionSequence one = *this;
    if (pages != nullptr) one.pages += static_cast<ptrdiff_t>(page_stride) * kv_head;
    if (starts != nullptr) one.start = starts[kv_head];
    return one;
  }
};

struct AttentionArgs {
  Isa isa;
  KvLayout layout;
  uint8_t* pool;              // base of the pages
  const int32_t* page_table;  // (rBlocks, layers): page ids
  int layers;
  int layer;                  // index of the layer in its group
  int heads;
  float scale;                // of the scores, positive
  const AttentionSequence* sequences;
  int sequence_count;
  int tokens;                 // rows of the batch
  int window = kNoWindow;     // last keys that a row sees, including its own
  float softcap = 0;          // a scaled score s becomes softcap tanh(s / softcap); 0: no cap
  const float* slopes = nullptr;  // (heads): slope x (key position - row position) is added to the score; null: none
  std::atomic<uint64_t>* ranges_done = nullptr;  // counts computed ranges, the progress of a call; null: not counted

  /** The first listed block with a key that row `row` of the sequence sees. */
  int first_block(const AttentionSequence& s, int row) const {
    const int block = s.start + row < window ? 0 : (s.start + row - window + 1) / kPageTokens;
    return block > s.first_block ? block : s.first_block;
  }

  uint8_t* page(const AttentionSequence& s, int block) const {
    if (s.pages != nullptr) return pool + layout.page_bytes() * static_cast<size_t>(s.pages[block - s.first_block]);
    int32_t rblock = s.blocks[block - s.first_block];
    return pool + layout.page_bytes() * static_cast<size_t>(page_table[static_cast<size_t>(rblock) * layers + layer]);
  }
};

/** Bytes of a query buffer: `tokens` rows of (heads, head_dim), rounded to bf16 if pages hold it, in the kernels' layout. */
size_t query_bytes(Isa isa, KvType type, int heads, int head_dim, int tokens);
/** Rounds one row of q (heads, head_dim) into a query buffer. */
void write_query_row(Isa isa, KvType type, int heads, int head_dim, void* buffer, int token, const float* q);
void read_query_row(Isa isa, KvType type, int heads, int head_dim, const void* buffer, int token, float* out);
/** Rounds `count` values of whole heads as pages round them. */
void round_kv(KvType type, int count, float* values);
/**
 * Writes K and V of one token, (kv_heads, head_dim) each, into slot `slot` (0..31) of a page. Threads may write
 * different slots of a page at once.
 */
void write_kv(Isa isa, const KvLayout& layout, uint8_t* page, int slot, const float* k, const float* v);
/**
 * Copies K and V of one token from slot `from_slot` of one KV head's share of a page to slot `to_slot` of another. No
 * other thread may write the share.
 */
void copy_token(KvType type, int head_dim, const uint8_t* from, int from_slot, uint8_t* to, int to_slot);
/**
 * Bounds of the first `tokens` keys in one KV head's share of a page: to place `place` of the share `bounds`, maxima as
 * a key, minima in the same layout in place of V. Not for q8, which would round the bounds.
 */
void write_key_bounds(KvType type, int head_dim, const uint8_t* share, int tokens, uint8_t* bounds, int place);
/** The canonical float32 content of a page: (2, kv_heads, 32, head_dim), K first. */
void read_page(Isa isa, const KvLayout& layout, const uint8_t* page, float* out);
void write_page(Isa isa, const KvLayout& layout, uint8_t* page, const float* values);

/**
 * The work split of one call: tasks are (tile of rows of a sequence, KV head, group of ranges). Tiles and groups never
 * change bits: rows are independent, and groups are aligned subtrees of ranges.
 */
struct AttentionSplit {
  int tile_tokens;   // most tokens of a tile
  int group_ranges;  // most ranges of a task
  int tasks;
  int merges;        // tasks of the second pass, which merges groups of ranges
};

AttentionSplit attention_split(const AttentionArgs& args, int threads);

/**
 * Bytes of scratch for a step (partials of ranges and per-thread tiles), 64-byte aligned; sized once for the largest
 * step.
 */
size_t attention_scratch_bytes(Isa isa, const KvLayout& layout, int heads, int threads, int tokens_max, int context_max);
/** Output of a call: rows of (heads, head_dim) in float32, and the statistics (rows, heads) of their weights. */
struct StreamOutput {
  float* out;
  float* max;  // null: no statistics
  float* sum;
  bool normalised = false;  // with statistics: `out` is divided by `sum`, as it always is without them
};

/**
 * Computes `output` from `query`, a query buffer of `tokens` rows. A row sees the keys from its window's start to its
 * own position; no other bytes enter a product.
 */
void run_attention(ThreadPool& pool, const AttentionArgs& args, const void* query, const StreamOutput& output, void* scratch);

struct Partial {
  const float* o;    // (tokens, heads, head_dim), unnormalised
  const float* max;  // (tokens, heads)
  const float* sum;
};
/**
 * ScaleReduce: merges `count` partials in the aligned binary tree (adjacent pairs first) and normalises them to out
 * (tokens, heads, head_dim). An empty partial has sum 0 and max -infinity.
 */
void merge_partials(ThreadPool& pool, const Partial* parts, int count, int tokens, int heads, int head_dim, float* out);

}  // namespace kvasir
