// Attention over paged KV: writing K and V, causal attention with its softmax statistics, merging of partials.
// Order (part of the form): keys are split at absolute multiples of 256 into ranges; inside a range come all scores, their maximum, the weights
// exp(score - maximum), rounded where products take bf16 pairs, their sum, and the values in the order of keys; the partials (o, m, l) of ranges merge in a
// binary tree aligned at absolute positions. So bits depend on (query, keys, ISA) alone: not on batch, chunking, threads or tiles.
#pragma once
#include "base/thread_pool.hpp"
#include "base/types.hpp"

namespace kvasir {

/** Pages of one pool: each holds 32 tokens of one layer's K and V for all its KV heads; KV head outermost inside a page. */
struct KvLayout {
  KvType type;
  int kv_heads;
  int head_dim;
  size_t page_bytes() const;
  bool operator!=(const KvLayout& other) const { return type != other.type || kv_heads != other.kv_heads || head_dim != other.head_dim; }
};

/** One sequence of a step: rows [row, row + rows) of the batch are its tokens at positions start .. start + rows - 1. */
struct AttentionSequence {
  int row;
  int rows;
  int start;
  const int32_t* blocks;      // rBlock ids from absolute block first_block on
  int first_block;
};

struct AttentionArgs {
  Isa isa;
  KvLayout layout;
  uint8_t* pool;              // base of the pages
  const int32_t* page_table;  // (rBlocks, layers): page ids
  int layers;
  int layer;                  // place of the layer in its group
  int heads;
  float scale;                // of the scores, positive
  const AttentionSequence* sequences;
  int sequence_count;
  int tokens;                 // rows of the batch
  int window = kNoWindow;     // last keys that a row sees, its own included
  float softcap = 0;          // a scaled score s becomes softcap tanh(s / softcap); 0: it stays
  const float* slopes = nullptr;  // (heads): slope x (key's position - row's) is added to the score; null: nothing is

  /** The first listed block that holds a key which row `row` of a sequence sees. */
  int first_block(const AttentionSequence& s, int row) const {
    const int block = s.start + row < window ? 0 : (s.start + row - window + 1) / kPageTokens;
    return block > s.first_block ? block : s.first_block;
  }

  uint8_t* page(const AttentionSequence& s, int block) const {
    int32_t rblock = s.blocks[block - s.first_block];
    return pool + layout.page_bytes() * static_cast<size_t>(page_table[static_cast<size_t>(rblock) * layers + layer]);
  }
};

/** Bytes of a query buffer: `tokens` rows of heads x head_dim, rounded to the KV type, in the layout the kernels want. */
size_t query_bytes(Isa isa, KvType type, int heads, int head_dim, int tokens);
/** Rounds one row of q (heads, head_dim) into a query buffer. */
void write_query_row(Isa isa, KvType type, int heads, int head_dim, void* buffer, int token, const float* q);
void read_query_row(Isa isa, KvType type, int heads, int head_dim, const void* buffer, int token, float* out);
/** Writes K and V of one token (kv_heads, head_dim) into slot `slot` (0..31) of a page. Different slots of a page may be written at once by different threads. */
void write_kv(Isa isa, const KvLayout& layout, uint8_t* page, int slot, const float* k, const float* v);
/** Canonical float32 content of a page: (2, kv_heads, 32, head_dim), K first. */
void read_page(Isa isa, const KvLayout& layout, const uint8_t* page, float* out);
void write_page(Isa isa, const KvLayout& layout, uint8_t* page, const float* values);

/**
 * How one call shares out its work: tasks are (tile of rows of a sequence, KV head, group of ranges). Tiles and groups never change bits: rows
 * are independent, groups are aligned subtrees of ranges.
 */
struct AttentionSplit {
  int tile_tokens;   // tokens of a tile at most
  int group_ranges;  // ranges of a task at most
  int tasks;
  int merges;        // tasks of the second pass, which merges groups of ranges
};

AttentionSplit attention_split(const AttentionArgs& args, int threads);

/** Bytes of scratch for a step (partials of ranges and per-thread tiles), 64-byte aligned; planned once for the largest step. */
size_t attention_scratch_bytes(Isa isa, const KvLayout& layout, int heads, int threads, int tokens_max, int context_max);
/**
 * out (tokens, heads x head_dim) float32: normalised, or with `max` and `sum` (tokens, heads) given, unnormalised beside its statistics.
 * Keys begin at each row's window and stop at its position: bytes outside never meet a product.
 */
void run_attention(ThreadPool& pool, const AttentionArgs& args, const void* query, float* out, float* max, float* sum, void* scratch);

struct Partial {
  const float* o;    // (tokens, heads, head_dim), unnormalised
  const float* max;  // (tokens, heads)
  const float* sum;
};
/** ScaleReduce: merges partials in the aligned binary tree (pairs of neighbours first) and normalises. An empty partial has sum 0 and max -infinity. */
void merge_partials(ThreadPool& pool, const Partial* parts, int count, int tokens, int heads, int head_dim, float* out);

}  // namespace kvasir
