// Attention on AMX tiles: scores and values by TDPBF16PS, weights on AVX-512. Internal linkage: compiled once for tiles
// and once for their emulation.
#pragma once
#include "attention/kernels/lanes_avx512.hpp"
#include "simd/amx_tiles.hpp"

namespace kvasir {
namespace {

// Tile registers: two blocks of 16 columns of c, then a and the two blocks of b for 16 pairs, then the same for a
// remainder of 8 pairs.
constexpr int kC0 = 0, kC1 = 1, kA = 2, kB0 = 3, kB1 = 4, kHalfA = 5, kHalfB0 = 6, kHalfB1 = 7;
constexpr int kTilePairs = 16, kHalfPairs = 8, kTileBytes = 64;

/** Row count of the current tile configuration; 0: another kernel may have configured the tiles since. */
inline int& configured_rows() {
  static thread_local int rows = 0;
  return rows;
}

inline void configure_rows(int rows) {
  if (configured_rows() == rows) return;
  TileConfig config;
  for (int c : {kC0, kC1}) config.set(c, rows, kTileBytes);
  config.set(kA, rows, 4 * kTilePairs);
  config.set(kHalfA, rows, 4 * kHalfPairs);
  for (int b : {kB0, kB1}) config.set(b, kTilePairs, kTileBytes);
  for (int b : {kHalfB0, kHalfB1}) config.set(b, kHalfPairs, kTileBytes);
  tile_configure(config);
  configured_rows() = rows;
}

/** A block of c, up to 16 rows by 16 or 32 columns. */
struct TileBlock {
  const uint16_t* a;
  int a_bytes;  // of a row
  const uint8_t* const* pages;
  ptrdiff_t b_offset;  // of the block's first column in a page
  int b_bytes;         // of a step
  int page_count;
  int steps;  // a multiple of 8
  float* c;
  int c_bytes;
  Into into;
  int prefetch_pages;
};

template <bool Wide>
void prefetch_operand(const uint8_t* from, int b_bytes, int rows, ptrdiff_t ahead) {
  for (int r = 0; r < rows; r++) {
    __builtin_prefetch(from + r * static_cast<ptrdiff_t>(b_bytes) + ahead);
    if (Wide) __builtin_prefetch(from + r * static_cast<ptrdiff_t>(b_bytes) + ahead + kTileBytes);
  }
}

template <bool Wide, int A, int B0, int B1>
void multiply_tiles(const TileBlock& block, const uint16_t* a, const uint8_t* b) {
  tile_load<A>(a, block.a_bytes);
  tile_load<B0>(b, block.b_bytes);
  tile_dpbf16<kC0, A, B0>();
  if (Wide) {
    tile_load<B1>(b + kTileBytes, block.b_bytes);
    tile_dpbf16<kC1, A, B1>();
  }
}

template <bool Wide>
void run_block(const TileBlock& block) {
  if (block.into == Into::nothing) {
    tile_zero<kC0>();
    if (Wide) tile_zero<kC1>();
  } else {
    tile_load<kC0>(block.c, block.c_bytes);
    if (Wide) tile_load<kC1>(block.c + 16, block.c_bytes);
  }
  const uint16_t* a = block.a;
  for (int page = 0; page < block.page_count; page++) {
    const uint8_t* b = block.pages[page] + block.b_offset;
    ptrdiff_t ahead = block.pages[page + block.prefetch_pages] - block.pages[page];
    for (int step = 0; step < block.steps; step += kTilePairs) {
      int pairs = block.steps - step < kTilePairs ? kHalfPairs : kTilePairs;
      if (block.prefetch_pages != 0) prefetch_operand<Wide>(b, block.b_bytes, pairs, ahead);
      if (pairs == kTilePairs) {
        multiply_tiles<Wide, kA, kB0, kB1>(block, a, b);
      } else {
        multiply_tiles<Wide, kHalfA, kHalfB0, kHalfB1>(block, a, b);
      }
      a += 2 * pairs;
      b += static_cast<ptrdiff_t>(pairs) * block.b_bytes;
    }
  }
  tile_store<kC0>(block.c, block.c_bytes);
  if (Wide) tile_store<kC1>(block.c + 16, block.c_bytes);
}

struct Tiles : DotBase, FormBase<Tiles> {
  static constexpr bool kWholePages = true;
  static constexpr bool kRoundsWeights = true;
  static constexpr bool kShortChains = false;
  static void begin(const RangeWork&) { configured_rows() = 0; }
  static void end() { tile_release(); }
  static void multiply_keys(const Product<Tiles>& work, int rows) { multiply_values(work, rows, kPageTokens); }

  static void multiply_values(const Product<Tiles>& work, int rows, int columns) {
    for (int row = 0; row < rows; row += 16) {
      configure_rows(rows - row < 16 ? rows - row : 16);
      for (int column = 0; column < columns; column += 32) {
        TileBlock block{work.a + static_cast<ptrdiff_t>(row) * work.a_stride, work.a_stride * 2, work.b, work.b_offset + 4 * column,
                        static_cast<int>(work.b_stride), work.pages, work.steps, work.c + static_cast<ptrdiff_t>(row) * work.c_stride + column,
                        work.c_stride * 4, work.into, row == 0 ? work.prefetch_pages : 0};
        if (columns - column > 16) {
          run_block<true>(block);
        } else {
          run_block<false>(block);
        }
      }
    }
  }
};

}  // namespace
}  // namespace kvasir
