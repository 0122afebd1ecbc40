// Sixteen lanes of AVX-512 and the bf16 form over vdpbf16ps, for the AVX-512 and AMX families. Internal linkage, as in
// tile.hpp.
#pragma once
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"  // both: false alarms inside the intrinsics of g++ 12
#endif
#include <immintrin.h>

#include "attention/kernels/tile.hpp"

namespace kvasir {
namespace {

struct Avx512Lanes {
  using Vec = __m512;
  static constexpr int kWidth = 16;
  static Vec zero() { return _mm512_setzero_ps(); }
  static Vec set(float x) { return _mm512_set1_ps(x); }
  static Vec load(const float* from) { return _mm512_loadu_ps(from); }
  static Vec load_part(const float* from, int lanes) { return _mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << lanes) - 1), from); }
  static void store(float* to, Vec v) { _mm512_storeu_ps(to, v); }
  static Vec add(Vec a, Vec b) { return _mm512_add_ps(a, b); }
  static Vec multiply(Vec a, Vec b) { return _mm512_mul_ps(a, b); }
  static Vec multiply_add(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }
  static Vec divide(Vec a, Vec b) { return _mm512_div_ps(a, b); }
  static Vec magnitude(Vec v) { return _mm512_andnot_ps(set(-0.0f), v); }
  static Vec with_sign(Vec size, Vec sign) { return _mm512_or_ps(size, _mm512_and_ps(set(-0.0f), sign)); }
  /** x < bound ? a : b */
  static Vec select_below(Vec x, float bound, Vec a, Vec b) { return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(x, set(bound), _CMP_LT_OQ), b, a); }
  static Vec max(Vec a, Vec b) { return _mm512_max_ps(a, b); }
  static Vec round(Vec v) { return _mm512_roundscale_ps(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  static uint32_t above(Vec v, float bound) { return _mm512_cmp_ps_mask(v, set(bound), _CMP_GT_OQ); }
  static float largest(Vec v) { return _mm512_reduce_max_ps(v); }
  static float sum(Vec v) { return _mm512_reduce_add_ps(v); }
  /** p 2^n if x is not below `lowest`, else 0; NaN stays. */
  static Vec scale_from(Vec x, float lowest, Vec p, Vec n) {
    return _mm512_maskz_scalef_ps(_mm512_cmp_ps_mask(x, set(lowest), _CMP_NLT_UQ), p, n);
  }
};

/** bf16 pairs: a step adds two products to each lane. Subnormals count as zero. */
struct DotBase {
  using Lanes = Avx512Lanes;
  using Element = uint16_t;
  using Left = __m512bh;
  using Right = __m512bh;
  static constexpr int kPack = 2, kAccumulators = 24, kWide = 4;
  static Right load(const uint8_t* from) { return (__m512bh)_mm512_loadu_si512(from); }
  static Right load_part(const uint8_t* from, int lanes) {
    return (__m512bh)_mm512_maskz_loadu_epi32(static_cast<__mmask16>((1u << lanes) - 1), from);
  }
  static Left broadcast(const uint16_t* from) {
    int32_t pair;
    std::memcpy(&pair, from, 4);
    return (__m512bh)_mm512_set1_epi32(pair);
  }
  static __m512 multiply_add(__m512 sum, Left a, Right b) { return _mm512_dpbf16_ps(sum, a, b); }
  /** The rounding error of 16 weights. */
  static __m512 lost(__m512 exact, const uint16_t* rounded) {
    const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(rounded)));
    return _mm512_sub_ps(exact, _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16)));
  }
  /** o (head_dim) += lost x V, heavy keys in order. */
  static void add_heavy(float* o, const HeavyKey* heavy, int count, int head_dim) {
    for (int d = 0; d < head_dim; d += 16) {
      const auto lanes = static_cast<__mmask16>(head_dim - d < 16 ? (1u << (head_dim - d)) - 1 : 0xffffu);
      __m512 sum = _mm512_maskz_loadu_ps(lanes, o + d);
      for (int i = 0; i < count; i++) {
        const uint8_t* pairs = heavy[i].values + 4 * (static_cast<ptrdiff_t>(heavy[i].slot / 2) * head_dim + d);
        const __m512i both = _mm512_sll_epi32(_mm512_maskz_loadu_epi32(lanes, pairs), _mm_cvtsi32_si128(heavy[i].slot % 2 == 0 ? 16 : 0));
        const __m512 value = _mm512_castsi512_ps(_mm512_and_si512(both, _mm512_set1_epi32(-65536)));
        sum = _mm512_fmadd_ps(value, _mm512_set1_ps(heavy[i].lost), sum);
      }
      _mm512_mask_storeu_ps(o + d, lanes, sum);
    }
  }
  /** The sums use the rounded weights, so that o / sum is an exact mean of V. */
  static __m512 store_weights(const __m512* weights, uint16_t* out, __m512 sums) {
    __m512bh pairs = _mm512_cvtne2ps_pbh(weights[1], weights[0]);
    _mm512_storeu_si512(out, (__m512i)pairs);
    return _mm512_dpbf16_ps(sums, pairs, (__m512bh)_mm512_set1_epi32(0x3f803f80));
  }
};

}  // namespace
}  // namespace kvasir
