// Merging rows of partials. Internal linkage: each instruction set compiles its own copy, as wide as its vectors. No
// multiply-add is fused, so all copies give the same bits.
#pragma once
#include <cmath>

#include "attention/merge.hpp"
#include "simd/float_bits.hpp"

namespace kvasir {
namespace {

constexpr float kRounds = 12582912.0f;  // adding this to a float below 2^22 leaves no fraction bits

/**
 * exp(x) for x <= 0, relative error under 2e-7; 0 below -87. ln 2 is split in two parts, the first with spare bits, so
 * that n ln 2 is exact.
 */
inline float exp_negative(float x) {
  if (x < -87.0f) return 0.0f;
  if (x != x) return x;
  float n = (x * 1.44269504f + kRounds) - kRounds;
  float f = (x - n * 0.693359375f) - n * -2.12194440e-4f;
  float p = f * 0.00138436072f + 0.00837419555f;
  p = p * f + 0.0416680053f;
  p = p * f + 0.166664302f;
  p = p * f + 0.5f;
  p = p * f + 1.0f;
  p = p * f + 1.0f;
  return p * bits_float(static_cast<uint32_t>(static_cast<int32_t>(n) + 127) << 23);
}

inline bool is_empty(const PartialRows& part, int row) { return part.sum[row] == 0.0f && part.max[row] == -INFINITY; }

/** left = keep left + add right over (columns). One factor is 1 and its exact product is left out. */
inline void merge_row(float* __restrict left, const float* __restrict right, int columns, float keep, float add) {
  if (keep == 1.0f) {
    for (int i = 0; i < columns; i++) left[i] = left[i] + right[i] * add;
  } else {
    for (int i = 0; i < columns; i++) left[i] = left[i] * keep + right[i];
  }
}

/**
 * left = left + right, where the keys of `left` precede those of `right`; both (rows, columns). An empty side changes
 * no bit of the other.
 */
[[maybe_unused]] inline void merge_rows(const PartialRows& left, const PartialRows& right, int rows, int columns, size_t left_stride, size_t right_stride) {
  for (int row = 0; row < rows; row++) {
    float* o = left.o + left_stride * row;
    const float* other = right.o + right_stride * row;
    if (is_empty(right, row)) continue;
    if (is_empty(left, row)) {
      std::memcpy(o, other, sizeof(float) * columns);
      left.max[row] = right.max[row];
      left.sum[row] = right.sum[row];
      continue;
    }
    const bool is_larger = left.max[row] > right.max[row];
    const float max = is_larger ? left.max[row] : right.max[row];
    const float lower = exp_negative((is_larger ? right.max[row] : left.max[row]) - max);
    const float keep = is_larger ? 1.0f : lower, add = is_larger ? lower : 1.0f;
    merge_row(o, other, columns, keep, add);
    left.sum[row] = left.sum[row] * keep + right.sum[row] * add;
    left.max[row] = max;
  }
}

}  // namespace
}  // namespace kvasir
