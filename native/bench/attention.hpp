// What `kvasir bench kernel attention` measures: attention over pages in memory, beside the read roof and the arithmetic peak of the machine.
#pragma once
#include "attention/attention.hpp"
#include "base/thread_pool.hpp"
#include "base/types.hpp"

namespace kvasir {

struct AttentionShape {
  Isa isa;
  KvType type;
  int kv_heads;
  int group;  // query heads of a KV head
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
  double flops;  // 4 x head_dim for each (row, head, key) that causality allows
  AttentionSplit split;
};

/** Best rate in bytes per second of reading `bytes` of contiguous memory on huge pages (at least 1 GB is a roof, not a cache). */
double read_roof(ThreadPool& pool, size_t bytes, int repetitions);

/** Floating-point operations per second of independent multiply-adds in registers: the instruction that attention uses in this form. */
double arithmetic_peak(ThreadPool& pool, Isa isa, KvType type);

/** One row of each of as many sequences of `context` tokens as fill `pool_bytes`; pages shuffled over the pool. */
DecodeFigure bench_decode(ThreadPool& pool, const AttentionShape& shape, int context, size_t pool_bytes, int repetitions);

/** The last `queries` tokens of one sequence of `context` tokens, in one chunk. */
PrefillFigure bench_prefill(ThreadPool& pool, const AttentionShape& shape, int queries, int context, int repetitions);

}  // namespace kvasir
