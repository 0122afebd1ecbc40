// Linear layers: packing of stored weights, rounding of input rows, products. Within a form (weight type x input form)
// the bits of an output element depend on the weight, the input row and the ISA alone, never on the number of rows,
// tiles or threads.
#pragma once
#include <memory>
#include <vector>

#include "base/thread_pool.hpp"
#include "base/types.hpp"

namespace kvasir {

struct SegmentSpec {
  TensorType type;
  int rows;
};

/**
 * A packed linear layer of one or more segments with a common input. The output columns of the segments are
 * consecutive.
 */
class Linear {
 public:
  virtual ~Linear() = default;
  int columns = 0;  // length of an input row
  int rows = 0;     // length of an output row: the sum of all segments
  InputForm inputs = InputForm::f32;
  Isa isa = Isa::portable;

  /** Packs rows [row, row + count) of a segment from stored bytes. Rows may come in any order, each once. */
  virtual void pack_rows(int segment, int row, int count, const uint8_t* bytes) = 0;
  virtual size_t bytes() const = 0;
  /** Widens one weight row to out (columns) in float32, exactly (embedding look-up, tests). */
  virtual void read_row(int row, float* out) const = 0;
  /**
   * y (tokens, ld) = input (tokens, columns) x weights^T (columns, rows) + bias (rows); `input` was filled by
   * write_input_row.
   */
  virtual void run(ThreadPool& pool, const void* input, int tokens, const float* bias, float* y, size_t ld) const = 0;
};

/** Bytes of one stored row of whole blocks. */
size_t stored_row_bytes(TensorType type, int columns);

std::unique_ptr<Linear> create_linear(Isa isa, int columns, const std::vector<SegmentSpec>& segments, InputForm inputs);

/** Bytes of an input buffer for up to `tokens` rows, which may be tiled. Its base is 64-byte aligned. */
size_t input_bytes(Isa isa, InputForm form, int columns, int tokens);
/** Rounds one float32 row x (columns) into row `token` of an input buffer. Threads may write different rows at once. */
void write_input_row(Isa isa, InputForm form, int columns, void* buffer, int token, const float* x);
/** The values that the products use, widened (tests). */
void read_input_row(Isa isa, InputForm form, int columns, const void* buffer, int token, float* out);

}  // namespace kvasir
