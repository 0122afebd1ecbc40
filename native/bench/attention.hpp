// Measurements of `kvasir bench kernel attention`: attention over pages in memory, with the machine's read roof and
// arithmetic peak.
#pragma once
#include "attention/attention.hpp"
#include "base/thread_pool.hpp"
#include "base/types.hpp"

namespace kvasir {

struct AttentionShape {
  Isa isa;
  KvType type;
  int kv_heads;
  int group;  // query heads per KV head
  int head_dim;
};

/** Medians of `repetitions` runs. */
struct DecodeFigure {
  double seconds;     // of one call: one row of every sequence
  double bytes;       // of K and V that the call reads
  int sequences;
  AttentionSplit split;
};

struct PrefillFigure {
  double seconds;
  double flops;  // 4 x head_dim for each causal (row, head, key)
  AttentionSplit split;
};

/** Medians: attention of the observed rows, and the pass that scores all keys with them. */
struct ScoringFigure {
  double seconds;
  double attention_seconds;
};

/**
 * Best rate of reading `bytes` of contiguous memory on huge pages, in bytes per second. Below 1 GB it measures caches.
 */
double read_roof(ThreadPool& pool, size_t bytes, int repetitions);

/**
 * Floating-point operations per second of independent multiply-adds in registers, with the instruction of attention in
 * this form.
 */
double attention_peak(ThreadPool& pool, Isa isa, KvType type);

/** One row of each of as many sequences of `context` tokens as fill `pool_bytes`; pages are shuffled over the pool. */
DecodeFigure bench_decode(ThreadPool& pool, const AttentionShape& shape, int context, size_t pool_bytes, int repetitions);

/** The last `queries` tokens of one sequence of `context` tokens, in one chunk. */
PrefillFigure bench_prefill(ThreadPool& pool, const AttentionShape& shape, int queries, int context, int repetitions);

/** The last `observed` tokens of one sequence of `context` tokens. Attention and scoring alternate. */
ScoringFigure bench_scoring(ThreadPool& pool, const AttentionShape& shape, int observed, int context, int repetitions);

}  // namespace kvasir
