// What `kvasir bench kernel gemm` compares linear layers with: the arithmetic peak of the instruction that each input form multiplies by.
#pragma once
#include "base/thread_pool.hpp"
#include "base/types.hpp"
#include "bench/peak.hpp"

namespace kvasir {

/** Operations per second (a multiply and an add are two) of independent products in registers. */
double product_peak(ThreadPool& pool, Isa isa, InputForm form);

PeakLoop int8_peak_loop_avx2();
PeakLoop int8_peak_loop_avx512();
PeakLoop int8_peak_loop_amx();

}  // namespace kvasir
