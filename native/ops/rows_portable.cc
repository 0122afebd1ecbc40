// Portable row kernels, and the choice among all.
#include "ops/rows_lanes.hpp"

namespace kvasir {

const RowKernels kPortableRowKernels = kRowKernels;

const RowKernels& row_kernels(Isa isa) {
#if defined(KVASIR_HAVE_AVX512)
  if (isa == Isa::avx512 || isa == Isa::amx) return kAvx512RowKernels;
#endif
#if defined(KVASIR_HAVE_AVX2)
  if (isa == Isa::avx2) return kAvx2RowKernels;
#endif
  (void)isa;
  return kPortableRowKernels;
}

}  // namespace kvasir
