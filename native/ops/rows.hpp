// Elementwise kernels over one row of n floats, chosen by instruction set. The ops and the sampler use them.
#pragma once
#include <cstdint>

#include "base/types.hpp"

namespace kvasir {

/** Columns of a block of `scan` and `exp_row`; fixed, so that sums have one order. */
constexpr int kScanBlock = 128;
constexpr int kSumBlock = 1024;

struct RowScan {
  float max;
  bool nan;
};

/** Within an instruction set each function gives the same bits for the same row. Rows need no alignment. */
struct RowKernels {
  /** The norm of this style. */
  auto norm(NormStyle style) const { return style == NormStyle::rms ? rms_norm : layer_norm; }
  /**
   * out (n) = x / sqrt(mean(x^2) + eps) * gain. With `residual`: residual += x first, and the sum is normalised. `out`
   * may be `x`.
   */
  void (*rms_norm)(const float* x, float* residual, const float* gain, float eps, int n, float* out);
  /** out (n) = (x - mean) / sqrt(variance + eps) * gain; otherwise as `rms_norm`. */
  void (*layer_norm)(const float* x, float* residual, const float* gain, float eps, int n, float* out);
  /** x *= factor */
  void (*scale)(float* x, float factor, int n);
  /** x += y */
  void (*add)(float* x, const float* y, int n);
  /** x = cap * tanh(x / cap) */
  void (*softcap)(float* x, float cap, int n);
  /** By Activation: out = activation(gate) * up, and out = activation(x). */
  void (*glu[4])(const float* gate, const float* up, int n, float* out);
  void (*activate[4])(const float* x, int n, float* out);
  /**
   * Rotates the first `rotary_dim` dimensions of one head in place; `table` (rotary_dim) is cos of rotary_dim / 2
   * angles, then sin.
   */
  void (*rotate_half)(float* head, const float* table, int rotary_dim);
  /**
   * The largest value of the row, and of each block of kScanBlock columns. If the row holds NaN, only that is reported.
   */
  RowScan (*scan)(const float* x, int n, float* block_max);
  /**
   * Writes exp((x - max) * factor) to `out` (n) unless null, and the sums of blocks of kSumBlock columns to
   * `block_sum`.
   */
  void (*exp_row)(const float* x, int n, float max, float factor, float* out, double* block_sum);
  /** Writes the ids of values >= threshold, ascending, to `ids` (n); returns their count. */
  int (*select_at_least)(const float* x, int n, float threshold, int32_t* ids);
  /** The sum of values >= threshold. */
  double (*mass_at_least)(const float* x, int n, float threshold);
};

const RowKernels& row_kernels(Isa isa);

extern const RowKernels kPortableRowKernels;
#if defined(KVASIR_HAVE_AVX2)
extern const RowKernels kAvx2RowKernels;
#endif
#if defined(KVASIR_HAVE_AVX512)
extern const RowKernels kAvx512RowKernels;
#endif

}  // namespace kvasir
