// Float32 chains: weights of a chunk of a panel are widened (and folded to bf16 if asked) to [k][16] float32, then each output element is
// one chain of fused multiply-adds, k ascending. Instantiated for a vector type V once per instruction set; internal linkage.
#pragma once
#include "float_bits.hpp"
#include "linear_tiles.hpp"

namespace kvasir {
namespace {

// V: kLanes, Float, Int, and the functions used below. Vectors of a panel: 16 / kLanes.
template <class V, bool FOLD>
struct Chain {
  using Float = typename V::Float;
  static constexpr int kVectors = kPanel / V::kLanes;
  /** Panels side by side when rows are few: enough chains at once to hide the latency of one. */
  static constexpr int kWide = V::kWidePanels;

  /** Widened weights: (NP panels, inputs of the chunk, 16 columns), 16 KB. */
  template <int NP>
  struct Chunk {
    static constexpr int kBlocks = 8 / NP;
    alignas(64) float weights[NP][kBlocks * kBlock][kPanel];
    int first, count;  // blocks
    bool last;
  };

  static inline Float fold(Float w) {
    if constexpr (FOLD) return V::round_bf16(w);
    else return w;
  }

  template <TensorType TYPE>
  static void expand_nibbles(const uint8_t* block, int v, float (*out)[kPanel]) {
    const int lane = v * V::kLanes;
    const Float d = V::load_f16(block + 256 + 2 * lane);
    Float m = V::zero();
    if constexpr (TYPE == TensorType::q4_1) m = V::load_f16(block + 288 + 2 * lane);
#pragma GCC unroll 32
    for (int k = 0; k < kBlock; k++) {
      // Order `quads`: see Segment.
      int shift = 8 * (k % 4) + 4 * (k / 4 % 2);
      typename V::Int q = V::nibble(block + 64 * (k / 8) + 4 * lane, shift);
      Float w = TYPE == TensorType::q4_0 ? V::mul(V::to_float(V::add(q, -8)), d) : V::fma(d, V::to_float(q), m);
      V::store(&out[k][lane], fold(w));
    }
  }

  static void expand_bytes(const uint8_t* block, int v, float (*out)[kPanel]) {
    const int lane = v * V::kLanes;
    const Float d = V::load_f16(block + 512 + 2 * lane);
#pragma GCC unroll 32
    for (int k = 0; k < kBlock; k++) {
      typename V::Int q = V::byte(block + 64 * (k / 4) + 4 * lane, 8 * (k % 4));
      V::store(&out[k][lane], fold(V::mul(V::to_float(V::add(q, -128)), d)));
    }
  }

  template <TensorType TYPE>
  static void expand_floats(const uint8_t* block, int v, float (*out)[kPanel]) {
    const int lane = v * V::kLanes;
    constexpr int kSize = TYPE == TensorType::f32 ? 4 : 2;
    for (int k = 0; k < kBlock; k++) {
      const uint8_t* p = block + kSize * (k * kPanel + lane);
      Float w = TYPE == TensorType::f32 ? V::load(reinterpret_cast<const float*>(p)) : TYPE == TensorType::f16 ? V::load_f16(p) : V::load_bf16(p);
      V::store(&out[k][lane], TYPE == TensorType::bf16 ? w : fold(w));
    }
  }

  template <TensorType TYPE>
  static void expand(const uint8_t* block, int blocks, float (*out)[kPanel]) {
    for (int b = 0; b < blocks; b++, block += Segment::block_bytes(TYPE), out += kBlock) {
      for (int v = 0; v < kVectors; v++) {
        if constexpr (TYPE == TensorType::q8_0) expand_bytes(block, v, out);
        else if constexpr (is_quantised(TYPE)) expand_nibbles<TYPE>(block, v, out);
        else expand_floats<TYPE>(block, v, out);
      }
    }
  }

  template <int NP>
  static void expand_panel(const Segment& s, int panel, Chunk<NP>& chunk, int place) {
    const uint8_t* block = s.data + s.panel_bytes() * static_cast<size_t>(panel) + s.block_bytes() * static_cast<size_t>(chunk.first);
    auto* out = chunk.weights[place];
    switch (s.type) {
      case TensorType::q4_0: return expand<TensorType::q4_0>(block, chunk.count, out);
      case TensorType::q4_1: return expand<TensorType::q4_1>(block, chunk.count, out);
      case TensorType::q8_0: return expand<TensorType::q8_0>(block, chunk.count, out);
      case TensorType::f16: return expand<TensorType::f16>(block, chunk.count, out);
      case TensorType::bf16: return expand<TensorType::bf16>(block, chunk.count, out);
      case TensorType::f32: return expand<TensorType::f32>(block, chunk.count, out);
    }
  }

  /** Sums of a tile between chunks, in float32 as in registers. */
  using Sums = float[V::kTileRows][kWide * kPanel];

  template <int MT, int NP>
  static void multiply(const Chunk<NP>& chunk, const uint8_t* input, size_t row_bytes, Sums& sums) {
    Float acc[MT][NP * kVectors];
#pragma GCC unroll 16
    for (int m = 0; m < MT; m++)
#pragma GCC unroll 16
      for (int v = 0; v < NP * kVectors; v++) acc[m][v] = V::load(sums[m] + v * V::kLanes);
    RowPointers<MT> x(input, row_bytes);
    for (int k = 0; k < chunk.count * kBlock; k++, x.advance(sizeof(float))) {
      Float w[NP * kVectors];
#pragma GCC unroll 16
      for (int v = 0; v < NP * kVectors; v++) w[v] = V::load(&chunk.weights[v / kVectors][k][v % kVectors * V::kLanes]);
#pragma GCC unroll 16
      for (int m = 0; m < MT; m++) {
        Float value = V::broadcast(*reinterpret_cast<const float*>(x.row(m)));
#pragma GCC unroll 16
        for (int v = 0; v < NP * kVectors; v++) acc[m][v] = V::fma(value, w[v], acc[m][v]);
      }
    }
#pragma GCC unroll 16
    for (int m = 0; m < MT; m++)
#pragma GCC unroll 16
      for (int v = 0; v < NP * kVectors; v++) V::store(sums[m] + v * V::kLanes, acc[m][v]);
  }

  /** The product of `rows` <= MAX rows. */
  template <int MAX, int NP>
  static void multiply_rows(int rows, const Chunk<NP>& chunk, const uint8_t* input, size_t row_bytes, Sums& sums) {
    if constexpr (MAX > 1) {
      if (rows < MAX) return multiply_rows<MAX - 1, NP>(rows, chunk, input, row_bytes, sums);
    }
    multiply<MAX, NP>(chunk, input, row_bytes, sums);
  }

  /** Rows of a tile over one chunk: sums of earlier chunks wait in y. */
  template <int MAX, int NP>
  static void tile(const Segment& s, const Product& p, const Chunk<NP>& chunk, int panel, int row, int rows) {
    Sums sums = {};
    int left = s.rows - panel * kPanel;
    int columns = left < NP * kPanel ? left : NP * kPanel;
    float* y = p.y + static_cast<size_t>(row) * p.ld + panel * kPanel;
    const uint8_t* x = p.input + p.row_bytes * static_cast<size_t>(row) + static_cast<size_t>(chunk.first) * kBlock * sizeof(float);
    if (chunk.first > 0) {
      for (int m = 0; m < rows; m++) std::memcpy(sums[m], y + static_cast<size_t>(m) * p.ld, sizeof(float) * static_cast<size_t>(columns));
    }
    multiply_rows<MAX, NP>(rows, chunk, x, p.row_bytes, sums);
    const float* bias = chunk.last && p.bias ? p.bias + panel * kPanel : nullptr;
    for (int m = 0; m < rows; m++) {
      float* out = y + static_cast<size_t>(m) * p.ld;
      for (int c = 0; c < columns; c++) out[c] = bias ? sums[m][c] + bias[c] : sums[m][c];
    }
  }

  /** MAX: rows of a tile. */
  template <int MAX, int NP>
  static void panels(const Segment& s, const Product& p, int panel, const Share& share) {
    Chunk<NP> chunk;
    int chunks = (s.blocks + Chunk<NP>::kBlocks - 1) / Chunk<NP>::kBlocks;
    for (int c = 0; c < chunks; c++) {
      chunk.first = s.blocks * c / chunks;
      chunk.count = s.blocks * (c + 1) / chunks - chunk.first;
      chunk.last = c + 1 == chunks;
      for (int i = 0; i < NP; i++) expand_panel<NP>(s, panel + i, chunk, i);
      for_tiles<MAX>(share.row, share.row_end, [&](int row, int rows) { tile<MAX, NP>(s, p, chunk, panel, row, rows); });
    }
  }

  static void run(const Segment& s, const Product& p, const Share& share) {
    constexpr int kFewRows = V::kTileRows / kWide > 0 ? V::kTileRows / kWide : 1;
    int panel = share.panel;
    if (share.row_end - share.row <= kFewRows) {
      for (; panel + kWide <= share.panel_end; panel += kWide) panels<kFewRows, kWide>(s, p, panel, share);
    }
    for (; panel < share.panel_end; panel++) panels<V::kTileRows, 1>(s, p, panel, share);
  }
};

}  // namespace
}  // namespace kvasir
