// The choice of the peak loop, and the portable one.
#include "bench/peak.hpp"

namespace kvasir {
namespace {

typedef float Lanes __attribute__((vector_size(16)));
constexpr int kSums = 12;

void run_portable(int iterations) {
  Lanes sums[kSums];
#pragma GCC unroll 12
  for (int k = 0; k < kSums; k++) sums[k] = Lanes{static_cast<float>(k)};  // equal values would be computed once
  Lanes factor = {0.5f, 0.5f, 0.5f, 0.5f};
  for (int i = 0; i < iterations; i++) {
#pragma GCC unroll 12
    for (int k = 0; k < kSums; k++) sums[k] = sums[k] * factor + factor;
  }
  volatile float keep = 0;
#pragma GCC unroll 12
  for (int k = 0; k < kSums; k++) keep = keep + sums[k][0];
}

}  // namespace

PeakLoop peak_loop_portable() { return {kSums * 4 * 2.0, run_portable}; }

PeakLoop find_peak_loop(Isa isa, KvType type) {
#if defined(KVASIR_HAVE_AMX)
  if (isa == Isa::amx && type == KvType::bf16) return peak_loop_amx();
#endif
#if defined(KVASIR_HAVE_AVX512)
  if (isa == Isa::avx512 || isa == Isa::amx) return peak_loop_avx512(type);
#endif
#if defined(KVASIR_HAVE_AVX2)
  if (isa == Isa::avx2) return peak_loop_avx2();
#endif
  (void)isa;
  (void)type;
  return peak_loop_portable();
}

}  // namespace kvasir
