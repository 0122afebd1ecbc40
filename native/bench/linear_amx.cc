// Peak of byte products on AMX: full tiles into four accumulators.
#include "bench/linear.hpp"
#include "simd/amx_tiles.hpp"

namespace kvasir {
namespace {

constexpr int kTurns = 16;  // iterations counted per turn of the loop, comparable with those of registers

void run_tiles(int iterations) {
  alignas(64) uint8_t zeros[16][64] = {};
  TileConfig config;
  for (int tile = 0; tile < 8; tile++) config.set(tile, 16, 64);
  tile_configure(config);
  tile_load<4>(zeros, 64);
  tile_load<5>(zeros, 64);
  tile_load<6>(zeros, 64);
  tile_load<7>(zeros, 64);
  for (int i = 0; i < iterations / kTurns; i++) {
    tile_dpbssd<0, 4, 6>();
    tile_dpbssd<1, 4, 7>();
    tile_dpbssd<2, 5, 6>();
    tile_dpbssd<3, 5, 7>();
  }
  tile_release();
}

}  // namespace

PeakLoop int8_peak_loop_amx() { return {4 * 16 * 16 * 64 * 2.0 / kTurns, run_tiles}; }

}  // namespace kvasir
