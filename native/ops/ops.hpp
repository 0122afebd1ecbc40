// The ops between linear layers and attention: each runs over rows and rounds its result to the kind of its output in
// the same pass.
#pragma once
#include "base/thread_pool.hpp"
#include "ops/buffer.hpp"
#include "ops/rows.hpp"

namespace kvasir {

/** What every op uses: threads, row kernels, and one row of scratch per thread. */
struct OpContext {
  ThreadPool& pool;
  const RowKernels& rows;
  float* scratch;         // (threads, scratch_columns)
  size_t scratch_columns;

  float* scratch_row(int thread) const { return scratch + scratch_columns * static_cast<size_t>(thread); }
};

struct EmbedArgs {
  const Linear& table;
  float factor;
  const float* position_table;  // (token types, stride, columns): a row is added by type and position + offset; null: none
  int offset;
  const int32_t* tokens;
  const int32_t* positions;
  const uint8_t* types;  // (count); null: all are 0
  size_t stride;         // positions of a type
};

/** out (count, columns): out[t] = table[token[t]] x factor + position_table[type[t]][position[t] + offset] */
void run_embed(const OpContext& op, const EmbedArgs& embed, int count, const Buffer& out);

struct NormArgs {
  NormStyle style;
  const float* gain;
  const float* bias;  // null: none
  float eps;
};

/**
 * x, residual, out (rows, n). With `residual`: residual += x in place, then out = norm(residual) x gain + bias.
 * Without: out = norm(x) x gain + bias.
 */
void run_norm(const OpContext& op, const NormArgs& norm, const Buffer& x, const Buffer* residual, int rows, const Buffer& out);

/** x (rows, 2 n) is gate | up. out (rows, n) = activation(gate) x up */
void run_glu(const OpContext& op, Activation activation, const Buffer& x, int rows, const Buffer& out);

/** out = activation(x), both (rows, n) */
void run_activate(const OpContext& op, Activation activation, const Buffer& x, int rows, const Buffer& out);

/** residual += x, both (rows, n) */
void run_add(const OpContext& op, const Buffer& x, int rows, const Buffer& residual);

/** x = cap tanh(x / cap) in place, (rows, n) */
void run_softcap(const OpContext& op, float cap, const Buffer& x, int rows);

/** Rounds float32 rows x (rows, n) to the kind of `out`. */
void run_convert(const OpContext& op, const Buffer& x, int rows, const Buffer& out);

/** out[i] = x[rows[i]], out (count, n) */
void run_gather(const OpContext& op, const Buffer& x, const int32_t* rows, int count, const Buffer& out);

struct QkvArgs {
  int heads;
  int rotary_dim;
  const float* rope;    // (positions, rotary_dim): cos of rotary_dim / 2 angles, then sin; null: no rotation
  const float* q_norm;  // (head_dim); null: no norm
  const float* k_norm;
  float eps;
  const int32_t* positions;     // (tokens)
  const int32_t* row_sequence;  // (tokens): the sequence of a row
  const uint8_t* staged_sequences = nullptr;  // (sequences): 1 for sequences with K and V in `staged`; null: none
  float* staged = nullptr;                    // (tokens, 2 kvHeads, headDim)
};

/**
 * x (tokens, (heads + 2 kvHeads) headDim) is q | k | v. K and V go to the tokens' slots in their pages, or to `staged`, and
 * q to `out`.
 */
void run_qkv(const OpContext& op, const QkvArgs& qkv, const AttentionArgs& attention, const Buffer& x, const Buffer& out);

/** x (tokens, heads headDim or more) begins with q. Normed, rotated and rounded to `out`. */
void run_query(const OpContext& op, const QkvArgs& qkv, const Buffer& x, int rows, const Buffer& out);

/**
 * K and V, (kvHeads headDim) each, begin at column `column` of x. K is normed and rotated; both are rounded to `out`, a
 * row of K | V.
 */
void run_keys(const OpContext& op, const QkvArgs& qkv, const Buffer& x, int column, int rows, const Buffer& out);

}  // namespace kvasir
