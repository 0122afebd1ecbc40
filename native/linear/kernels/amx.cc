// Linear kernels on AMX tiles.
#include "linear/kernels/amx.hpp"

namespace kvasir {

void linear_bf16_amx(const Segment& s, const Product& p, const Share& share) { bf16_on_tiles(s, p, share); }
void linear_int8_amx(const Segment& s, const Product& p, const Share& share) { int8_on_tiles(s, p, share); }

}  // namespace kvasir
