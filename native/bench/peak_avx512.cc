// Peaks of AVX-512: sixteen-lane fused multiply-adds, and pairs of bf16 by vdpbf16ps.
#include <immintrin.h>

#include "bench/peak.hpp"

namespace kvasir {
namespace {

constexpr int kSums = 24;

void keep_sums(const __m512* sums) {
  volatile float keep = 0;
  for (int k = 0; k < kSums; k++) keep = keep + _mm512_cvtss_f32(sums[k]);
}

void run_fma(int iterations) {
  __m512 sums[kSums];
  for (__m512& sum : sums) sum = _mm512_setzero_ps();
  __m512 factor = _mm512_set1_ps(0.5f);
  for (int i = 0; i < iterations; i++) {
#pragma GCC unroll 24
    for (int k = 0; k < kSums; k++) sums[k] = _mm512_fmadd_ps(sums[k], factor, factor);
  }
  keep_sums(sums);
}

void run_dot(int iterations) {
  __m512 sums[kSums];
  for (__m512& sum : sums) sum = _mm512_setzero_ps();
  __m512bh one = (__m512bh)_mm512_set1_epi32(0x3f803f80);
  for (int i = 0; i < iterations; i++) {
#pragma GCC unroll 24
    for (int k = 0; k < kSums; k++) sums[k] = _mm512_dpbf16_ps(sums[k], one, one);
  }
  keep_sums(sums);
}

}  // namespace

PeakLoop peak_loop_avx512(KvType type) {
  if (type == KvType::f32) return {kSums * 16 * 2.0, run_fma};
  return {kSums * 16 * 4.0, run_dot};
}

}  // namespace kvasir
