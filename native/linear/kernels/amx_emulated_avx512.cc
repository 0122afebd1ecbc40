// The AMX kernels on emulated tiles: tests check their logic and bits on machines without AMX.
#define KVASIR_AMX_EMULATED
#include "linear/kernels/amx.hpp"

namespace kvasir {

void linear_bf16_amx_emulated(const Segment& s, const Product& p, const Share& share) { bf16_on_tiles(s, p, share); }
void linear_int8_amx_emulated(const Segment& s, const Product& p, const Share& share) { int8_on_tiles(s, p, share); }

}  // namespace kvasir
