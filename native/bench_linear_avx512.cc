// Peak of byte products on AVX-512 VNNI.
#include <immintrin.h>

#include "bench_linear.hpp"

namespace kvasir {
namespace {

constexpr int kSums = 24;

void run_products(int iterations) {
  __m512i sums[kSums];
  for (__m512i& sum : sums) sum = _mm512_setzero_si512();
  __m512i weights = _mm512_set1_epi8(3), inputs = _mm512_set1_epi8(5);
  for (int i = 0; i < iterations; i++) {
#pragma GCC unroll 24
    for (int k = 0; k < kSums; k++) sums[k] = _mm512_dpbusd_epi32(sums[k], weights, inputs);
  }
  volatile int keep = 0;
  for (const __m512i& sum : sums) keep = keep + _mm512_cvtsi512_si32(sum);
}

}  // namespace

PeakLoop int8_peak_loop_avx512() { return {kSums * 64 * 2.0, run_products}; }

}  // namespace kvasir
