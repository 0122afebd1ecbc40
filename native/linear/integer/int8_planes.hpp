// int8 inputs and types of planes: a block's codes are unpacked once for all rows of a task; their sums stay in L1.
// Instantiated for lanes V (see planes.hpp) once per instruction set; internal linkage.
#pragma once
#include "linear/kernels/planes.hpp"

namespace kvasir {
namespace {

constexpr int kPlaneRows = 96;  // rows with sums held at once

template <class V, TensorType TYPE>
struct PlaneProducts {
  static constexpr Planes kPlanes = planes_of(TYPE);
  static constexpr int kGroups = kPlanes.part / 4;  // of a part
  static constexpr int kCodeMax = (1 << (kPlanes.low_bits + kPlanes.high_bits)) - 1;
  static constexpr int kVectors = kPanel / V::kLanes;
  static constexpr size_t kPrefetchBytes = 8192;

  struct Sums {
    alignas(64) float rows[kPlaneRows][kPanel];
  };

  /** A part's sum starts at the negated bias of unsigned storage. */
  static KVASIR_INLINE int first_sum(const Int8Block& x, int part) {
    if constexpr (kPlanes.zero == 0) return 0;
    else if constexpr (kPlanes.part == kBlock) return x.minus8 * (kPlanes.zero / 8);
    else return -kPlanes.zero * x.sums[part];
  }
  static KVASIR_INLINE float scaled_sum(const Int8Block& x, int part) {
    return kPlanes.part == kBlock ? x.scaled_sum : x.scale * static_cast<float>(x.sums[part]);
  }

  static KVASIR_INLINE void add_part(typename V::Float& acc, const typename V::Codes* codes, const Int8Block& x, int part, const PlaneScale<TYPE, V>& scale) {
    typename V::Int sum = V::template dot<kGroups, kCodeMax>(codes + kGroups * part, x.values + kPlanes.part * part, first_sum(x, part));
    acc = V::fma(V::to_float(sum), V::mul(scale.scale, V::set(x.scale)), acc);
    if constexpr (kPlanes.minima) acc = V::fma(scale.minimum, V::set(scaled_sum(x, part)), acc);
  }

  /** One block for the columns from `lane` on and all rows. */
  static KVASIR_INLINE void add_block(const BlockWalk<TYPE>& walk, const uint8_t* input, size_t row_bytes, int rows, int lane, Sums& sums) {
    typename V::Codes codes[kBlock / 4];
#pragma GCC unroll 8
    for (int g = 0; g < kBlock / 4; g++) codes[g] = V::prepare(plane_codes<TYPE, V>(walk.block, g, lane));
    const PlaneScale<TYPE, V> first(walk.block, walk.header, 0, lane), last(walk.block, walk.header, kPlanes.parts() - 1, lane);
    for (int m = 0; m < rows; m++, input += row_bytes) {
      const Int8Block& x = *reinterpret_cast<const Int8Block*>(input);
      typename V::Float acc = V::load_floats(&sums.rows[m][lane]);
      add_part(acc, codes, x, 0, first);
      if constexpr (kPlanes.parts() == 2) add_part(acc, codes, x, 1, last);
      V::store_floats(&sums.rows[m][lane], acc);
    }
  }

  static void panel_rows(const Segment& s, const Product& p, int panel, int row, int rows) {
    Sums sums;
    std::memset(sums.rows, 0, sizeof(sums.rows[0]) * static_cast<size_t>(rows));
    const uint8_t* input = p.input + p.row_bytes * static_cast<size_t>(row);
    BlockWalk<TYPE> walk(s, panel, 0);
    for (int b = 0; b < s.blocks; b++, walk.next(), input += sizeof(Int8Block)) {
      for (size_t i = 0; i < Segment::block_bytes(TYPE) + 63; i += 64) __builtin_prefetch(walk.block + kPrefetchBytes + i);
      for (int v = 0; v < kVectors; v++) add_block(walk, input, p.row_bytes, rows, v * V::kLanes, sums);
    }
    int left = s.rows - panel * kPanel;
    int columns = left < kPanel ? left : kPanel;
    for (int m = 0; m < rows; m++) {
      float* y = p.y + static_cast<size_t>(row + m) * p.ld + panel * kPanel;
      for (int c = 0; c < columns; c++) y[c] = p.bias ? sums.rows[m][c] + p.bias[panel * kPanel + c] : sums.rows[m][c];
    }
  }

  static void run(const Segment& s, const Product& p, const Share& share) {
    for (int panel = share.panel; panel < share.panel_end; panel++) {
      for_tiles<kPlaneRows>(share.row, share.row_end, [&](int row, int rows) { panel_rows(s, p, panel, row, rows); });
    }
  }
};

template <class V>
void run_planes(const Segment& s, const Product& p, const Share& share) {
  with_planar(s.type, [&](auto type) { PlaneProducts<V, decltype(type)::value>::run(s, p, share); });
}

}  // namespace
}  // namespace kvasir
