// The roof of `kvasir bench kernel gemm`: the arithmetic peak of the instruction that each input form multiplies with.
#pragma once
#include "base/thread_pool.hpp"
#include "base/types.hpp"
#include "bench/peak.hpp"

namespace kvasir {

/** Operations per second of independent products in registers; a multiply and an add count as two. */
double product_peak(ThreadPool& pool, Isa isa, InputForm form);

PeakLoop int8_peak_loop_avx2();
PeakLoop int8_peak_loop_avx512();
PeakLoop int8_peak_loop_amx();
PeakLoop i16_peak_loop_avx2();
PeakLoop i16_peak_loop_avx512();

}  // namespace kvasir
