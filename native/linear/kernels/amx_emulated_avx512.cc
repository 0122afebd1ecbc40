// The AMX kernels over emulated tiles, so that their logic and their bits are tested on machines without AMX.
#define KVASIR_AMX_EMULATED
#include "linear/kernels/amx.hpp"

namespace kvasir {

void linear_bf16_amx_emulated(const Segment& s, const Product& p, const Share& share) { bf16_on_tiles(s, p, share); }
void linear_int8_amx_emulated(const Segment& s, const Product& p, const Share& share) { int8_on_tiles(s, p, share); }

}  // namespace kvasir
