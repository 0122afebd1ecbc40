// Float32 chains on AVX2: the f32 form and, with weights and inputs rounded to bf16, the bf16 form.
#include <immintrin.h>

#include "linear_chain.hpp"

namespace kvasir {
namespace {

struct Avx2 {
  using Float = __m256;
  using Int = __m256i;
  static constexpr int kLanes = 8;
  static constexpr int kTileRows = 6;
  static constexpr int kWidePanels = 4;

  static Float zero() { return _mm256_setzero_ps(); }
  static Float load(const float* p) { return _mm256_loadu_ps(p); }
  static void store(float* p, Float v) { _mm256_storeu_ps(p, v); }
  static Float broadcast(float x) { return _mm256_set1_ps(x); }
  static Float mul(Float a, Float b) { return _mm256_mul_ps(a, b); }
  static Float fma(Float a, Float b, Float c) { return _mm256_fmadd_ps(a, b, c); }
  static __m128i load128(const uint8_t* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); }
  static Int load256(const uint8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
  static Float load_f16(const uint8_t* p) { return _mm256_cvtph_ps(load128(p)); }
  static Float load_bf16(const uint8_t* p) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load128(p)), 16)); }
  /** Nearest even; NaN stays NaN; subnormals are kept. */
  static Float round_bf16(Float x) {
    __m256i u = _mm256_castps_si256(x);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(u, _mm256_set1_epi32(0x7fff)), odd);
    __m256 kept = _mm256_castsi256_ps(_mm256_and_si256(rounded, _mm256_set1_epi32(static_cast<int>(0xffff0000u))));
    return _mm256_blendv_ps(kept, x, _mm256_cmp_ps(x, x, _CMP_UNORD_Q));
  }
  static Int nibble(const uint8_t* p, int shift) {
    return _mm256_and_si256(_mm256_srl_epi32(load256(p), _mm_cvtsi32_si128(shift)), _mm256_set1_epi32(15));
  }
  static Int byte(const uint8_t* p, int shift) {
    return _mm256_and_si256(_mm256_srl_epi32(load256(p), _mm_cvtsi32_si128(shift)), _mm256_set1_epi32(255));
  }
  static Int add(Int a, int b) { return _mm256_add_epi32(a, _mm256_set1_epi32(b)); }
  static Float to_float(Int a) { return _mm256_cvtepi32_ps(a); }
};

}  // namespace

void linear_f32_avx2(const Segment& s, const Product& p, const Share& share) { Chain<Avx2, false>::run(s, p, share); }
void linear_bf16_avx2(const Segment& s, const Product& p, const Share& share) { Chain<Avx2, true>::run(s, p, share); }

}  // namespace kvasir
