// Peaks on AVX2 of byte products (unsigned times signed bytes, pairs added in 16 bits; kernels widen them once per block
// at best) and of word products, added in 32 bits.
#include <immintrin.h>

#include "bench/linear.hpp"

namespace kvasir {
namespace {

constexpr int kSums = 8;

/** In assembly, with named sums: g++ 12 moves an array of sums through memory. */
void run_products(int iterations) {
  __m256i weights = _mm256_set1_epi8(3), inputs = _mm256_set1_epi8(5);
  __m256i a = _mm256_setzero_si256(), b = a, c = a, d = a, e = a, f = a, g = a, h = a, even = a, odd = a;
  for (int turn = 0; turn < iterations; turn++) {
    asm volatile(
        "vpmaddubsw %11, %10, %8\n\tvpaddw %8, %0, %0\n\tvpmaddubsw %11, %10, %9\n\tvpaddw %9, %1, %1\n\t"
        "vpmaddubsw %11, %10, %8\n\tvpaddw %8, %2, %2\n\tvpmaddubsw %11, %10, %9\n\tvpaddw %9, %3, %3\n\t"
        "vpmaddubsw %11, %10, %8\n\tvpaddw %8, %4, %4\n\tvpmaddubsw %11, %10, %9\n\tvpaddw %9, %5, %5\n\t"
        "vpmaddubsw %11, %10, %8\n\tvpaddw %8, %6, %6\n\tvpmaddubsw %11, %10, %9\n\tvpaddw %9, %7, %7"
        : "+x"(a), "+x"(b), "+x"(c), "+x"(d), "+x"(e), "+x"(f), "+x"(g), "+x"(h), "+x"(even), "+x"(odd)
        : "x"(weights), "x"(inputs));
  }
}

void run_words(int iterations) {
  __m256i weights = _mm256_set1_epi16(3), inputs = _mm256_set1_epi16(5);
  __m256i a = _mm256_setzero_si256(), b = a, c = a, d = a, e = a, f = a, g = a, h = a, even = a, odd = a;
  for (int turn = 0; turn < iterations; turn++) {
    asm volatile(
        "vpmaddwd %11, %10, %8\n\tvpaddd %8, %0, %0\n\tvpmaddwd %11, %10, %9\n\tvpaddd %9, %1, %1\n\t"
        "vpmaddwd %11, %10, %8\n\tvpaddd %8, %2, %2\n\tvpmaddwd %11, %10, %9\n\tvpaddd %9, %3, %3\n\t"
        "vpmaddwd %11, %10, %8\n\tvpaddd %8, %4, %4\n\tvpmaddwd %11, %10, %9\n\tvpaddd %9, %5, %5\n\t"
        "vpmaddwd %11, %10, %8\n\tvpaddd %8, %6, %6\n\tvpmaddwd %11, %10, %9\n\tvpaddd %9, %7, %7"
        : "+x"(a), "+x"(b), "+x"(c), "+x"(d), "+x"(e), "+x"(f), "+x"(g), "+x"(h), "+x"(even), "+x"(odd)
        : "x"(weights), "x"(inputs));
  }
}

}  // namespace

PeakLoop int8_peak_loop_avx2() { return {kSums * 32 * 2.0, run_products}; }
PeakLoop i16_peak_loop_avx2() { return {kSums * 16 * 2.0, run_words}; }

}  // namespace kvasir
