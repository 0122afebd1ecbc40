// Row kernels for AVX-512 (used with AMX too).
#include "rows.hpp"

#if defined(__x86_64__)
#include "rows_lanes.hpp"

namespace kvasir {
const RowKernels kAvx512RowKernels = kRowKernels;
}
#endif
