// Float32 chains: each output element is one chain of multiply-adds, k ascending, over weights widened to float32. Few
// rows use weights directly from registers; for many rows a chunk of a panel is widened once to [k][16] float32.
// Compiled for a vector type V once per instruction set; internal linkage.
#pragma once
#include "linear/kernels/chain_weights.hpp"
#include "linear/kernels/planes.hpp"

namespace kvasir {
namespace {

/**
 * V has: Float and Int of kLanes lanes; kTileRows, the rows of a tile over a widened panel; kDirectPanels, the panels
 * processed at once for a single row, enough chains to hide the latency of one; Planes (see planes.hpp); and the
 * functions used below.
 */
template <class V>
struct Chain {
  using Float = typename V::Float;
  static constexpr int kVectors = kPanel / V::kLanes;
  /** Most rows that use weights from registers: for more, widening takes longer than a pass through memory. */
  static constexpr int kDirectRows = 3;

  /** A widened part of a panel: 16 KiB. */
  struct Chunk {
    static constexpr int kBlocks = 8;
    alignas(64) float weights[kBlocks * kBlock][kPanel];
    int first, count;  // blocks
    bool last;
  };

  template <TensorType TYPE, bool LEVELS = false>
  static void expand(const uint8_t* block, int blocks, float (*out)[kPanel]) {
    for (int b = 0; b < blocks; b++, block += Segment::block_bytes(TYPE), out += kBlock) {
      prefetch<Segment::block_bytes(TYPE)>(block + kPrefetchBlocks * Segment::block_bytes(TYPE));
      for (int v = 0; v < kVectors; v++) {
        const BlockWeights<V, TYPE, 1, LEVELS> weights(block, v, 0);
        unrolled<kBlock>([&](auto k) __attribute__((always_inline)) {
          Float w[1];
          weights.template at<k.value>(w);
          V::store(&out[k.value][v * V::kLanes], w[0]);
        });
      }
    }
  }

  /** `walk` is at the first of the blocks. */
  template <TensorType TYPE>
  static void expand_planes(BlockWalk<TYPE> walk, int blocks, float (*out)[kPanel]) {
    using Lanes = typename V::Planes;
    for (int b = 0; b < blocks; b++, walk.next(), out += kBlock) {
      for (int lane = 0; lane < kPanel; lane += Lanes::kLanes) {
        unrolled<kBlock / 4>([&](auto g) __attribute__((always_inline)) {
          const PlaneScale<TYPE, Lanes> scale(walk.block, walk.header, 4 * g.value / planes_of(TYPE).part, lane);
          const typename Lanes::Float offset = scale.offset();
          const typename Lanes::Word codes = plane_codes<TYPE, Lanes>(walk.block, g.value, lane);
#pragma GCC unroll 4
          for (int e = 0; e < 4; e++) Lanes::store_floats(&out[4 * g.value + e][lane], Lanes::fma(Lanes::code(codes, e), scale.scale, offset));
        });
      }
    }
  }

  static void expand_panel(const Segment& s, int panel, Chunk& chunk) {
    if (is_planar(s.type)) {
      return with_planar(s.type, [&](auto type) { expand_planes(BlockWalk<decltype(type)::value>(s, panel, chunk.first), chunk.count, chunk.weights); });
    }
    const uint8_t* block = s.data + s.panel_bytes() * static_cast<size_t>(panel) + s.block_bytes() * static_cast<size_t>(chunk.first);
    with_type(s.type, [&](auto type) { expand<type.value>(block, chunk.count, chunk.weights); });
  }

  /** Calls body with the type as a constant. */
  template <class F>
  static void with_type(TensorType type, F&& body) {
    switch (type) {
      case TensorType::q4_0: return body(std::integral_constant<TensorType, TensorType::q4_0>{});
      case TensorType::q4_1: return body(std::integral_constant<TensorType, TensorType::q4_1>{});
      case TensorType::q8_0: return body(std::integral_constant<TensorType, TensorType::q8_0>{});
      case TensorType::f16: return body(std::integral_constant<TensorType, TensorType::f16>{});
      case TensorType::bf16: return body(std::integral_constant<TensorType, TensorType::bf16>{});
      default: return body(std::integral_constant<TensorType, TensorType::f32>{});
    }
  }

  /** Rows of sums between chunks, `stride` floats apart, in float32 as in registers. */
  struct Sums {
    float* first;
    size_t stride;
    bool fresh;  // starts at zero
    KVASIR_INLINE float* row(int m) const { return first + static_cast<size_t>(m) * stride; }
  };

  template <int MT>
  static void multiply(const Chunk& chunk, const uint8_t* input, size_t row_bytes, const Sums& sums) {
    Float acc[MT][kVectors];
#pragma GCC unroll 16
    for (int m = 0; m < MT; m++)
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; v++) acc[m][v] = sums.fresh ? V::zero() : V::load(sums.row(m) + v * V::kLanes);
    RowPointers<MT> x(input, row_bytes);
    for (int k = 0; k < chunk.count * kBlock; k++, x.advance(sizeof(float))) {
      Float w[kVectors];
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; v++) w[v] = V::load(&chunk.weights[k][v * V::kLanes]);
#pragma GCC unroll 16
      for (int m = 0; m < MT; m++) {
        Float value = V::broadcast(*reinterpret_cast<const float*>(x.row(m)));
#pragma GCC unroll 16
        for (int v = 0; v < kVectors; v++) acc[m][v] = V::fma(value, w[v], acc[m][v]);
      }
    }
#pragma GCC unroll 16
    for (int m = 0; m < MT; m++)
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; v++) V::store(sums.row(m) + v * V::kLanes, acc[m][v]);
  }

  /** The product for `rows` <= MAX rows. */
  template <int MAX>
  static void multiply_rows(int rows, const Chunk& chunk, const uint8_t* input, size_t row_bytes, const Sums& sums) {
    if constexpr (MAX > 1) {
      if (rows < MAX) return multiply_rows<MAX - 1>(rows, chunk, input, row_bytes, sums);
    }
    multiply<MAX>(chunk, input, row_bytes, sums);
  }

  /** Stores one row of results of `panels` panels, plus bias. */
  static void store_results(const Segment& s, const Product& p, int row, int panel, int panels, const float* sums, bool last) {
    int left = s.rows - panel * kPanel;
    int columns = left < panels * kPanel ? left : panels * kPanel;
    float* y = p.y + static_cast<size_t>(row) * p.ld + panel * kPanel;
    const float* bias = last && p.bias ? p.bias + panel * kPanel : nullptr;
    for (int c = 0; c < columns; c++) y[c] = bias ? sums[c] + bias[c] : sums[c];
  }

  /**
   * Rows of a tile over one chunk; sums are kept in y for the next chunk. A partial panel has no space there and uses a
   * copy.
   */
  static void tile(const Segment& s, const Product& p, const Chunk& chunk, int panel, int row, int rows) {
    const uint8_t* x = p.input + p.row_bytes * static_cast<size_t>(row) + static_cast<size_t>(chunk.first) * kBlock * sizeof(float);
    const int left = s.rows - panel * kPanel;
    Sums sums{p.y + static_cast<size_t>(row) * p.ld + panel * kPanel, p.ld, chunk.first == 0};
    if (left >= kPanel) {
      multiply_rows<V::kTileRows>(rows, chunk, x, p.row_bytes, sums);
      if (!chunk.last || !p.bias) return;
      for (int m = 0; m < rows; m++) store_results(s, p, row + m, panel, 1, sums.row(m), true);
      return;
    }
    float copy[V::kTileRows][kPanel] = {};
    for (int m = 0; m < rows && !sums.fresh; m++) std::memcpy(copy[m], sums.row(m), sizeof(float) * static_cast<size_t>(left));
    multiply_rows<V::kTileRows>(rows, chunk, x, p.row_bytes, {copy[0], kPanel, sums.fresh});
    for (int m = 0; m < rows; m++) store_results(s, p, row + m, panel, 1, copy[m], chunk.last);
  }

  static void many_rows(const Segment& s, const Product& p, const Share& share) {
    Chunk chunk;
    int chunks = (s.blocks + Chunk::kBlocks - 1) / Chunk::kBlocks;
    for (int panel = share.panel; panel < share.panel_end; panel++) {
      for (int c = 0; c < chunks; c++) {
        chunk.first = s.blocks * c / chunks;
        chunk.count = s.blocks * (c + 1) / chunks - chunk.first;
        chunk.last = c + 1 == chunks;
        expand_panel(s, panel, chunk);
        for_tiles<V::kTileRows>(share.row, share.row_end, [&](int row, int rows) { tile(s, p, chunk, panel, row, rows); });
      }
    }
  }

  /** MT rows x NP panels over all inputs, each weight used as soon as it is widened. */
  template <TensorType TYPE, int MT, int NP>
  static void direct(const Segment& s, const Product& p, int panel, int row) {
    constexpr int N = NP * kVectors;
    constexpr size_t kBytes = Segment::block_bytes(TYPE);
    const size_t panel_bytes = s.panel_bytes();
    const uint8_t* block = s.data + panel_bytes * static_cast<size_t>(panel);
    const uint8_t* x = p.input + p.row_bytes * static_cast<size_t>(row);
    Float acc[MT][N];
#pragma GCC unroll 4
    for (int m = 0; m < MT; m++)
#pragma GCC unroll 16
      for (int n = 0; n < N; n++) acc[m][n] = V::zero();
    for (int b = 0; b < s.blocks; b++, block += kBytes, x += kBlock * sizeof(float)) {
      const uint8_t* later = block + prefetch_ahead<NP>(s, b, kPrefetchBlocks * kBytes, kPrefetchBlocks);
#pragma GCC unroll 4
      for (int i = 0; i < NP; i++) prefetch<kBytes>(later + static_cast<size_t>(i) * panel_bytes);
      const BlockWeights<V, TYPE, N> weights(block, 0, panel_bytes);
      unrolled<kBlock>([&](auto k) __attribute__((always_inline)) {
        Float w[N];
        weights.template at<k.value>(w);
#pragma GCC unroll 4
        for (int m = 0; m < MT; m++) {
          Float value = V::broadcast(reinterpret_cast<const float*>(x + static_cast<size_t>(m) * p.row_bytes)[k.value]);
#pragma GCC unroll 16
          for (int n = 0; n < N; n++) acc[m][n] = V::fma(value, w[n], acc[m][n]);
        }
      });
    }
    for (int m = 0; m < MT; m++) {
      float sums[N * V::kLanes];
#pragma GCC unroll 16
      for (int n = 0; n < N; n++) V::store(sums + n * V::kLanes, acc[m][n]);
      store_results(s, p, row + m, panel, NP, sums, true);
    }
  }

  template <TensorType TYPE>
  static void few_rows(const Segment& s, const Product& p, const Share& share) {
    int panel = share.panel;
    switch (share.row_end - share.row) {
      case 1:
        for (; panel + V::kDirectPanels <= share.panel_end; panel += V::kDirectPanels) direct<TYPE, 1, V::kDirectPanels>(s, p, panel, share.row);
        for (; panel < share.panel_end; panel++) direct<TYPE, 1, 1>(s, p, panel, share.row);
        return;
      case 2:
        for (; panel < share.panel_end; panel++) direct<TYPE, 2, 1>(s, p, panel, share.row);
        return;
      default:
        for (; panel < share.panel_end; panel++) direct<TYPE, 3, 1>(s, p, panel, share.row);
    }
  }

  static void run(const Segment& s, const Product& p, const Share& share) {
    if (share.row_end - share.row > kDirectRows || is_planar(s.type)) return many_rows(s, p, share);
    with_type(s.type, [&](auto type) { few_rows<type.value>(s, p, share); });
  }
};

}  // namespace
}  // namespace kvasir
