// Peak of AMX: products of full bf16 tiles into four accumulators.
#include "bench/peak.hpp"
#include "simd/amx_tiles.hpp"

namespace kvasir {
namespace {

void run_tiles(int iterations) {
  alignas(64) uint8_t zeros[16][64] = {};
  TileConfig config;
  for (int tile = 0; tile < 8; tile++) config.set(tile, 16, 64);
  tile_configure(config);
  tile_load<4>(zeros, 64);
  tile_load<5>(zeros, 64);
  tile_load<6>(zeros, 64);
  tile_load<7>(zeros, 64);
  for (int i = 0; i < iterations / 16; i++) {
    tile_dpbf16<0, 4, 6>();
    tile_dpbf16<1, 4, 7>();
    tile_dpbf16<2, 5, 6>();
    tile_dpbf16<3, 5, 7>();
  }
  tile_release();
}

}  // namespace

PeakLoop peak_loop_amx() { return {4 * 16 * 16 * 64.0 / 16, run_tiles}; }

}  // namespace kvasir
