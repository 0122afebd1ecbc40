// int8 inputs and types of planes on AVX-512.
#include "linear/integer/int8_planes.hpp"
#include "linear/kernels/planes_avx512.hpp"

namespace kvasir {

void linear_int8_planes_avx512(const Segment& s, const Product& p, const Share& share) { run_planes<PlanesAvx512>(s, p, share); }

}  // namespace kvasir
