// Attention of the AVX-512 family: bf16 pairs by vdpbf16ps, float32 by fused multiply-adds, q8 by vpdpwssd.
#include "attention/kernels/lanes_avx512.hpp"
#include "attention/kernels/q8.hpp"

namespace kvasir {
namespace {

struct Dot : DotBase, FormBase<Dot> {
  static constexpr bool kRoundsWeights = true;
  static constexpr bool kShortChains = false;
};
using Float = FloatForm<Avx512Lanes, 24, 4>;

struct Words {
  using Lanes = Avx512Lanes;
  using Int = __m512i;
  static constexpr int kRows = 12;
  static Int load(const uint8_t* from) { return _mm512_loadu_si512(from); }
  static Int even(Int bytes) { return _mm512_and_si512(bytes, _mm512_set1_epi16(255)); }
  static Int odd(Int bytes) { return _mm512_srli_epi16(bytes, 8); }
  static Int multiply_add(Int sum, Int words, int32_t two) { return _mm512_dpwssd_epi32(sum, words, _mm512_set1_epi32(two)); }
  static Int set_int(int32_t value) { return _mm512_set1_epi32(value); }
  static Int add(Int a, Int b) { return _mm512_add_epi32(a, b); }
  static int32_t sum(Int a) { return _mm512_reduce_add_epi32(a); }
  static __m512 to_float(Int a) { return _mm512_cvtepi32_ps(a); }
  static __m512 widen(const uint8_t* bf16) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(bf16))), 16));
  }
  /** weight x scale, 0 where the weight is 0 */
  static __m512 weigh(__m512 weight, __m512 scale) {
    return _mm512_maskz_mul_ps(_mm512_cmp_ps_mask(weight, _mm512_setzero_ps(), _CMP_NEQ_UQ), weight, scale);
  }
  /** The larger of positive values or NaN, as bits. */
  static Int largest_bits(Int largest, __m512 v) { return _mm512_max_epu32(largest, _mm512_castps_si512(v)); }
  static uint32_t highest(Int largest) { return _mm512_reduce_max_epu32(largest); }
  /** Stores the nearest integers of two vectors; adds them to `sums`. */
  static Int store_levels(__m512 a, __m512 b, int16_t* out, Int sums) {
    const Int packed = _mm512_packs_epi32(_mm512_cvtps_epi32(a), _mm512_cvtps_epi32(b));
    const Int words = _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7), packed);
    _mm512_storeu_si512(out, words);
    return _mm512_dpwssd_epi32(sums, words, _mm512_set1_epi16(1));
  }
};

constexpr AttentionKernel kFloat{4, copy_floats, run_range<Float>, score_range<Float>, bound_pages<Float>, merge_rows};
constexpr AttentionKernel kBf16{2, copy_bf16, run_range<Dot>, score_range<Dot>, bound_pages<Dot>, merge_rows};

}  // namespace

const AttentionKernel* attention_kernel_avx512(KvType type) { return choose_kernel(type, kBf16, kFloat, q8_kernel<Words>); }

}  // namespace kvasir
