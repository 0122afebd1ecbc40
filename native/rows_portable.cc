// Row kernels without instruction set extensions, and the choice among all.
#include "rows_lanes.hpp"

namespace kvasir {

const RowKernels kPortableRowKernels = kRowKernels;

const RowKernels& row_kernels(Isa isa) {
#if defined(__x86_64__)
  if (isa == Isa::avx2) return kAvx2RowKernels;
  if (isa != Isa::portable) return kAvx512RowKernels;
#endif
  (void)isa;
  return kPortableRowKernels;
}

}  // namespace kvasir
