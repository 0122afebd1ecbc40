// Vectors of 8 columns for the types of planes on AVX2. Internal linkage: include it only in files compiled for AVX2.
#pragma once
#include <immintrin.h>

#include "linear/kernels/planes.hpp"

namespace kvasir {
namespace {

struct PlanesAvx2 {
  using Word = __m256i;
  using Codes = Word;
  using Float = __m256;
  using Int = __m256i;
  static constexpr int kLanes = 8;

  static KVASIR_INLINE Word load(const uint8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
  static KVASIR_INLINE Word shift(Word w, int n) { return n > 0 ? _mm256_srli_epi16(w, n) : n < 0 ? _mm256_slli_epi16(w, -n) : w; }
  static KVASIR_INLINE Word keep(Word w, int mask) { return _mm256_and_si256(w, _mm256_set1_epi8(static_cast<char>(mask))); }
  static KVASIR_INLINE Word either(Word a, Word b) { return _mm256_or_si256(a, b); }
  static KVASIR_INLINE Codes prepare(Word w) { return w; }
  static KVASIR_INLINE Float code(Word w, int e) { return _mm256_cvtepi32_ps(_mm256_and_si256(_mm256_srli_epi32(w, 8 * e), _mm256_set1_epi32(255))); }
  static KVASIR_INLINE Float f16(const uint8_t* p) { return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))); }
  static KVASIR_INLINE Float int8(const uint8_t* p) { return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)))); }
  static KVASIR_INLINE Float set(float x) { return _mm256_set1_ps(x); }
  static KVASIR_INLINE Float mul(Float a, Float b) { return _mm256_mul_ps(a, b); }
  static KVASIR_INLINE Float fma(Float a, Float b, Float c) { return _mm256_fmadd_ps(a, b, c); }
  static KVASIR_INLINE Float load_floats(const float* p) { return _mm256_load_ps(p); }
  static KVASIR_INLINE void store_floats(float* p, Float v) { _mm256_store_ps(p, v); }
  static KVASIR_INLINE Float to_float(Int a) { return _mm256_cvtepi32_ps(a); }

  /** first + the products of GROUPS groups of codes with their inputs; codes are at most MAX. */
  template <int GROUPS, int MAX>
  static KVASIR_INLINE Int dot(const Codes* codes, const int8_t* x, int first) {
    // Pairs of products are summed in 16 bits as long as they cannot overflow.
    constexpr int kJoined = 32767 / (2 * 127 * MAX) < GROUPS ? 32767 / (2 * 127 * MAX) : GROUPS;
    static_assert(GROUPS % kJoined == 0, "whole runs");
    Int sum = _mm256_set1_epi32(first);
#pragma GCC unroll 8
    for (int g = 0; g < GROUPS; g += kJoined) {
      __m256i pairs = products(codes[g], x + 4 * g);
#pragma GCC unroll 8
      for (int i = 1; i < kJoined; i++) pairs = _mm256_add_epi16(pairs, products(codes[g + i], x + 4 * (g + i)));
      sum = _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
    }
    return sum;
  }

 private:
  static KVASIR_INLINE __m256i products(Word codes, const int8_t* x) {
    int four;
    __builtin_memcpy(&four, x, sizeof four);
    return _mm256_maddubs_epi16(codes, _mm256_set1_epi32(four));
  }
};

}  // namespace
}  // namespace kvasir
