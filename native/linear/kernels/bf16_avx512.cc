// bf16 inputs on AVX-512 BF16: weights are folded to bf16 on the fly; one chain of vdpbf16ps per output element, k
// ascending.
#include "linear/kernels/expand_avx512.hpp"

namespace kvasir {
namespace {

// blocks of a panel expanded at once: two panels of them stay in L1 beside the input rows
constexpr int kChunkBlocks = 18;

/** Most rows for which weights are expanded in registers, for each tile anew. Planes take longer to expand. */
constexpr int fused_rows_max(TensorType type) { return is_planar(type) ? 4 : 8; }

KVASIR_INLINE __m512 dot(__m512 acc, __m512i w, __m512i x) {
  return _mm512_dpbf16_ps(acc, reinterpret_cast<__m512bh>(w), reinterpret_cast<__m512bh>(x));
}

template <int MT, int NP>
KVASIR_INLINE void clear(__m512 (&acc)[MT][NP]) {
#pragma GCC unroll 16
  for (int m = 0; m < MT; m++)
#pragma GCC unroll 4
    for (int p = 0; p < NP; p++) acc[m][p] = _mm512_setzero_ps();
}

template <int MT, int NP>
KVASIR_INLINE void store_tile(const Segment& s, const Product& product, int panel, int row, const __m512 (&acc)[MT][NP]) {
#pragma GCC unroll 4
  for (int p = 0; p < NP; p++) {
    __mmask16 mask = panel_mask(s, panel + p);
#pragma GCC unroll 16
    for (int m = 0; m < MT; m++) store_row(product, row + m, panel + p, mask, acc[m][p]);
  }
}

/**
 * MT rows x NP panels over all inputs, weights expanded in registers. Several panels at once hide the latency of the
 * chains.
 */
template <TensorType TYPE, int MT, int NP>
__attribute__((noinline)) void fused_tile(const Segment& s, const Product& product, int panel, int row) {
  constexpr size_t kBytes = Segment::block_bytes(TYPE);
  const size_t panel_bytes = s.panel_bytes();
  BlockWalk<TYPE> w(s, panel, 0);
  RowPointers<MT> x(product.input + product.row_bytes * static_cast<size_t>(row), product.row_bytes);
  __m512 acc[MT][NP];
  clear(acc);
  for (int b = 0; b < s.blocks; b++, w.next(), x.advance(64)) {
    PairExpander<TYPE> expand[NP];
    const uint8_t* later = w.block + prefetch_ahead<NP>(s, b, Segment::run_bytes(TYPE, prefetch_blocks(TYPE)), prefetch_blocks(TYPE));
#pragma GCC unroll 4
    for (int p = 0; p < NP; p++) {
      prefetch<kBytes>(later + static_cast<size_t>(p) * panel_bytes);
      expand[p].begin(w.block + static_cast<size_t>(p) * panel_bytes, w.header + static_cast<size_t>(p) * panel_bytes);
    }
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++) {
      __m512i weights[NP];
#pragma GCC unroll 4
      for (int p = 0; p < NP; p++) weights[p] = expand[p].pair(i);
#pragma GCC unroll 16
      for (int m = 0; m < MT; m++) {
        __m512i values = broadcast_i32(x.row(m) + 4 * i);
#pragma GCC unroll 4
        for (int p = 0; p < NP; p++) acc[m][p] = dot(acc[m][p], weights[p], values);
      }
    }
  }
  store_tile(s, product, panel, row, acc);
}

/** Expanded weights of NP panels: (NP, kChunkBlocks, 16 pairs, 16 columns, 2). */
template <int NP>
struct Chunk {
  alignas(64) uint8_t expanded[NP][kChunkBlocks * 1024];
  const uint8_t* pairs[NP];  // `expanded`, or the panels themselves if stored in bf16
  int first, count;  // blocks
  bool last;
};

/** MT rows x NP panels over one chunk; sums of earlier chunks are in y, in float32 as in registers. */
template <int MT, int NP>
__attribute__((noinline)) void chunk_tile(const Segment& s, const Product& product, const Chunk<NP>& chunk, int panel, int row) {
  RowPointers<MT> x(product.input + product.row_bytes * static_cast<size_t>(row) + static_cast<size_t>(chunk.first) * 64, product.row_bytes);
  float* y = product.y + static_cast<size_t>(row) * product.ld + panel * kPanel;
  __m512 acc[MT][NP];
  if (chunk.first == 0) {
    clear(acc);
  } else {
#pragma GCC unroll 4
    for (int p = 0; p < NP; p++) {
      __mmask16 mask = panel_mask(s, panel + p);
#pragma GCC unroll 16
      for (int m = 0; m < MT; m++) acc[m][p] = _mm512_maskz_loadu_ps(mask, y + static_cast<size_t>(m) * product.ld + p * kPanel);
    }
  }
  for (size_t at = 0; at < static_cast<size_t>(chunk.count) * 1024; at += 1024, x.advance(64)) {
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++) {
      __m512i weights[NP];
#pragma GCC unroll 4
      for (int p = 0; p < NP; p++) weights[p] = _mm512_load_si512(chunk.pairs[p] + at + 64 * i);
#pragma GCC unroll 16
      for (int m = 0; m < MT; m++) {
        __m512i values = broadcast_i32(x.row(m) + 4 * i);
#pragma GCC unroll 4
        for (int p = 0; p < NP; p++) acc[m][p] = dot(acc[m][p], weights[p], values);
      }
    }
  }
  Product out = product;
  if (!chunk.last) out.bias = nullptr;
  store_tile(s, out, panel, row, acc);
}

/** Returns the chunk's vectors of a panel. */
template <TensorType TYPE>
const uint8_t* expand_chunk(const Segment& s, int panel, int first, int count, uint8_t* expanded) {
  constexpr size_t kBytes = Segment::block_bytes(TYPE);
  BlockWalk<TYPE> w(s, panel, first);
  if constexpr (TYPE == TensorType::bf16) return w.block;
  uint8_t* out = expanded;
  for (int b = 0; b < count; b++, w.next(), out += 1024) {
    prefetch<kBytes>(w.block + prefetch_blocks(TYPE) * kBytes);
    PairExpander<TYPE> expand;
    expand.begin(w.block, w.header);
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++) _mm512_store_si512(out + 64 * i, expand.pair(i));
  }
  return expanded;
}

template <int NP>
void chunk_rows(const Segment& s, const Product& p, const Chunk<NP>& chunk, int panel, int row, int row_end) {
  for_tiles<12>(row, row_end, [&](int r, int rows) {
    switch (rows) {
      case 1: return chunk_tile<1, NP>(s, p, chunk, panel, r);
      case 2: return chunk_tile<2, NP>(s, p, chunk, panel, r);
      case 3: return chunk_tile<3, NP>(s, p, chunk, panel, r);
      case 4: return chunk_tile<4, NP>(s, p, chunk, panel, r);
      case 5: return chunk_tile<5, NP>(s, p, chunk, panel, r);
      case 6: return chunk_tile<6, NP>(s, p, chunk, panel, r);
      case 7: return chunk_tile<7, NP>(s, p, chunk, panel, r);
      case 8: return chunk_tile<8, NP>(s, p, chunk, panel, r);
      case 9: return chunk_tile<9, NP>(s, p, chunk, panel, r);
      case 10: return chunk_tile<10, NP>(s, p, chunk, panel, r);
      case 11: return chunk_tile<11, NP>(s, p, chunk, panel, r);
      default: return chunk_tile<12, NP>(s, p, chunk, panel, r);
    }
  });
}

/** Many rows: expands a chunk of NP panels once, then runs all rows over it. */
template <TensorType TYPE, int NP>
void expanded_panels(const Segment& s, const Product& p, int panel, const Share& share) {
  Chunk<NP> chunk;
  int chunks = (s.blocks + kChunkBlocks - 1) / kChunkBlocks;
  for (int c = 0; c < chunks; c++) {
    chunk.first = s.blocks * c / chunks;
    chunk.count = s.blocks * (c + 1) / chunks - chunk.first;
    chunk.last = c + 1 == chunks;
    for (int i = 0; i < NP; i++) chunk.pairs[i] = expand_chunk<TYPE>(s, panel + i, chunk.first, chunk.count, chunk.expanded[i]);
    chunk_rows<NP>(s, p, chunk, panel, share.row, share.row_end);
  }
}

/** The fused tile for `panels` <= NP. */
template <TensorType TYPE, int MT, int NP>
void fused_tile_of(int panels, const Segment& s, const Product& p, int panel, int row) {
  if constexpr (NP > 1) {
    if (panels < NP) return fused_tile_of<TYPE, MT, NP - 1>(panels, s, p, panel, row);
  }
  fused_tile<TYPE, MT, NP>(s, p, panel, row);
}

/**
 * Few rows: MT rows, at most NP panels at once, in equal parts, since a single last panel would run at the latency of
 * its chain.
 */
template <TensorType TYPE, int MT, int NP>
void fused_panels(const Segment& s, const Product& p, const Share& share) {
  for_tiles<NP>(share.panel, share.panel_end, [&](int panel, int panels) { fused_tile_of<TYPE, MT, NP>(panels, s, p, panel, share.row); });
}

/** Fused tiles of up to MAX rows; false if there are more. */
template <TensorType TYPE, int MAX>
bool fused_rows(const Segment& s, const Product& p, const Share& share) {
  int rows = share.row_end - share.row;
  if (rows > MAX) return false;
  if constexpr (MAX > 1) {
    if (rows < MAX) return fused_rows<TYPE, MAX - 1>(s, p, share);
  }
  fused_panels<TYPE, MAX, MAX == 1 ? 3 : 2>(s, p, share);
  return true;
}

template <TensorType TYPE>
void run(const Segment& s, const Product& p, const Share& share) {
  if (fused_rows<TYPE, fused_rows_max(TYPE)>(s, p, share)) return;
  int panel = share.panel;
  for (; panel + 2 <= share.panel_end; panel += 2) expanded_panels<TYPE, 2>(s, p, panel, share);
  if (panel < share.panel_end) expanded_panels<TYPE, 1>(s, p, panel, share);
}

}  // namespace

void linear_bf16_avx512(const Segment& s, const Product& p, const Share& share) {
  switch (s.type) {
    case TensorType::q4_0: return run<TensorType::q4_0>(s, p, share);
    case TensorType::q4_1: return run<TensorType::q4_1>(s, p, share);
    case TensorType::q8_0: return run<TensorType::q8_0>(s, p, share);
    case TensorType::f16: return run<TensorType::f16>(s, p, share);
    case TensorType::bf16: return run<TensorType::bf16>(s, p, share);
    case TensorType::f32: return run<TensorType::f32>(s, p, share);
    default: return with_planar(s.type, [&](auto type) { run<decltype(type)::value>(s, p, share); });
  }
}

void round_row_avx512(int columns, const float* x, uint8_t* out, size_t block_bytes) {
  for (int k = 0; k < columns; k += kBlock, out += block_bytes) {
    __m512bh rounded = _mm512_cvtne2ps_pbh(_mm512_loadu_ps(x + k + 16), _mm512_loadu_ps(x + k));
    _mm512_storeu_si512(out, reinterpret_cast<__m512i>(rounded));
  }
}

}  // namespace kvasir
