// Row kernels for AVX-512 (used with AMX too).
#include "ops/rows_lanes.hpp"

namespace kvasir {
const RowKernels kAvx512RowKernels = kRowKernels;
}  // namespace kvasir
