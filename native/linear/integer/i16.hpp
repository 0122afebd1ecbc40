// i16 inputs: exact int32 sums of 16-bit products, one scale per sum. A tile of few rows unpacks the weights in registers;
// for many rows a chunk of a panel is unpacked once, and lanes with kCrossed multiply by crossed products (Winograd 1968):
// x0 w0 + x1 w1 = (x0 + w1) (x1 + w0) - x0 x1 - w0 w1, one product for two. The last two terms are sums of a row's block
// and of a column's block. Levels of at most 32,639 and weights of at most 128 add up within 16 bits; sums wrap in 32
// bits, and their difference is exact. Instantiated for lanes V once per instruction set; internal linkage.
#pragma once
#include "linear/kernels/planes.hpp"

// V has, beside what planes.hpp requires: Int (a sum of each column); kDirectRows, the most rows of a tile that unpacks
// weights in registers, and kDirectPlaneRows for types of planes; kDirectRowsMax, up to which such tiles take less time
// than chunks (types of planes: one tile); kTileRows and kTilePanels of a tile over unpacked weights,
// and kChunkBlocks of a chunk;
// keep_words (and with a word in both positions), subtract_words, store_words, multiply_add (both products of a dword
// of two words), with kCrossed crossed_add, subtract_products, load_ints and store_ints, scaled_int (an int of memory times 1, 2, 4, ...), set_int, add, to_float.

namespace kvasir {
namespace {

/** The codes and scales of a quantised type. q4 and q8 blocks lie as a single plane does. */
template <class V, TensorType TYPE>
struct WordCodes {
  using Word = typename V::Word;
  static constexpr bool kPlanar = is_planar(TYPE);
  static constexpr Planes kPlanes = planes_of(TYPE);  // of planar types only
  static constexpr int kBits = kPlanar ? kPlanes.low_bits : TYPE == TensorType::q8_0 ? 8 : 4;
  static constexpr int kZero = kPlanar ? kPlanes.zero : TYPE == TensorType::q4_0 ? 8 : TYPE == TensorType::q8_0 ? 128 : 0;
  static constexpr bool kMinima = kPlanar ? kPlanes.minima : TYPE == TensorType::q4_1;
  static constexpr int kParts = kPlanar ? kPlanes.parts() : 1;

  /** Codes of inputs 4 g + half and 4 g + half + 2 of the columns from `lane` on. */
  static KVASIR_INLINE Word pair(const uint8_t* block, int g, int half, int lane) {
    if constexpr (kPlanar && kPlanes.high_bits != 0) return V::keep_words(V::shift(plane_codes<TYPE, V>(block, g, lane), 8 * half), 255);
    constexpr int kGroups = 8 / kBits;
    return V::keep_words(V::shift(V::load(block + 64 * (g / kGroups) + 4 * lane), kBits * (g % kGroups) + 8 * half), (1 << kBits) - 1);
  }

  struct Scale {
    typename V::Float scale, minimum;  // the minimum only for types with minima
    KVASIR_INLINE Scale(const BlockWalk<TYPE>& walk, int part, int lane) {
      if constexpr (kPlanar) {
        const PlaneScale<TYPE, V> of(walk.block, walk.header, part, lane);
        scale = of.scale;
        if constexpr (kMinima) minimum = of.minimum;
      } else {
        const uint8_t* scales = walk.block + 64 * kBits + 2 * lane;
        scale = V::f16(scales);
        if constexpr (kMinima) minimum = V::f16(scales + 2 * kPanel);
      }
    }
  };
};

template <class V>
struct WordProducts {
  using Float = typename V::Float;
  using Int = typename V::Int;
  using Word = typename V::Word;
  static constexpr int kVectors = kPanel / V::kLanes;
  static constexpr int kPairs = kBlock / 2;
  static constexpr size_t kPrefetchBytes = 4608;

  /** Weights of some blocks of a panel: pairs of words without their zero, in the order of an input block; scales. */
  struct Chunk {
    static constexpr int kBlocks = V::kChunkBlocks;
    alignas(64) uint8_t pairs[kBlocks][kPairs][4 * kPanel];
    alignas(64) float scales[kBlocks][2][kPanel];  // of each part
    alignas(64) float minima[kBlocks][2][kPanel];
    alignas(64) int32_t products[kBlocks][2][kPanel];  // minus the sums of w0 w1, with kCrossed
  };

  static constexpr int kRowsMax = 96;  // with sums held at once
  template <int NP>
  using Sums = float (*)[NP * kPanel];

  static KVASIR_INLINE float scaled_sum(const Int16Block& x, int parts, int part) {
    return parts == 1 ? x.scaled_sum : x.scale * static_cast<float>(x.sums[part]);
  }

  static KVASIR_INLINE int32_t pair_at(const Int16Block& x, int pair) {
    int32_t two;
    std::memcpy(&two, x.values + 2 * pair, sizeof two);
    return two;
  }

  static KVASIR_INLINE const Int16Block& block_at(const uint8_t* x) { return *reinterpret_cast<const Int16Block*>(x); }

  /** The negated zero of unsigned codes times the inputs of a part. */
  template <int ZERO, int PARTS>
  static KVASIR_INLINE Int first_sum(const Int16Block& x, int part) {
    if constexpr (ZERO == 0) return V::set_int(0);
    else if constexpr (PARTS == 1) return V::template scaled_int<ZERO / 8>(&x.minus8);
    else return V::set_int(-ZERO * x.sums[part]);
  }

  /** Adds bias and stores the existing columns of one row of a panel. */
  static __attribute__((noinline)) void store_row(const Segment& s, const Product& p, int row, int panel, const float* sums) {
    const int left = s.rows - panel * kPanel;
    float* y = p.y + static_cast<size_t>(row) * p.ld + panel * kPanel;
    const float* bias = p.bias ? p.bias + panel * kPanel : nullptr;
    if (left >= kPanel && !bias) return void(std::memcpy(y, sums, sizeof(float) * kPanel));
    for (int c = 0; c < (left < kPanel ? left : kPanel); c++) y[c] = bias ? sums[c] + bias[c] : sums[c];
  }

  /** MT rows x one panel over all inputs. */
  template <TensorType TYPE, int MT>
  static void direct(const Segment& s, const Product& p, int panel, int row) {
    using Codes = WordCodes<V, TYPE>;
    constexpr int kGroups = kBlock / 4 / Codes::kParts;  // of a part
    constexpr bool kTwice = MT * kVectors <= 4;  // few sums would wait for each other
    BlockWalk<TYPE> walk(s, panel, 0);
    RowPointers<MT> x(p.input + p.row_bytes * static_cast<size_t>(row), p.row_bytes);
    Float acc[MT][kVectors];
#pragma GCC unroll 16
    for (int m = 0; m < MT; m++)
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; v++) acc[m][v] = V::set(0);
    for (int b = 0; b < s.blocks; b++, walk.next(), x.advance(sizeof(Int16Block))) {
      prefetch<static_cast<int>(Segment::block_bytes(TYPE))>(walk.block + kPrefetchBytes);
#pragma GCC unroll 2
      for (int part = 0; part < Codes::kParts; part++) {
        Int sum[MT][kVectors], odd[MT][kVectors];
#pragma GCC unroll 16
        for (int m = 0; m < MT; m++)
#pragma GCC unroll 4
          for (int v = 0; v < kVectors; v++) {
            sum[m][v] = first_sum<Codes::kZero, Codes::kParts>(block_at(x.row(m)), part);
            if constexpr (kTwice) odd[m][v] = V::set_int(0);
          }
#pragma GCC unroll 8
        for (int g = 0; g < kGroups; g++) {
#pragma GCC unroll 2
          for (int half = 0; half < 2; half++) {
            const int group = kGroups * part + g;
            Word w[kVectors];
#pragma GCC unroll 4
            for (int v = 0; v < kVectors; v++) w[v] = Codes::pair(walk.block, group, half, v * V::kLanes);
#pragma GCC unroll 16
            for (int m = 0; m < MT; m++) {
              const int32_t values = pair_at(block_at(x.row(m)), 2 * group + half);
#pragma GCC unroll 4
              for (int v = 0; v < kVectors; v++) {
                Int& into = kTwice && half ? odd[m][v] : sum[m][v];
                into = V::multiply_add(into, w[v], values);
              }
            }
          }
        }
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; v++) {
          const typename Codes::Scale scale(walk, part, v * V::kLanes);
#pragma GCC unroll 16
          for (int m = 0; m < MT; m++) {
            const Int16Block& block = block_at(x.row(m));
            if constexpr (kTwice) sum[m][v] = V::add(sum[m][v], odd[m][v]);
            acc[m][v] = V::fma(V::to_float(sum[m][v]), V::mul(scale.scale, V::set(block.scale)), acc[m][v]);
            if constexpr (Codes::kMinima) acc[m][v] = V::fma(scale.minimum, V::set(scaled_sum(block, Codes::kParts, part)), acc[m][v]);
          }
        }
      }
    }
#pragma GCC unroll 16
    for (int m = 0; m < MT; m++) {
      alignas(64) float sums[kPanel];
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; v++) V::store_floats(sums + v * V::kLanes, acc[m][v]);
      store_row(s, p, row + m, panel, sums);
    }
  }

  /** The product for `rows` <= MAX rows. */
  template <TensorType TYPE, int MAX>
  static void direct_rows(int rows, const Segment& s, const Product& p, int panel, int row) {
    if constexpr (MAX > 1) {
      if (rows < MAX) return direct_rows<TYPE, MAX - 1>(rows, s, p, panel, row);
    }
    direct<TYPE, MAX>(s, p, panel, row);
  }

  /** Unpacks `blocks` blocks of a panel from `first` on. */
  template <TensorType TYPE>
  static void unpack(const Segment& s, int panel, int first, int blocks, Chunk& chunk) {
    using Codes = WordCodes<V, TYPE>;
    BlockWalk<TYPE> walk(s, panel, first);
    for (int b = 0; b < blocks; b++, walk.next()) {
      prefetch<static_cast<int>(Segment::block_bytes(TYPE))>(walk.block + kPrefetchBytes);
      for (int lane = 0; lane < kPanel; lane += V::kLanes) {
        Int products[Codes::kParts];
        for (Int& sum : products) sum = V::set_int(0);
#pragma GCC unroll 8
        for (int g = 0; g < kBlock / 4; g++) {
          Word w[2];
#pragma GCC unroll 2
          for (int half = 0; half < 2; half++) {
            w[half] = V::subtract_words(Codes::pair(walk.block, g, half, lane), Codes::kZero);
            V::store_words(&chunk.pairs[b][2 * g + half][4 * lane], w[half]);
          }
          if constexpr (V::kCrossed) products[g * Codes::kParts / 8] = V::subtract_products(products[g * Codes::kParts / 8], w[0], w[1]);
        }
#pragma GCC unroll 2
        for (int part = 0; part < Codes::kParts; part++) {
          if constexpr (V::kCrossed) V::store_ints(&chunk.products[b][part][lane], products[part]);
          const typename Codes::Scale scale(walk, part, lane);
          V::store_floats(&chunk.scales[b][part][lane], scale.scale);
          if constexpr (Codes::kMinima) V::store_floats(&chunk.minima[b][part][lane], scale.minimum);
        }
      }
    }
  }

  template <int PARTS>
  static KVASIR_INLINE Int first_chunk_sum(const Chunk& chunk, int b, int part, int v, const Int16Block& x) {
    if constexpr (V::kCrossed) return V::add(V::load_ints(&chunk.products[b][part][v * V::kLanes]), V::set_int(x.products[PARTS == 1 ? 0 : 1 + part]));
    else return V::set_int(0);
  }

  /** MT rows x NP panels over a chunk; adds to `sums`. Not inlined: one copy serves several types. */
  template <int PARTS, bool MINIMA, int MT, int NP>
  static __attribute__((noinline)) void tile(const uint8_t* input, size_t row_bytes, const Chunk* chunks, int blocks, Sums<NP> sums) {
    constexpr int N = NP * kVectors;
    RowPointers<MT> x(input, row_bytes);
    for (int b = 0; b < blocks; b++, x.advance(sizeof(Int16Block))) {
#pragma GCC unroll 2
      for (int part = 0; part < PARTS; part++) {
        Int sum[MT][N];
#pragma GCC unroll 16
        for (int m = 0; m < MT; m++)
#pragma GCC unroll 4
          for (int n = 0; n < N; n++) sum[m][n] = first_chunk_sum<PARTS>(chunks[n / kVectors], b, part, n % kVectors, block_at(x.row(m)));
        constexpr int kStep = V::kCrossed ? 2 : 1;  // pairs
        constexpr int kPartPairs = kPairs / PARTS;
#pragma GCC unroll 16
        for (int i = kPartPairs * part; i < kPartPairs * (part + 1); i += kStep) {
          Word w[kStep][N];
#pragma GCC unroll 4
          for (int n = 0; n < N; n++)
#pragma GCC unroll 2
            for (int step = 0; step < kStep; step++) w[step][n] = V::load(&chunks[n / kVectors].pairs[b][i + step][4 * V::kLanes * (n % kVectors)]);
#pragma GCC unroll 16
          for (int m = 0; m < MT; m++) {
            const int32_t first = pair_at(block_at(x.row(m)), i);
            if constexpr (V::kCrossed) {
              const Int x0 = V::set_int(first), x1 = V::set_int(pair_at(block_at(x.row(m)), i + 1));
#pragma GCC unroll 4
              for (int n = 0; n < N; n++) sum[m][n] = V::crossed_add(sum[m][n], w[0][n], w[1][n], x0, x1);
            } else {
#pragma GCC unroll 4
              for (int n = 0; n < N; n++) sum[m][n] = V::multiply_add(sum[m][n], w[0][n], first);
            }
          }
        }
#pragma GCC unroll 4
        for (int n = 0; n < N; n++) {
          const int lane = V::kLanes * (n % kVectors);
          const Float scale = V::load_floats(&chunks[n / kVectors].scales[b][part][lane]);
#pragma GCC unroll 16
          for (int m = 0; m < MT; m++) {
            const Int16Block& block = block_at(x.row(m));
            float* out = &sums[m][V::kLanes * n];
            Float acc = V::fma(V::to_float(sum[m][n]), V::mul(scale, V::set(block.scale)), V::load_floats(out));
            if constexpr (MINIMA) acc = V::fma(V::load_floats(&chunks[n / kVectors].minima[b][part][lane]), V::set(scaled_sum(block, PARTS, part)), acc);
            V::store_floats(out, acc);
          }
        }
      }
    }
  }

  /** The tile for `rows` <= MAX rows. */
  template <int PARTS, bool MINIMA, int MAX, int NP>
  static void tile_rows(int rows, const uint8_t* input, size_t row_bytes, const Chunk* chunks, int blocks, Sums<NP> sums) {
    if constexpr (MAX > 1) {
      if (rows < MAX) return tile_rows<PARTS, MINIMA, MAX - 1, NP>(rows, input, row_bytes, chunks, blocks, sums);
    }
    tile<PARTS, MINIMA, MAX, NP>(input, row_bytes, chunks, blocks, sums);
  }

  /** NP panels and at most kRowsMax rows. */
  template <TensorType TYPE, int NP>
  static void panels(const Segment& s, const Product& p, int panel, int first_row, int rows, Chunk* chunks) {
    using Codes = WordCodes<V, TYPE>;
    alignas(64) float sums[kRowsMax][NP * kPanel];
    std::memset(sums, 0, sizeof sums[0] * static_cast<size_t>(rows));
    const int parts = (s.blocks + Chunk::kBlocks - 1) / Chunk::kBlocks;
    for (int c = 0; c < parts; c++) {
      const int first = s.blocks * c / parts, blocks = s.blocks * (c + 1) / parts - first;
      for (int n = 0; n < NP; n++) unpack<TYPE>(s, panel + n, first, blocks, chunks[n]);
      const uint8_t* input = p.input + p.row_bytes * static_cast<size_t>(first_row) + sizeof(Int16Block) * static_cast<size_t>(first);
      for_tiles<V::kTileRows>(0, rows, [&](int row, int count) {
        tile_rows<Codes::kParts, Codes::kMinima, V::kTileRows, NP>(count, input + p.row_bytes * static_cast<size_t>(row), p.row_bytes, chunks, blocks, sums + row);
      });
    }
    for (int m = 0; m < rows; m++) {
      for (int n = 0; n < NP; n++) store_row(s, p, first_row + m, panel + n, &sums[m][kPanel * n]);
    }
  }

  template <TensorType TYPE, int NP>
  static void panels(const Segment& s, const Product& p, int panel, const Share& share, Chunk* chunks) {
    for_tiles<kRowsMax>(share.row, share.row_end, [&](int row, int rows) { panels<TYPE, NP>(s, p, panel, row, rows, chunks); });
  }

  template <TensorType TYPE>
  static void run_type(const Segment& s, const Product& p, const Share& share) {
    constexpr int kDirect = is_planar(TYPE) ? V::kDirectPlaneRows : V::kDirectRows;
    int panel = share.panel;
    if (share.row_end - share.row <= (is_planar(TYPE) ? kDirect : V::kDirectRowsMax)) {
      for (; panel < share.panel_end; panel++) {
        for_tiles<kDirect>(share.row, share.row_end, [&](int row, int rows) { direct_rows<TYPE, kDirect>(rows, s, p, panel, row); });
      }
      return;
    }
    Chunk chunks[V::kTilePanels];
    for (; panel + V::kTilePanels <= share.panel_end; panel += V::kTilePanels) panels<TYPE, V::kTilePanels>(s, p, panel, share, chunks);
    for (; panel < share.panel_end; panel++) panels<TYPE, 1>(s, p, panel, share, chunks);
  }

  static void run(const Segment& s, const Product& p, const Share& share) {
    switch (s.type) {
      case TensorType::q4_0: return run_type<TensorType::q4_0>(s, p, share);
      case TensorType::q4_1: return run_type<TensorType::q4_1>(s, p, share);
      case TensorType::q8_0: return run_type<TensorType::q8_0>(s, p, share);
      default: return with_planar(s.type, [&](auto type) { run_type<decltype(type)::value>(s, p, share); });
    }
  }
};

}  // namespace
}  // namespace kvasir
