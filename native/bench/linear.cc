// The choice of the peak loop for an input form, and its timing.
#include "bench/linear.hpp"

#include <algorithm>
#include <chrono>

#include "simd/amx_tiles.hpp"

namespace kvasir {
namespace {

constexpr int kRuns = 5;
constexpr double kRunSeconds = 0.02;

PeakLoop word_loop([[maybe_unused]] Isa isa) {
#if KVASIR_HAVE_AVX512
  if (isa >= Isa::avx512) return i16_peak_loop_avx512();
#endif
#if KVASIR_HAVE_AVX2
  if (isa == Isa::avx2) return i16_peak_loop_avx2();
#endif
  return peak_loop_portable();
}

PeakLoop product_loop(Isa isa, InputForm form) {
  // Emulated AMX has no peak of its own: it runs on AVX-512.
  if (isa == Isa::amx && amx_emulated()) isa = Isa::avx512;
  if (form == InputForm::f32) return find_peak_loop(isa == Isa::amx ? Isa::avx512 : isa, KvType::f32);
  if (form == InputForm::bf16) return find_peak_loop(isa, KvType::bf16);
  if (form == InputForm::i16) return word_loop(isa);
#if KVASIR_HAVE_AMX
  if (isa == Isa::amx) return int8_peak_loop_amx();
#endif
#if KVASIR_HAVE_AVX512
  if (isa == Isa::avx512) return int8_peak_loop_avx512();
#endif
#if KVASIR_HAVE_AVX2
  if (isa == Isa::avx2) return int8_peak_loop_avx2();
#endif
  return peak_loop_portable();
}

double seconds_of(ThreadPool& pool, const PeakLoop& loop, int iterations) {
  const auto start = std::chrono::steady_clock::now();
  pool.run(pool.size(), [&](int, int) { loop.run(iterations); });
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

double product_peak(ThreadPool& pool, Isa isa, InputForm form) {
  const PeakLoop loop = product_loop(isa, form);
  int iterations = 1 << 12;
  while (iterations < (1 << 28) && seconds_of(pool, loop, iterations) < kRunSeconds) iterations *= 2;
  double best = seconds_of(pool, loop, iterations);
  for (int i = 1; i < kRuns; i++) best = std::min(best, seconds_of(pool, loop, iterations));
  return loop.flops_per_iteration * iterations * pool.size() / best;
}

}  // namespace kvasir
