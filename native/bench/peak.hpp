// Loops of independent multiply-adds in registers, one for each instruction of attention.
#pragma once
#include "base/types.hpp"

namespace kvasir {

struct PeakLoop {
  double flops_per_iteration;
  void (*run)(int iterations);
};

PeakLoop find_peak_loop(Isa isa, KvType type);

PeakLoop peak_loop_portable();
PeakLoop peak_loop_avx2();
PeakLoop peak_loop_avx512(KvType type);
PeakLoop peak_loop_amx();

}  // namespace kvasir
