// One buffer of a program: rows of float32, of rounded inputs of linear layers, or of queries.
#pragma once
#include <cstring>

#include "attention/attention.hpp"
#include "base/types.hpp"
#include "linear/linear.hpp"

namespace kvasir {

enum class BufferKind : int { f32 = 0, input = 1, query = 2 };

struct Buffer {
  BufferKind kind = BufferKind::f32;
  Isa isa = Isa::portable;
  InputForm form = InputForm::f32;  // of an input buffer
  KvType kv_type = KvType::bf16;    // of a query buffer
  int heads = 0;                    // of a query buffer
  int head_dim = 0;
  int columns = 0;
  bool logit_rows = false;  // one row per row that needs logits, else one per token
  bool alone = false;       // shares its memory with no other buffer
  uint8_t* data = nullptr;

  size_t bytes(int rows) const {
    if (kind == BufferKind::input) return input_bytes(isa, form, columns, rows);
    if (kind == BufferKind::query) return query_bytes(isa, kv_type, heads, head_dim, rows);
    return static_cast<size_t>(rows) * columns * sizeof(float);
  }

  /** A row of a float32 buffer. */
  float* row(int index) const { return reinterpret_cast<float*>(data) + static_cast<size_t>(index) * columns; }

  /**
   * Where an op computes row `index`: the row itself in a float32 buffer, else `scratch`, which `finish_row` rounds.
   */
  float* begin_row(int index, float* scratch) const { return kind == BufferKind::f32 ? row(index) : scratch; }

  void finish_row(int index, const float* values) const {
    if (kind == BufferKind::input) write_input_row(isa, form, columns, data, index, values);
    if (kind == BufferKind::query) write_query_row(isa, kv_type, heads, head_dim, data, index, values);
  }

  void write_row(int index, const float* values) const {
    if (kind == BufferKind::f32) std::memcpy(row(index), values, static_cast<size_t>(columns) * sizeof(float));
    finish_row(index, values);
  }

  void read_row(int index, float* out) const {
    if (kind == BufferKind::input) {
      read_input_row(isa, form, columns, data, index, out);
    } else if (kind == BufferKind::query) {
      read_query_row(isa, kv_type, heads, head_dim, data, index, out);
    } else {
      std::memcpy(out, row(index), static_cast<size_t>(columns) * sizeof(float));
    }
  }
};

}  // namespace kvasir
