// Vectors of 16 columns for the types of planes on AVX-512. Internal linkage: include it only in files compiled for
// AVX-512.
#pragma once
#include "linear/kernels/avx512.hpp"
#include "linear/kernels/planes.hpp"

namespace kvasir {
namespace {

struct PlanesAvx512 {
  using Word = __m512i;
  using Codes = Word;
  using Float = __m512;
  using Int = __m512i;
  static constexpr int kLanes = 16;

  static KVASIR_INLINE Word load(const uint8_t* p) { return load512(p); }
  static KVASIR_INLINE Word shift(Word w, int n) { return n > 0 ? _mm512_srli_epi16(w, static_cast<unsigned>(n)) : n < 0 ? _mm512_slli_epi16(w, static_cast<unsigned>(-n)) : w; }
  static KVASIR_INLINE Word keep(Word w, int mask) { return _mm512_and_si512(w, _mm512_set1_epi8(static_cast<char>(mask))); }
  static KVASIR_INLINE Word either(Word a, Word b) { return _mm512_or_si512(a, b); }
  static KVASIR_INLINE Codes prepare(Word w) { return w; }
  static KVASIR_INLINE Float code(Word w, int e) {
    // One shuffle instead of a shift and a mask: byte e of each dword, zeros above.
    const __m512i place = _mm512_set4_epi32(static_cast<int>(0x8080800cu), static_cast<int>(0x80808008u), static_cast<int>(0x80808004u), static_cast<int>(0x80808000u));
    return _mm512_cvtepi32_ps(_mm512_shuffle_epi8(w, _mm512_add_epi8(place, _mm512_set1_epi32(e))));
  }
  static KVASIR_INLINE Float f16(const uint8_t* p) { return load_f16(p); }
  static KVASIR_INLINE Float int8(const uint8_t* p) { return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))); }
  static KVASIR_INLINE Float set(float x) { return _mm512_set1_ps(x); }
  static KVASIR_INLINE Float mul(Float a, Float b) { return _mm512_mul_ps(a, b); }
  static KVASIR_INLINE Float fma(Float a, Float b, Float c) { return _mm512_fmadd_ps(a, b, c); }
  static KVASIR_INLINE Float load_floats(const float* p) { return _mm512_load_ps(p); }
  static KVASIR_INLINE void store_floats(float* p, Float v) { _mm512_store_ps(p, v); }
  static KVASIR_INLINE Float to_float(Int a) { return _mm512_cvtepi32_ps(a); }

  /** first + the products of GROUPS groups of codes with their inputs; codes are at most MAX. */
  template <int GROUPS, int MAX>
  static KVASIR_INLINE Int dot(const Codes* codes, const int8_t* x, int first) {
    Int sum = _mm512_set1_epi32(first);
#pragma GCC unroll 8
    for (int g = 0; g < GROUPS; g++) sum = _mm512_dpbusd_epi32(sum, codes[g], broadcast_i32(reinterpret_cast<const uint8_t*>(x + 4 * g)));
    return sum;
  }
};

}  // namespace
}  // namespace kvasir
