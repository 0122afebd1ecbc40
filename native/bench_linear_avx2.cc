// Peak of byte products on AVX2: unsigned times signed bytes, pairs widened to int32, added.
#include <immintrin.h>

#include "bench_linear.hpp"

namespace kvasir {
namespace {

constexpr int kSums = 12;

void run_products(int iterations) {
  __m256i sums[kSums];
  for (__m256i& sum : sums) sum = _mm256_setzero_si256();
  __m256i weights = _mm256_set1_epi8(3), ones = _mm256_set1_epi16(1);
  for (int i = 0; i < iterations; i++) {
    // Hides from the compiler that every turn multiplies the same.
    asm volatile("" : "+x"(weights));
#pragma GCC unroll 12
    for (int k = 0; k < kSums; k++) {
      __m256i pairs = _mm256_maddubs_epi16(weights, _mm256_xor_si256(weights, sums[k]));
      sums[k] = _mm256_add_epi32(sums[k], _mm256_madd_epi16(pairs, ones));
    }
  }
  volatile int keep = 0;
  for (const __m256i& sum : sums) keep = keep + _mm256_cvtsi256_si32(sum);
}

}  // namespace

PeakLoop int8_peak_loop_avx2() { return {kSums * 32 * 2.0, run_products}; }

}  // namespace kvasir
