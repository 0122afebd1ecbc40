// Row kernels for AVX2 and FMA.
#include "rows.hpp"

#if defined(__x86_64__)
#include "rows_lanes.hpp"

namespace kvasir {
const RowKernels kAvx2RowKernels = kRowKernels;
}
#endif
