// Ops over rows: threads share chunks of rows. A row's bits do not depend on its chunk.
#include "ops/ops.hpp"

#include <algorithm>

namespace kvasir {
namespace {

constexpr int kElementsPerTask = 8192;  // below this, waking a thread costs more than the work

/** Calls body(row, thread) for every row, in chunks with enough elements for a task. */
template <class Body>
void for_rows(ThreadPool& pool, int rows, int columns, const Body& body) {
  const int fair = (rows + 4 * pool.size() - 1) / (4 * pool.size());
  const int chunk = std::max({1, fair, kElementsPerTask / std::max(1, columns)});
  const int tasks = (rows + chunk - 1) / chunk;
  pool.run(tasks, [&](int task, int thread) {
    const int end = std::min(rows, (task + 1) * chunk);
    for (int row = task * chunk; row < end; row++) body(row, thread);
  });
}

/** Norms (if `gain` is given) and rotates heads of one row in place. */
void rotate_heads(const OpContext& op, const QkvArgs& qkv, const float* gain, int position, float* values, int heads, int dim) {
  for (int head = 0; head < heads; head++) {
    float* at = values + static_cast<size_t>(head) * dim;
    if (gain) op.rows.rms_norm(at, nullptr, gain, qkv.eps, dim, at);
    if (qkv.rope) op.rows.rotate_half(at, qkv.rope + static_cast<size_t>(position) * qkv.rotary_dim, qkv.rotary_dim);
  }
}

}  // namespace

void run_embed(const OpContext& op, const EmbedArgs& embed, int count, const Buffer& out) {
  const size_t columns = static_cast<size_t>(out.columns);
  for_rows(op.pool, count, out.columns, [&](int row, int thread) {
    float* values = out.begin_row(row, op.scratch_row(thread));
    embed.table.read_row(embed.tokens[row], values);
    if (embed.factor != 1.0f) op.rows.scale(values, embed.factor, out.columns);
    const size_t type = embed.types ? embed.types[row] : 0;
    const size_t position = type * embed.stride + static_cast<size_t>(embed.positions[row] + embed.offset);
    if (embed.position_table) op.rows.add(values, embed.position_table + columns * position, out.columns);
    out.finish_row(row, values);
  });
}

void run_norm(const OpContext& op, const NormArgs& norm, const Buffer& x, const Buffer* residual, int rows, const Buffer& out) {
  const auto kernel = op.rows.norm(norm.style);
  for_rows(op.pool, rows, x.columns, [&](int row, int thread) {
    float* values = out.begin_row(row, op.scratch_row(thread));
    kernel(x.row(row), residual ? residual->row(row) : nullptr, norm.gain, norm.eps, x.columns, values);
    if (norm.bias) op.rows.add(values, norm.bias, x.columns);
    out.finish_row(row, values);
  });
}

void run_glu(const OpContext& op, Activation activation, const Buffer& x, int rows, const Buffer& out) {
  const auto kernel = op.rows.glu[static_cast<int>(activation)];
  for_rows(op.pool, rows, 4 * out.columns, [&](int row, int thread) {
    float* values = out.begin_row(row, op.scratch_row(thread));
    const float* gate = x.row(row);
    kernel(gate, gate + out.columns, out.columns, values);
    out.finish_row(row, values);
  });
}

void run_activate(const OpContext& op, Activation activation, const Buffer& x, int rows, const Buffer& out) {
  const auto kernel = op.rows.activate[static_cast<int>(activation)];
  for_rows(op.pool, rows, 4 * out.columns, [&](int row, int thread) {
    float* values = out.begin_row(row, op.scratch_row(thread));
    kernel(x.row(row), out.columns, values);
    out.finish_row(row, values);
  });
}

void run_add(const OpContext& op, const Buffer& x, int rows, const Buffer& residual) {
  for_rows(op.pool, rows, x.columns, [&](int row, int) { op.rows.add(residual.row(row), x.row(row), x.columns); });
}

void run_softcap(const OpContext& op, float cap, const Buffer& x, int rows) {
  for_rows(op.pool, rows, 4 * x.columns, [&](int row, int) { op.rows.softcap(x.row(row), cap, x.columns); });
}

void run_convert(const OpContext& op, const Buffer& x, int rows, const Buffer& out) {
  for_rows(op.pool, rows, x.columns, [&](int row, int) { out.write_row(row, x.row(row)); });
}

void run_gather(const OpContext& op, const Buffer& x, const int32_t* rows, int count, const Buffer& out) {
  for_rows(op.pool, count, x.columns, [&](int row, int) { out.write_row(row, x.row(rows[row])); });
}

void run_qkv(const OpContext& op, const QkvArgs& qkv, const AttentionArgs& attention, const Buffer& x, const Buffer& out) {
  const KvLayout& layout = attention.layout;
  const int dim = layout.head_dim;
  const int rotated = qkv.heads + layout.kv_heads;  // heads of q, then of k
  for_rows(op.pool, attention.tokens, x.columns, [&](int row, int thread) {
    float* values = op.scratch_row(thread);
    std::memcpy(values, x.row(row), static_cast<size_t>(rotated) * dim * sizeof(float));
    const int position = qkv.positions[row];
    rotate_heads(op, qkv, qkv.q_norm, position, values, qkv.heads, dim);
    rotate_heads(op, qkv, qkv.k_norm, position, values + static_cast<size_t>(qkv.heads) * dim, layout.kv_heads, dim);
    out.write_row(row, values);
    const AttentionSequence& sequence = attention.sequences[qkv.row_sequence[row]];
    const float* k = values + static_cast<size_t>(qkv.heads) * dim;
    const float* v = x.row(row) + static_cast<size_t>(rotated) * dim;
    if (qkv.staged_sequences && qkv.staged_sequences[qkv.row_sequence[row]] != 0) {
      const size_t half = static_cast<size_t>(layout.kv_heads) * dim;
      float* to = qkv.staged + 2 * half * static_cast<size_t>(row);
      std::memcpy(to, k, half * sizeof(float));
      std::memcpy(to + half, v, half * sizeof(float));
      return;
    }
    write_kv(attention.isa, layout, attention.page(sequence, position / kPageTokens), position % kPageTokens, k, v);
  });
}

void run_query(const OpContext& op, const QkvArgs& qkv, const Buffer& x, int rows, const Buffer& out) {
  for_rows(op.pool, rows, out.columns, [&](int row, int thread) {
    float* values = op.scratch_row(thread);
    std::memcpy(values, x.row(row), static_cast<size_t>(out.columns) * sizeof(float));
    rotate_heads(op, qkv, qkv.q_norm, qkv.positions[row], values, out.heads, out.head_dim);
    out.write_row(row, values);
  });
}

void run_keys(const OpContext& op, const QkvArgs& qkv, const Buffer& x, int column, int rows, const Buffer& out) {
  for_rows(op.pool, rows, out.columns, [&](int row, int thread) {
    float* values = op.scratch_row(thread);
    std::memcpy(values, x.row(row) + column, static_cast<size_t>(out.columns) * sizeof(float));
    rotate_heads(op, qkv, qkv.k_norm, qkv.positions[row], values, out.heads / 2, out.head_dim);
    out.write_row(row, values);
  });
}

}  // namespace kvasir
