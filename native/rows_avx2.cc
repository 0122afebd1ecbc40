// Row kernels for AVX2 and FMA.
#include "rows_lanes.hpp"

namespace kvasir {
const RowKernels kAvx2RowKernels = kRowKernels;
}  // namespace kvasir
