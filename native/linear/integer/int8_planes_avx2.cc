// Linear layers with int8 inputs and weights of the types of planes (planes.hpp), for AVX2.
#include "linear/integer/int8_planes.hpp"
#include "linear/kernels/planes_avx2.hpp"

namespace kvasir {

void linear_int8_planes_avx2(const Segment& s, const Product& p, const Share& share) { run_planes<PlanesAvx2>(s, p, share); }

}  // namespace kvasir
