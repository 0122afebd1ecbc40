// Row kernels for AVX-512, also used with AMX.
#include "ops/rows_lanes.hpp"

namespace kvasir {
const RowKernels kAvx512RowKernels = kRowKernels;
}  // namespace kvasir
