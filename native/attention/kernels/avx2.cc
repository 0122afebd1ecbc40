// Attention of the AVX2 family: eight lanes and fused multiply-adds; bf16 is widened in registers. q8 by vpmaddwd.
#include <immintrin.h>

#include "attention/kernels/q8.hpp"

namespace kvasir {
namespace {

struct Avx2Lanes {
  using Vec = __m256;
  static constexpr int kWidth = 8;
  static Vec zero() { return _mm256_setzero_ps(); }
  static Vec set(float x) { return _mm256_set1_ps(x); }
  static Vec load(const float* from) { return _mm256_loadu_ps(from); }
  static Vec load_part(const float* from, int lanes) {
    __m256i index = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_maskload_ps(from, _mm256_cmpgt_epi32(_mm256_set1_epi32(lanes), index));
  }
  static void store(float* to, Vec v) { _mm256_storeu_ps(to, v); }
  static Vec add(Vec a, Vec b) { return _mm256_add_ps(a, b); }
  static Vec multiply(Vec a, Vec b) { return _mm256_mul_ps(a, b); }
  static Vec multiply_add(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }
  static Vec divide(Vec a, Vec b) { return _mm256_div_ps(a, b); }
  static Vec magnitude(Vec v) { return _mm256_andnot_ps(set(-0.0f), v); }
  static Vec with_sign(Vec size, Vec sign) { return _mm256_or_ps(size, _mm256_and_ps(set(-0.0f), sign)); }
  /** x < bound ? a : b */
  static Vec select_below(Vec x, float bound, Vec a, Vec b) { return _mm256_blendv_ps(b, a, _mm256_cmp_ps(x, set(bound), _CMP_LT_OQ)); }
  static Vec max(Vec a, Vec b) { return _mm256_max_ps(a, b); }
  static Vec round(Vec v) { return _mm256_round_ps(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  static float largest(Vec v) {
    __m128 half = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    half = _mm_max_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_max_ss(half, _mm_shuffle_ps(half, half, 1)));
  }
  static float sum(Vec v) {
    __m128 half = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    half = _mm_add_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_add_ss(half, _mm_shuffle_ps(half, half, 1)));
  }
  /** p 2^n if x is not below `lowest`, else 0; NaN stays. */
  static Vec scale_from(Vec x, float lowest, Vec p, Vec n) {
    __m256i exponent = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
    return _mm256_and_ps(_mm256_cmp_ps(x, set(lowest), _CMP_NLT_UQ), _mm256_mul_ps(p, _mm256_castsi256_ps(exponent)));
  }
  static Vec low_half(Vec pairs) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(pairs), 16)); }
  static Vec high_half(Vec pairs) { return _mm256_and_ps(pairs, _mm256_castsi256_ps(_mm256_set1_epi32(-65536))); }
};

struct Words {
  using Lanes = Avx2Lanes;
  using Int = __m256i;
  static constexpr int kRows = 4;
  static Int load(const uint8_t* from) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)); }
  static Int even(Int bytes) { return _mm256_and_si256(bytes, _mm256_set1_epi16(255)); }
  static Int odd(Int bytes) { return _mm256_srli_epi16(bytes, 8); }
  static Int multiply_add(Int sum, Int words, int32_t two) {
    Int next = _mm256_add_epi32(sum, _mm256_madd_epi16(words, _mm256_set1_epi32(two)));
    asm("" : "+x"(next));  // g++ otherwise reorders exact sums, and keeps all products in memory before it adds them
    return next;
  }
  static Int set_int(int32_t value) { return _mm256_set1_epi32(value); }
  static Int add(Int a, Int b) { return _mm256_add_epi32(a, b); }
  static int32_t sum(Int a) {
    const __m128i four = _mm_add_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
    const __m128i two = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(two, _mm_shuffle_epi32(two, 0xb1)));
  }
  static __m256 to_float(Int a) { return _mm256_cvtepi32_ps(a); }
  static __m256 widen(const uint8_t* bf16) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(bf16))), 16));
  }
  /** weight x scale, 0 where the weight is 0 */
  static __m256 weigh(__m256 weight, __m256 scale) {
    return _mm256_and_ps(_mm256_cmp_ps(weight, _mm256_setzero_ps(), _CMP_NEQ_UQ), _mm256_mul_ps(weight, scale));
  }
  /** The larger of positive values or NaN, as bits. */
  static Int largest_bits(Int largest, __m256 v) { return _mm256_max_epu32(largest, _mm256_castps_si256(v)); }
  static uint32_t highest(Int largest) {
    const __m128i four = _mm_max_epu32(_mm256_castsi256_si128(largest), _mm256_extracti128_si256(largest, 1));
    const __m128i two = _mm_max_epu32(four, _mm_shuffle_epi32(four, 0x4e));
    return static_cast<uint32_t>(_mm_cvtsi128_si32(_mm_max_epu32(two, _mm_shuffle_epi32(two, 0xb1))));
  }
  /** Stores the nearest integers of two vectors; adds them to `sums`. */
  static Int store_levels(__m256 a, __m256 b, int16_t* out, Int sums) {
    const Int words = _mm256_permute4x64_epi64(_mm256_packs_epi32(_mm256_cvtps_epi32(a), _mm256_cvtps_epi32(b)), 0xd8);
    _mm256_storeu_si256(reinterpret_cast<Int*>(out), words);
    return _mm256_add_epi32(sums, _mm256_madd_epi16(words, _mm256_set1_epi16(1)));
  }
};

using Float = FloatForm<Avx2Lanes, 12, 2>;
using Widened = WidenedForm<Avx2Lanes, 8, 2>;
constexpr AttentionKernel kFloat{4, copy_floats, run_range<Float>, score_range<Float>, bound_pages<Float>, merge_rows};
constexpr AttentionKernel kBf16{4, widen_bf16, run_range<Widened>, score_range<Widened>, bound_pages<Widened>, merge_rows};

}  // namespace

const AttentionKernel* attention_kernel_avx2(KvType type) { return choose_kernel(type, kBf16, kFloat, q8_kernel<Words>); }

}  // namespace kvasir
