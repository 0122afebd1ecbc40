// Float32 chains on AVX-512: the f32 form.
#include "linear/kernels/chain.hpp"
#include "linear/kernels/planes_avx512.hpp"

namespace kvasir {
namespace {

struct Avx512 {
  using Float = __m512;
  using Int = __m512i;
  using Planes = PlanesAvx512;
  static constexpr int kLanes = 16;
  static constexpr int kTileRows = 12;
  static constexpr int kDirectPanels = 4;

  static Float zero() { return _mm512_setzero_ps(); }
  static Float load(const float* p) { return _mm512_loadu_ps(p); }
  static void store(float* p, Float v) { _mm512_storeu_ps(p, v); }
  static Float broadcast(float x) { return _mm512_set1_ps(x); }
  static Float mul(Float a, Float b) { return _mm512_mul_ps(a, b); }
  static Float fma(Float a, Float b, Float c) { return _mm512_fmadd_ps(a, b, c); }
  static Float load_f16(const uint8_t* p) { return kvasir::load_f16(p); }
  static Float load_bf16(const uint8_t* p) {
    __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
  }
  static Int load_int(const uint8_t* p) { return load512(p); }
  static Int bits(Int a, int32_t mask) { return _mm512_and_si512(a, _mm512_set1_epi32(mask)); }
  template <int SHIFT>
  static Int shift_down(Int a) {
    return _mm512_srli_epi32(a, SHIFT);
  }
  static Float to_float(Int a) { return _mm512_cvtepi32_ps(a); }
};

}  // namespace

void linear_chain_avx512(const Segment& s, const Product& p, const Share& share) { Chain<Avx512>::run(s, p, share); }

}  // namespace kvasir
