// Float32 chains on AVX2: the f32 form and, with inputs rounded to bf16, the bf16 form.
#include <immintrin.h>

#include "linear/kernels/chain.hpp"
#include "linear/kernels/planes_avx2.hpp"

namespace kvasir {
namespace {

struct Avx2 {
  using Float = __m256;
  using Int = __m256i;
  using Planes = PlanesAvx2;
  static constexpr int kLanes = 8;
  static constexpr int kTileRows = 6;
  static constexpr int kDirectPanels = 2;

  static Float zero() { return _mm256_setzero_ps(); }
  static Float load(const float* p) { return _mm256_loadu_ps(p); }
  static void store(float* p, Float v) { _mm256_storeu_ps(p, v); }
  static Float broadcast(float x) { return _mm256_set1_ps(x); }
  static Float mul(Float a, Float b) { return _mm256_mul_ps(a, b); }
  static Float fma(Float a, Float b, Float c) { return _mm256_fmadd_ps(a, b, c); }
  static __m128i load128(const uint8_t* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); }
  static Float load_f16(const uint8_t* p) { return _mm256_cvtph_ps(load128(p)); }
  static Float load_bf16(const uint8_t* p) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load128(p)), 16)); }
  static Int load_int(const uint8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
  static Int bits(Int a, int32_t mask) { return _mm256_and_si256(a, _mm256_set1_epi32(mask)); }
  template <int SHIFT>
  static Int shift_down(Int a) {
    return _mm256_srli_epi32(a, SHIFT);
  }
  static Float to_float(Int a) { return _mm256_cvtepi32_ps(a); }
};

}  // namespace

void linear_chain_avx2(const Segment& s, const Product& p, const Share& share) { Chain<Avx2>::run(s, p, share); }

}  // namespace kvasir
