// Peak of AVX2: eight-lane fused multiply-adds (bf16 is widened, so both forms have this peak).
#include <immintrin.h>

#include "bench/peak.hpp"

namespace kvasir {
namespace {

constexpr int kSums = 12;

void run_fma(int iterations) {
  __m256 sums[kSums];
  for (__m256& sum : sums) sum = _mm256_setzero_ps();
  __m256 factor = _mm256_set1_ps(0.5f);
  for (int i = 0; i < iterations; i++) {
#pragma GCC unroll 16
    for (int k = 0; k < kSums; k++) sums[k] = _mm256_fmadd_ps(sums[k], factor, factor);
  }
  volatile float keep = 0;
  for (const __m256& sum : sums) keep = keep + _mm256_cvtss_f32(sum);
}

}  // namespace

PeakLoop peak_loop_avx2() { return {kSums * 8 * 2.0, run_fma}; }

}  // namespace kvasir
