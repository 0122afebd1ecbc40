// Float32 chains: weights of a chunk of a panel are widened (and folded to bf16 if asked) to [k][16] float32, then each output element is
// one chain of fused multiply-adds, k ascending. Instantiated for a vector type V once per instruction set; internal linkage.
#pragma once
#include "float_bits.hpp"
#include "linear_kernels.hpp"

namespace kvasir {
namespace {

// V: kLanes, Float, Int, and the functions used below. Vectors of a panel: 16 / kLanes.
template <class V, bool FOLD>
struct Chain {
  using Float = typename V::Float;
  static constexpr int kVectors = kPanel / V::kLanes;
  static constexpr int kChunkBlocks = 8;

  /** Widened weights: (inputs of the chunk, 16 columns). */
  struct Chunk {
    alignas(64) float weights[kChunkBlocks * kBlock][kPanel];
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
  static void expand(const Segment& s, int panel, Chunk& chunk) {
    const uint8_t* block = s.data + s.panel_bytes() * static_cast<size_t>(panel) + s.block_bytes() * static_cast<size_t>(chunk.first);
    for (int b = 0; b < chunk.count; b++, block += Segment::block_bytes(TYPE)) {
      auto* out = chunk.weights + b * kBlock;
      for (int v = 0; v < kVectors; v++) {
        if constexpr (TYPE == TensorType::q8_0) expand_bytes(block, v, out);
        else if constexpr (is_quantised(TYPE)) expand_nibbles<TYPE>(block, v, out);
        else expand_floats<TYPE>(block, v, out);
      }
    }
  }

  static void expand_any(const Segment& s, int panel, Chunk& chunk) {
    switch (s.type) {
      case TensorType::q4_0: return expand<TensorType::q4_0>(s, panel, chunk);
      case TensorType::q4_1: return expand<TensorType::q4_1>(s, panel, chunk);
      case TensorType::q8_0: return expand<TensorType::q8_0>(s, panel, chunk);
      case TensorType::f16: return expand<TensorType::f16>(s, panel, chunk);
      case TensorType::bf16: return expand<TensorType::bf16>(s, panel, chunk);
      case TensorType::f32: return expand<TensorType::f32>(s, panel, chunk);
    }
  }

  /** The chains run on in `sums` (MT rows x 16 columns) from chunk to chunk, in float32 as in registers. */
  template <int MT>
  static void multiply(const Chunk& chunk, const uint8_t* input, size_t row_bytes, float (*sums)[kPanel]) {
    Float acc[MT][kVectors];
#pragma GCC unroll 8
    for (int m = 0; m < MT; m++)
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; v++) acc[m][v] = V::load(sums[m] + v * V::kLanes);
    const auto* x = reinterpret_cast<const float*>(input);
    const size_t stride = row_bytes / sizeof(float);
    for (int k = 0; k < chunk.count * kBlock; k++) {
      Float w[kVectors];
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; v++) w[v] = V::load(&chunk.weights[k][v * V::kLanes]);
#pragma GCC unroll 8
      for (int m = 0; m < MT; m++) {
        Float value = V::broadcast(x[static_cast<size_t>(m) * stride + static_cast<size_t>(k)]);
#pragma GCC unroll 16
        for (int v = 0; v < kVectors; v++) acc[m][v] = V::fma(value, w[v], acc[m][v]);
      }
    }
#pragma GCC unroll 8
    for (int m = 0; m < MT; m++)
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; v++) V::store(sums[m] + v * V::kLanes, acc[m][v]);
  }

  /** Rows of a tile: load sums of earlier chunks, multiply, store. */
  static void rows(const Segment& s, const Product& p, const Chunk& chunk, int panel, int row, int count) {
    float sums[V::kTileRows][kPanel] = {};
    int left = s.rows - panel * kPanel;
    int columns = left < kPanel ? left : kPanel;
    float* y = p.y + static_cast<size_t>(row) * p.ld + panel * kPanel;
    const uint8_t* x = p.input + p.row_bytes * static_cast<size_t>(row) + static_cast<size_t>(chunk.first) * kBlock * sizeof(float);
    if (chunk.first > 0) {
      for (int m = 0; m < count; m++) std::memcpy(sums[m], y + static_cast<size_t>(m) * p.ld, sizeof(float) * static_cast<size_t>(columns));
    }
    if (count == V::kTileRows) multiply<V::kTileRows>(chunk, x, p.row_bytes, sums);
    else for (int m = 0; m < count; m++) multiply<1>(chunk, x + p.row_bytes * static_cast<size_t>(m), p.row_bytes, sums + m);
    for (int m = 0; m < count; m++) {
      float* out = y + static_cast<size_t>(m) * p.ld;
      const float* bias = chunk.last && p.bias ? p.bias + panel * kPanel : nullptr;
      for (int c = 0; c < columns; c++) out[c] = bias ? sums[m][c] + bias[c] : sums[m][c];
    }
  }

  static void run(const Segment& s, const Product& p, const Share& share) {
    Chunk chunk;
    int chunks = (s.blocks + kChunkBlocks - 1) / kChunkBlocks;
    for (int panel = share.panel; panel < share.panel_end; panel++) {
      for (int c = 0; c < chunks; c++) {
        chunk.first = s.blocks * c / chunks;
        chunk.count = s.blocks * (c + 1) / chunks - chunk.first;
        chunk.last = c + 1 == chunks;
        expand_any(s, panel, chunk);
        for (int row = share.row; row < share.row_end; row += V::kTileRows) {
          int left = share.row_end - row;
          rows(s, p, chunk, panel, row, left < V::kTileRows ? left : V::kTileRows);
        }
      }
    }
  }
};

}  // namespace
}  // namespace kvasir
