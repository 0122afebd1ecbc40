// Row kernels for AVX2 and FMA.
#include "ops/rows_lanes.hpp"

namespace kvasir {
const RowKernels kAvx2RowKernels = kRowKernels;
}  // namespace kvasir
