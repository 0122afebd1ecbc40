// Linear kernels on AMX tiles: bf16 (one chain of TDPBF16PS over blocks of 32 inputs) and int8 (exact block sums, with
// the bits of the VNNI kernels). Two files include it, for tiles and for their emulation.
#pragma once
#include "linear/kernels/expand_avx512.hpp"
#include "simd/amx_tiles.hpp"

namespace kvasir {
namespace {

// Tiles 0-3 are results (2 row tiles x 2 panels), 4-5 input rows, 6-7 weights.
constexpr int kTileRows = 16;
constexpr size_t kTileBytes = 1024;

/** Configures tiles for `first` and `second` input rows of 64 bytes; 0: no second row tile. */
void configure(int first, int second) {
  if (second <= 0) second = first;
  TileConfig config;
  const int rows[8] = {first, first, second, second, first, second, kTileRows, kTileRows};
  for (int t = 0; t < 8; t++) config.set(t, rows[t], 64);
  tile_configure(config);
}

/** Result rows in transit between a tile and y. */
struct Stage {
  alignas(64) float rows[kTileRows][kPanel];
};

/** The location of one tile's results. */
struct Place {
  int panel, row, rows;
};

template <int C>
void load_sums(const Segment& s, const Product& p, const Place& place, Stage& stage) {
  __mmask16 mask = panel_mask(s, place.panel);
  const float* y = p.y + static_cast<size_t>(place.row) * p.ld + place.panel * kPanel;
  for (int m = 0; m < place.rows; m++) _mm512_store_ps(stage.rows[m], _mm512_maskz_loadu_ps(mask, y + static_cast<size_t>(m) * p.ld));
  tile_load<C>(stage.rows, 64);
}

template <int C>
void store_sums(const Segment& s, const Product& p, const Place& place, Stage& stage) {
  tile_store<C>(stage.rows, 64);
  __mmask16 mask = panel_mask(s, place.panel);
  for (int m = 0; m < place.rows; m++) store_row(p, place.row + m, place.panel, mask, _mm512_load_ps(stage.rows[m]));
}

template <TensorType TYPE>
KVASIR_INLINE void expand_block(const uint8_t* w, const uint8_t* header, uint8_t* out) {
  prefetch<static_cast<int>(Segment::block_bytes(TYPE))>(w + prefetch_blocks(TYPE) * Segment::block_bytes(TYPE));
  PairExpander<TYPE> expand;
  expand.begin(w, header);
#pragma GCC unroll 16
  for (int i = 0; i < 16; i++) _mm512_store_si512(out + 64 * i, expand.pair(i));
}

/** One block of 32 inputs: a and a + row_bytes are input tiles, b and b + panel_step weight tiles. */
template <int NR, int NP>
KVASIR_INLINE void multiply_block(const uint8_t* a, size_t row_bytes, const uint8_t* b, size_t panel_step) {
  tile_load<6>(b, 64);
  tile_load<4>(a, 64);
  tile_dpbf16<0, 4, 6>();
  if constexpr (NP == 2) {
    tile_load<7>(b + panel_step, 64);
    tile_dpbf16<1, 4, 7>();
  }
  if constexpr (NR == 2) {
    tile_load<5>(a + row_bytes, 64);
    tile_dpbf16<2, 5, 6>();
    if constexpr (NP == 2) tile_dpbf16<3, 5, 7>();
  }
}

template <int NR, int NP>
void zero_sums() {
  tile_zero<0>();
  if constexpr (NP == 2) tile_zero<1>();
  if constexpr (NR == 2) tile_zero<2>();
  if constexpr (NR == 2 && NP == 2) tile_zero<3>();
}

/** Rows of up to two row tiles. */
struct Group {
  int row, first, second;
};

template <int NR, int NP>
void load_group(const Segment& s, const Product& p, int panel, const Group& g, Stage& stage) {
  load_sums<0>(s, p, {panel, g.row, g.first}, stage);
  if constexpr (NP == 2) load_sums<1>(s, p, {panel + 1, g.row, g.first}, stage);
  if constexpr (NR == 2) load_sums<2>(s, p, {panel, g.row + kTileRows, g.second}, stage);
  if constexpr (NR == 2 && NP == 2) load_sums<3>(s, p, {panel + 1, g.row + kTileRows, g.second}, stage);
}

template <int NR, int NP>
void store_group(const Segment& s, const Product& p, int panel, const Group& g, Stage& stage) {
  store_sums<0>(s, p, {panel, g.row, g.first}, stage);
  if constexpr (NP == 2) store_sums<1>(s, p, {panel + 1, g.row, g.first}, stage);
  if constexpr (NR == 2) store_sums<2>(s, p, {panel, g.row + kTileRows, g.second}, stage);
  if constexpr (NR == 2 && NP == 2) store_sums<3>(s, p, {panel + 1, g.row + kTileRows, g.second}, stage);
}

/** At most 32 rows: sums stay in tiles over all inputs; weight blocks are expanded just before use, double-buffered. */
template <TensorType TYPE, int NR, int NP>
void few_rows(const Segment& s, const Product& p, int panel, const Group& g) {
  alignas(64) uint8_t expanded[2][NP][kTileBytes];
  Stage stage;
  BlockWalk<TYPE> w(s, panel, 0);
  const uint8_t* a = p.input + p.row_bytes * static_cast<size_t>(g.row / kTileRows);
  zero_sums<NR, NP>();
  for (int b = 0; b < s.blocks; b++, w.next(), a += kTileBytes) {
    uint8_t(*out)[kTileBytes] = expanded[b & 1];
    for (int i = 0; i < NP; i++) {
      const size_t further = s.panel_bytes() * static_cast<size_t>(i);
      expand_block<TYPE>(w.block + further, w.header + further, out[i]);
    }
    multiply_block<NR, NP>(a, p.row_bytes, out[0], kTileBytes);
  }
  store_group<NR, NP>(s, p, panel, g, stage);
}

constexpr int kChunkBlocks = 32;

template <int NP>
struct Chunk {
  alignas(64) uint8_t tiles[NP][kChunkBlocks * kTileBytes];
  int first, count;  // blocks
  bool last;
};

template <int NR, int NP>
void chunk_group(const Segment& s, const Product& p, const Chunk<NP>& chunk, int panel, const Group& g) {
  Stage stage;
  if (chunk.first == 0) zero_sums<NR, NP>();
  else load_group<NR, NP>(s, p, panel, g, stage);
  const uint8_t* a = p.input + p.row_bytes * static_cast<size_t>(g.row / kTileRows) + kTileBytes * static_cast<size_t>(chunk.first);
  for (int b = 0; b < chunk.count; b++, a += kTileBytes) {
    multiply_block<NR, NP>(a, p.row_bytes, chunk.tiles[0] + kTileBytes * static_cast<size_t>(b), sizeof chunk.tiles[0]);
  }
  Product out = p;
  if (!chunk.last) out.bias = nullptr;
  store_group<NR, NP>(s, out, panel, g, stage);
}

/** Many rows: a chunk of NP panels is expanded once and used for all rows; sums are kept in y between chunks. */
template <TensorType TYPE, int NP>
void many_rows(const Segment& s, const Product& p, int panel, const Share& share) {
  Chunk<NP> chunk;
  int chunks = (s.blocks + kChunkBlocks - 1) / kChunkBlocks;
  for (int c = 0; c < chunks; c++) {
    chunk.first = s.blocks * c / chunks;
    chunk.count = s.blocks * (c + 1) / chunks - chunk.first;
    chunk.last = c + 1 == chunks;
    for (int i = 0; i < NP; i++) {
      BlockWalk<TYPE> w(s, panel + i, chunk.first);
      for (int b = 0; b < chunk.count; b++, w.next()) expand_block<TYPE>(w.block, w.header, chunk.tiles[i] + kTileBytes * static_cast<size_t>(b));
    }
    int row = share.row;
    configure(kTileRows, kTileRows);
    for (; row + 2 * kTileRows <= share.row_end; row += 2 * kTileRows) chunk_group<2, NP>(s, p, chunk, panel, {row, kTileRows, kTileRows});
    int left = share.row_end - row;
    if (left == 0) continue;
    Group tail{row, left < kTileRows ? left : kTileRows, left - kTileRows};
    configure(tail.first, tail.second);
    if (tail.second > 0) chunk_group<2, NP>(s, p, chunk, panel, tail);
    else chunk_group<1, NP>(s, p, chunk, panel, tail);
  }
}

template <TensorType TYPE, int NP>
void rows_of_panels(const Segment& s, const Product& p, int panel, const Share& share) {
  int rows = share.row_end - share.row;
  if (rows <= kTileRows) few_rows<TYPE, 1, NP>(s, p, panel, {share.row, rows, 0});
  else if (rows <= 2 * kTileRows) few_rows<TYPE, 2, NP>(s, p, panel, {share.row, kTileRows, rows - kTileRows});
  else many_rows<TYPE, NP>(s, p, panel, share);
}

template <TensorType TYPE>
void run_bf16(const Segment& s, const Product& p, const Share& share) {
  int rows = share.row_end - share.row;
  if (rows <= 2 * kTileRows) configure(rows < kTileRows ? rows : kTileRows, rows - kTileRows);
  int panel = share.panel;
  for (; panel + 2 <= share.panel_end; panel += 2) rows_of_panels<TYPE, 2>(s, p, panel, share);
  if (panel < share.panel_end) rows_of_panels<TYPE, 1>(s, p, panel, share);
  tile_release();
}

void bf16_on_tiles(const Segment& s, const Product& p, const Share& share) {
  switch (s.type) {
    case TensorType::q4_0: return run_bf16<TensorType::q4_0>(s, p, share);
    case TensorType::q4_1: return run_bf16<TensorType::q4_1>(s, p, share);
    case TensorType::q8_0: return run_bf16<TensorType::q8_0>(s, p, share);
    case TensorType::f16: return run_bf16<TensorType::f16>(s, p, share);
    case TensorType::bf16: return run_bf16<TensorType::bf16>(s, p, share);
    case TensorType::f32: return run_bf16<TensorType::f32>(s, p, share);
    default: return with_planar(s.type, [&](auto type) { run_bf16<decltype(type)::value>(s, p, share); });
  }
}

constexpr int kInt8ChunkBlocks = 64;

/** Weights of one panel's chunk as signed bytes [k/4][16][4], with their scales. */
struct Int8Chunk {
  alignas(64) uint8_t tiles[kInt8ChunkBlocks][512];
  alignas(64) float scale[kInt8ChunkBlocks][kPanel];
  alignas(64) float minimum[kInt8ChunkBlocks][kPanel];
};

template <TensorType TYPE>
void expand_int8(const Segment& s, int panel, int first, int count, Int8Chunk& chunk) {
  constexpr size_t kBytes = Segment::block_bytes(TYPE);
  const __m512i low = _mm512_set1_epi8(15), offset = _mm512_set1_epi8(TYPE == TensorType::q4_0 ? 8 : 0);
  const uint8_t* w = s.data + s.panel_bytes() * static_cast<size_t>(panel) + kBytes * static_cast<size_t>(first);
  for (int b = 0; b < count; b++, w += kBytes) {
    prefetch<static_cast<int>(kBytes)>(w + kPrefetchBlocks * kBytes);
    uint8_t* out = chunk.tiles[b];
    if constexpr (TYPE == TensorType::q8_0) {
      for (int g = 0; g < 8; g++) _mm512_store_si512(out + 64 * g, _mm512_xor_si512(load512(w + 64 * g), _mm512_set1_epi8(static_cast<char>(0x80))));
    } else {
      for (int j = 0; j < 4; j++) {
        __m512i both = load512(w + 64 * j);
        _mm512_store_si512(out + 128 * j, _mm512_sub_epi8(_mm512_and_si512(both, low), offset));
        _mm512_store_si512(out + 128 * j + 64, _mm512_sub_epi8(_mm512_and_si512(_mm512_srli_epi16(both, 4), low), offset));
      }
    }
    const uint8_t* scales = w + (TYPE == TensorType::q8_0 ? 512 : 256);
    _mm512_store_ps(chunk.scale[b], load_f16(scales));
    if constexpr (TYPE == TensorType::q4_1) _mm512_store_ps(chunk.minimum[b], load_f16(scales + 32));
  }
}

struct Int8Sums {
  alignas(64) int32_t rows[kTileRows][kPanel];
};

/** Sums of one block through tiles (4: inputs, 6: weights; results alternate between 0 and 1). */
void int8_block(const uint8_t* x, size_t row_bytes, const uint8_t* w, int b, Int8Sums& out) {
  if (b & 1) {
    tile_zero<1>();
    tile_load<5>(x, row_bytes);
    tile_load<7>(w, 64);
    tile_dpbssd<1, 5, 7>();
    tile_store<1>(out.rows, 64);
  } else {
    tile_zero<0>();
    tile_load<4>(x, row_bytes);
    tile_load<6>(w, 64);
    tile_dpbssd<0, 4, 6>();
    tile_store<0>(out.rows, 64);
  }
}

template <TensorType TYPE>
KVASIR_INLINE void scale_block(__m512 (&acc)[kTileRows], const Int8Sums& sums, const Int8Chunk& chunk, int b, const RowPointers<kTileRows>& x) {
  __m512 d = _mm512_load_ps(chunk.scale[b]);
  __m512 minimum = _mm512_load_ps(chunk.minimum[b]);
  size_t at = static_cast<size_t>(b) * sizeof(Int8Block);
#pragma GCC unroll 16
  for (int m = 0; m < kTileRows; m++) {
    __m512 scale = _mm512_mul_ps(d, broadcast_f32(x.row(m) + at + offsetof(Int8Block, scale)));
    acc[m] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(_mm512_load_si512(sums.rows[m])), scale, acc[m]);
    if constexpr (TYPE == TensorType::q4_1) acc[m] = _mm512_fmadd_ps(minimum, broadcast_f32(x.row(m) + at + offsetof(Int8Block, scaled_sum)), acc[m]);
  }
}

/** 16 rows x one panel over one chunk; sums of earlier chunks are in y. Scaling runs one block behind the tiles. */
template <TensorType TYPE>
void int8_rows(const Segment& s, const Product& p, const Int8Chunk& chunk, int panel, int row, int first, int count, bool last) {
  const uint8_t* input = p.input + p.row_bytes * static_cast<size_t>(row) + sizeof(Int8Block) * static_cast<size_t>(first);
  RowPointers<kTileRows> x(input, p.row_bytes);
  __mmask16 mask = panel_mask(s, panel);
  const float* y = p.y + static_cast<size_t>(row) * p.ld + panel * kPanel;
  __m512 acc[kTileRows];
#pragma GCC unroll 16
  for (int m = 0; m < kTileRows; m++) acc[m] = first == 0 ? _mm512_setzero_ps() : _mm512_maskz_loadu_ps(mask, y + static_cast<size_t>(m) * p.ld);
  Int8Sums sums[4];
  int8_block(input, p.row_bytes, chunk.tiles[0], 0, sums[0]);
  for (int b = 1; b < count; b++) {
    int8_block(input + static_cast<size_t>(b) * sizeof(Int8Block), p.row_bytes, chunk.tiles[b], b, sums[b & 3]);
    scale_block<TYPE>(acc, sums[(b - 1) & 3], chunk, b - 1, x);
  }
  scale_block<TYPE>(acc, sums[(count - 1) & 3], chunk, count - 1, x);
  Product out = p;
  if (!last) out.bias = nullptr;
#pragma GCC unroll 16
  for (int m = 0; m < kTileRows; m++) store_row(out, row + m, panel, mask, acc[m]);
}

void configure_int8() {
  TileConfig config;
  for (int t = 0; t < 2; t++) {
    config.set(t, kTileRows, 64);
    config.set(4 + t, kTileRows, kBlock);
    config.set(6 + t, kBlock / 4, 64);
  }
  tile_configure(config);
}

template <TensorType TYPE>
void run_int8(const Segment& s, const Product& p, const Share& share) {
  Int8Chunk chunk;
  int chunks = (s.blocks + kInt8ChunkBlocks - 1) / kInt8ChunkBlocks;
  configure_int8();
  for (int panel = share.panel; panel < share.panel_end; panel++) {
    for (int c = 0; c < chunks; c++) {
      int first = s.blocks * c / chunks;
      int count = s.blocks * (c + 1) / chunks - first;
      expand_int8<TYPE>(s, panel, first, count, chunk);
      for (int row = share.row; row < share.row_end; row += kTileRows) int8_rows<TYPE>(s, p, chunk, panel, row, first, count, c + 1 == chunks);
    }
  }
  tile_release();
}

/** Whole tiles of 16 rows use AMX, the rest VNNI: block sums are exact, so both give the same bits. */
void int8_on_tiles(const Segment& s, const Product& p, const Share& share) {
  if (is_planar(s.type)) return linear_int8_planes_avx512(s, p, share);
  Share whole = share, rest = share;
  whole.row_end = rest.row = share.row + (share.row_end - share.row) / kTileRows * kTileRows;
  if (whole.row < whole.row_end) {
    switch (s.type) {
      case TensorType::q4_0: run_int8<TensorType::q4_0>(s, p, whole); break;
      case TensorType::q4_1: run_int8<TensorType::q4_1>(s, p, whole); break;
      default: run_int8<TensorType::q8_0>(s, p, whole); break;
    }
  }
  if (rest.row < rest.row_end) linear_int8_avx512(s, p, rest);
}

}  // namespace
}  // namespace kvasir
