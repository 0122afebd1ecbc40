// Peaks of byte and of word products on AVX-512 VNNI.
#include <immintrin.h>

#include "bench/linear.hpp"

namespace kvasir {
namespace {

constexpr int kSums = 12;

/** In assembly, with named sums: g++ 12 moves an array of sums through memory. */
void run_products(int iterations) {
  __m512i weights = _mm512_set1_epi8(3), inputs = _mm512_set1_epi8(5);
  __m512i a = _mm512_setzero_si512(), b = a, c = a, d = a, e = a, f = a, g = a, h = a, i = a, j = a, k = a, l = a;
  for (int turn = 0; turn < iterations; turn++) {
    asm volatile(
        "vpdpbusd %13, %12, %0\n\tvpdpbusd %13, %12, %1\n\tvpdpbusd %13, %12, %2\n\tvpdpbusd %13, %12, %3\n\t"
        "vpdpbusd %13, %12, %4\n\tvpdpbusd %13, %12, %5\n\tvpdpbusd %13, %12, %6\n\tvpdpbusd %13, %12, %7\n\t"
        "vpdpbusd %13, %12, %8\n\tvpdpbusd %13, %12, %9\n\tvpdpbusd %13, %12, %10\n\tvpdpbusd %13, %12, %11"
        : "+v"(a), "+v"(b), "+v"(c), "+v"(d), "+v"(e), "+v"(f), "+v"(g), "+v"(h), "+v"(i), "+v"(j), "+v"(k), "+v"(l)
        : "v"(weights), "v"(inputs));
  }
}

void run_words(int iterations) {
  __m512i weights = _mm512_set1_epi16(3), inputs = _mm512_set1_epi16(5);
  __m512i a = _mm512_setzero_si512(), b = a, c = a, d = a, e = a, f = a, g = a, h = a, i = a, j = a, k = a, l = a;
  for (int turn = 0; turn < iterations; turn++) {
    asm volatile(
        "vpdpwssd %13, %12, %0\n\tvpdpwssd %13, %12, %1\n\tvpdpwssd %13, %12, %2\n\tvpdpwssd %13, %12, %3\n\t"
        "vpdpwssd %13, %12, %4\n\tvpdpwssd %13, %12, %5\n\tvpdpwssd %13, %12, %6\n\tvpdpwssd %13, %12, %7\n\t"
        "vpdpwssd %13, %12, %8\n\tvpdpwssd %13, %12, %9\n\tvpdpwssd %13, %12, %10\n\tvpdpwssd %13, %12, %11"
        : "+v"(a), "+v"(b), "+v"(c), "+v"(d), "+v"(e), "+v"(f), "+v"(g), "+v"(h), "+v"(i), "+v"(j), "+v"(k), "+v"(l)
        : "v"(weights), "v"(inputs));
  }
}

}  // namespace

PeakLoop int8_peak_loop_avx512() { return {kSums * 64 * 2.0, run_products}; }
PeakLoop i16_peak_loop_avx512() { return {kSums * 32 * 2.0, run_words}; }

}  // namespace kvasir
