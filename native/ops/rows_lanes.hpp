// The row kernels, written once over vectors of kLanes floats; each rows_*.cc compiles them for its instruction set.
// Everything is in an unnamed namespace: code compiled for one instruction set must never be linked into another's
// callers.
#pragma once
#include <cmath>
#include <cstring>

#include "ops/rows.hpp"
#include "simd/fitted.hpp"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#pragma GCC diagnostic ignored "-Wpsabi"

namespace kvasir {
namespace {

#if defined(__AVX512F__)
constexpr int kLanes = 16;
#elif defined(__AVX2__)
constexpr int kLanes = 8;
#else
constexpr int kLanes = 4;
#endif

typedef float Lanes __attribute__((vector_size(kLanes * sizeof(float))));
typedef int32_t IntLanes __attribute__((vector_size(kLanes * sizeof(int32_t))));
typedef uint32_t BitLanes __attribute__((vector_size(kLanes * sizeof(uint32_t))));

inline __attribute__((always_inline)) Lanes load(const float* p) {
  Lanes v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

inline __attribute__((always_inline)) void store(float* p, Lanes v) { std::memcpy(p, &v, sizeof v); }

inline __attribute__((always_inline)) Lanes all(float x) { return Lanes{} + x; }

/** a * b + c, rounded once if the instruction set has a fused multiply-add. */
inline __attribute__((always_inline)) Lanes fused(Lanes a, Lanes b, Lanes c) {
#if defined(__AVX512F__)
  return (Lanes)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__AVX2__)
  return (Lanes)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
  return a * b + c;
#endif
}

/** The rounding error of `product`, a * b: their sum is exact. */
inline __attribute__((always_inline)) Lanes lost_of(Lanes product, Lanes a, Lanes b) {
#if defined(__AVX2__)
  return fused(a, b, -product);
#else
  // Halves of 12 bits: their products are exact.
  const Lanes a_high = (Lanes)((BitLanes)a & 0xfffff000u), b_high = (Lanes)((BitLanes)b & 0xfffff000u);
  const Lanes a_low = a - a_high, b_low = b - b_high;
  return ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low;
#endif
}

/** The last, partial vector of a row, padded with `rest`. */
inline Lanes load_some(const float* p, int count, float rest) {
  Lanes v = all(rest);
  std::memcpy(&v, p, static_cast<size_t>(count) * sizeof(float));
  return v;
}

inline void store_some(float* p, int count, Lanes v) { std::memcpy(p, &v, static_cast<size_t>(count) * sizeof(float)); }

inline float sum(Lanes v) {
  float lanes[kLanes];
  std::memcpy(lanes, &v, sizeof v);
  for (int width = kLanes / 2; width > 0; width /= 2)
    for (int i = 0; i < width; i++) lanes[i] += lanes[i + width];
  return lanes[0];
}

inline float largest(Lanes v) {
  float lanes[kLanes];
  std::memcpy(lanes, &v, sizeof v);
  for (int width = kLanes / 2; width > 0; width /= 2)
    for (int i = 0; i < width; i++) lanes[i] = lanes[i] > lanes[i + width] ? lanes[i] : lanes[i + width];
  return lanes[0];
}

inline bool any(IntLanes v) {
  int64_t words[kLanes / 2];
  std::memcpy(words, &v, sizeof v);
  int64_t seen = 0;
  for (int i = 0; i < kLanes / 2; i++) seen |= words[i];
  return seen != 0;
}

inline __attribute__((always_inline)) Lanes max(Lanes a, Lanes b) { return a > b ? a : b; }

/** e^x to 2 units in the last place; 0 below -87; NaN stays NaN; x is clamped to 88. */
inline __attribute__((always_inline)) Lanes exp_lanes(Lanes x) {
  const IntLanes vanishes = x < -87.0f;
  x = x > 88.0f ? all(88.0f) : x;
  const Lanes round = all(12582912.0f);  // 1.5 x 2^23: adding it leaves the nearest integer in the low bits
  const Lanes shifted = fused(x, all(1.44269504088896341f), round);
  const Lanes n = shifted - round;
  const Lanes r = fused(n, all(2.12194440e-4f), fused(n, all(-0.693359375f), x));  // ln 2 in two parts
  Lanes p = all(1.9875691500e-4f);
  p = fused(p, r, all(1.3981999507e-3f));
  p = fused(p, r, all(8.3334519073e-3f));
  p = fused(p, r, all(4.1665795894e-2f));
  p = fused(p, r, all(1.6666665459e-1f));
  p = fused(p, r, all(5.0000001201e-1f));
  const Lanes y = fused(p, r * r, r) + 1.0f;
  const BitLanes power = ((BitLanes)shifted + (127u - 0x4b400000u)) << 23;  // arbitrary in lanes that become 0
  return vanishes ? all(0.0f) : y * (Lanes)power;
}

/** e^(x + rest): far from 0 a float32 exponent is too coarse, and `rest` is its remainder. */
inline __attribute__((always_inline)) Lanes exp_lanes(Lanes x, Lanes rest) {
  const Lanes e = exp_lanes(x);
  return fused(e, rest, e);
}

/** x clamped to [-bound, bound]; NaN stays. */
inline __attribute__((always_inline)) Lanes within(Lanes x, float bound) {
  x = x > bound ? all(bound) : x;
  return x < -bound ? all(-bound) : x;
}

inline __attribute__((always_inline)) Lanes tanh_lanes(Lanes x) {
  const Lanes size = x < 0.0f ? -x : x;
  const Lanes e = exp_lanes(size * -2.0f);
  const Lanes square = x * x;
  Lanes p = all(kTanhSmall[4]);
  for (int i = 3; i >= 0; i--) p = fused(p, square, all(kTanhSmall[i]));
  const Lanes large = (1.0f - e) / (1.0f + e);
  const Lanes result = size < kTanhBend ? fused(p * square, size, size) : large;
  return x < 0.0f ? -result : result;
}

void add(float* x, const float* y, int n) {
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) store(x + i, load(x + i) + load(y + i));
  for (; i < n; i++) x[i] += y[i];
}

/**
 * The sum over a row of term(vector, previous vectors), in four running vectors. The last vector is padded with `rest`.
 */
template <class Term>
inline __attribute__((always_inline)) float sum_row(const float* x, int n, float rest, const Term& term) {
  constexpr int kSums = 4;
  Lanes sums[kSums] = {};
  int i = 0;
  for (; i + kSums * kLanes <= n; i += kSums * kLanes)
    for (int k = 0; k < kSums; k++) sums[k] = term(load(x + i + k * kLanes), sums[k]);
  for (; i < n; i += kLanes) sums[0] = term(load_some(x + i, n - i < kLanes ? n - i : kLanes, rest), sums[0]);
  return sum((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

void rms_norm(const float* x, float* residual, const float* gain, float eps, int n, float* out) {
  if (residual) add(residual, x, n);
  const float* source = residual ? residual : x;
  const float squares = sum_row(source, n, 0.0f, [](Lanes v, Lanes total) { return fused(v, v, total); });
  const float factor = 1.0f / std::sqrt(squares / static_cast<float>(n) + eps);
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) store(out + i, load(source + i) * factor * load(gain + i));
  for (; i < n; i++) out[i] = source[i] * factor * gain[i];
}

void layer_norm(const float* x, float* residual, const float* gain, float eps, int n, float* out) {
  if (residual) add(residual, x, n);
  const float* source = residual ? residual : x;
  const float mean = sum_row(source, n, 0.0f, [](Lanes v, Lanes total) { return total + v; }) / static_cast<float>(n);
  const auto square = [mean](Lanes v, Lanes total) { return fused(v - mean, v - mean, total); };
  const float squares = sum_row(source, n, mean, square);
  const float factor = 1.0f / std::sqrt(squares / static_cast<float>(n) + eps);
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) store(out + i, (load(source + i) - mean) * factor * load(gain + i));
  for (; i < n; i++) out[i] = (source[i] - mean) * factor * gain[i];
}

void scale(float* x, float factor, int n) {
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) store(x + i, load(x + i) * factor);
  for (; i < n; i++) x[i] *= factor;
}

void softcap(float* x, float cap, int n) {
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) store(x + i, tanh_lanes(load(x + i) / cap) * cap);
  if (i < n) store_some(x + i, n - i, tanh_lanes(load_some(x + i, n - i, 0.0f) / cap) * cap);
}

inline __attribute__((always_inline)) Lanes silu(Lanes x) { return x / (1.0f + exp_lanes(-x)); }

/** x Phi(x), with Phi the normal distribution, computed from its tail so that small results keep their digits. */
inline __attribute__((always_inline)) Lanes gelu(Lanes x) {
  const Lanes size = x < 0.0f ? -x : x;
  const Lanes t = 1.0f / fused(size, all(kTailRate), all(1.0f));
  Lanes p = all(kTail[8]);
  for (int i = 7; i >= 0; i--) p = fused(p, t, all(kTail[i]));
  const Lanes bounded = within(x, kTailEnd);
  const Lanes square = bounded * bounded;
  const Lanes tail = p * t * exp_lanes(square * -0.5f, lost_of(square, bounded, bounded) * -0.5f);
  return x * (x < 0.0f ? tail : 1.0f - tail);
}

/**
 * x / 2 (1 + tanh(u)) is x / (1 + exp(-2 u)), and 2 u = x (a + b x^2). If the result is small, 2 u is large: it is kept
 * in two parts.
 */
inline __attribute__((always_inline)) Lanes gelu_tanh(Lanes x) {
  const Lanes a = all(kGeluLinear), b = all(kGeluCubic);
  const Lanes bounded = within(x, kTailEnd);
  const Lanes square = bounded * bounded;
  const Lanes cubic = b * square;
  const Lanes slope = cubic + a;
  // The smaller part of a sum gives its rounding error, and b x^2 is the smaller one only up to x = 4.7.
  const Lanes part = slope - cubic;
  const Lanes lost_sum = (cubic - (slope - part)) + (a - part);
  const Lanes slope_rest = fused(b, lost_of(square, bounded, bounded), lost_of(cubic, b, square) + lost_sum) + fused(square, all(kGeluCubicRest), all(kGeluLinearRest));
  const Lanes twice = bounded * slope;
  const Lanes rest = fused(bounded, slope_rest, lost_of(twice, bounded, slope));
  return x / (1.0f + exp_lanes(-twice, -rest));
}

/** NaN stays. */
inline __attribute__((always_inline)) Lanes relu(Lanes x) { return x < 0.0f ? Lanes{} : x; }

template <Lanes (*Function)(Lanes)>
void glu(const float* gate, const float* up, int n, float* out) {
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) store(out + i, Function(load(gate + i)) * load(up + i));
  if (i < n) store_some(out + i, n - i, Function(load_some(gate + i, n - i, 0.0f)) * load_some(up + i, n - i, 0.0f));
}

template <Lanes (*Function)(Lanes)>
void activate(const float* x, int n, float* out) {
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) store(out + i, Function(load(x + i)));
  if (i < n) store_some(out + i, n - i, Function(load_some(x + i, n - i, 0.0f)));
}

void rotate_half(float* head, const float* table, int rotary_dim) {
  const int half = rotary_dim / 2;
  float* low = head;
  float* high = head + half;
  const float* cosine = table;
  const float* sine = table + half;
  int i = 0;
  for (; i + kLanes <= half; i += kLanes) {
    const Lanes a = load(low + i), b = load(high + i), c = load(cosine + i), s = load(sine + i);
    store(low + i, a * c - b * s);
    store(high + i, b * c + a * s);
  }
  for (; i < half; i++) {
    const float a = low[i], b = high[i];
    low[i] = a * cosine[i] - b * sine[i];
    high[i] = b * cosine[i] + a * sine[i];
  }
}

RowScan scan(const float* x, int n, float* block_max) {
  constexpr float kLowest = -INFINITY;
  Lanes row_max = all(kLowest);
  IntLanes nan = {};
  for (int start = 0; start < n; start += kScanBlock) {
    const int end = start + kScanBlock < n ? start + kScanBlock : n;
    Lanes most = all(kLowest);
    int i = start;
    for (; i + kLanes <= end; i += kLanes) {
      const Lanes v = load(x + i);
      nan |= v != v;
      most = max(v, most);
    }
    if (i < end) {
      const Lanes v = load_some(x + i, end - i, kLowest);
      nan |= v != v;
      most = max(v, most);
    }
    block_max[start / kScanBlock] = largest(most);
    row_max = max(most, row_max);
  }
  return {largest(row_max), any(nan)};
}

void exp_row(const float* x, int n, float max, float factor, float* out, double* block_sum) {
  for (int start = 0; start < n; start += kSumBlock) {
    const int end = start + kSumBlock < n ? start + kSumBlock : n;
    Lanes total[2] = {};
    int i = start;
    for (int k = 0; i + kLanes <= end; i += kLanes, k ^= 1) {
      const Lanes e = exp_lanes((load(x + i) - max) * factor);
      if (out) store(out + i, e);
      total[k] += e;
    }
    if (i < end) {
      const Lanes e = exp_lanes((load_some(x + i, end - i, -INFINITY) - max) * factor);
      if (out) store_some(out + i, end - i, e);
      total[0] += e;
    }
    block_sum[start / kSumBlock] = sum(total[0] + total[1]);
  }
}

int select_at_least(const float* x, int n, float threshold, int32_t* ids) {
  int count = 0;
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    if (!any(load(x + i) >= threshold)) continue;
    for (int k = i; k < i + kLanes; k++)
      if (x[k] >= threshold) ids[count++] = k;
  }
  for (; i < n; i++)
    if (x[i] >= threshold) ids[count++] = i;
  return count;
}

double mass_at_least(const float* x, int n, float threshold) {
  double mass = 0;
  for (int start = 0; start < n; start += kSumBlock) {
    const int end = start + kSumBlock < n ? start + kSumBlock : n;
    Lanes total = {};
    int i = start;
    for (; i + kLanes <= end; i += kLanes) {
      const Lanes v = load(x + i);
      total += v >= threshold ? v : Lanes{};
    }
    if (i < end) {
      const Lanes v = load_some(x + i, end - i, 0.0f);
      total += v >= threshold ? v : Lanes{};
    }
    mass += sum(total);
  }
  return mass;
}

constexpr RowKernels kRowKernels = {
    rms_norm,    layer_norm, scale,   add,    softcap,         {glu<silu>, glu<gelu>, glu<gelu_tanh>, glu<relu>}, {activate<silu>, activate<gelu>, activate<gelu_tanh>, activate<relu>},
    rotate_half, scan,       exp_row, select_at_least, mass_at_least};

}  // namespace
}  // namespace kvasir
