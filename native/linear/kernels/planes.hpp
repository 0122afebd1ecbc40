// Codes and scales of the types of planes, read as vectors of columns. Internal linkage: included by files of every
// instruction set.
#pragma once
#include "linear/kernels/tiles.hpp"

// V, lanes of columns, has: kLanes, Word (4 codes of each column), Float; load, shift (right; left if n < 0), keep (and
// with a byte in every position), either (or), code(word, e) as floats, f16 and int8 (loads of one value per column),
// set, mul.

namespace kvasir {
namespace {

/** Group `g` of a plane of BITS bits, at position PLACE of its bytes. */
template <int BITS, int PLACE, class V>
KVASIR_INLINE typename V::Word plane_bits(const uint8_t* plane, int g, int lane) {
  constexpr int kGroups = 8 / BITS;
  typename V::Word word = V::load(plane + 64 * (g / kGroups) + 4 * lane);
  return V::keep(V::shift(word, BITS * (g % kGroups) - PLACE), ((1 << BITS) - 1) << PLACE);
}

/** Codes of inputs 4 g .. 4 g + 3 of the columns from `lane` on. */
template <TensorType TYPE, class V>
KVASIR_INLINE typename V::Word plane_codes(const uint8_t* block, int g, int lane) {
  constexpr Planes kPlanes = planes_of(TYPE);
  typename V::Word low = plane_bits<kPlanes.low_bits, 0, V>(block, g, lane);
  if constexpr (kPlanes.high_bits == 0) return low;
  else return V::either(low, plane_bits<kPlanes.high_bits, kPlanes.low_bits, V>(block + 64 * kPlanes.low_bits, g, lane));
}

/** Scale of a part of a block, for the columns from `lane` on: a product of at most 11 and 8 bits, exact. */
template <TensorType TYPE, class V>
struct PlaneScale {
  static constexpr Planes kPlanes = planes_of(TYPE);
  typename V::Float scale;
  typename V::Float minimum;  // only for types with minima

  KVASIR_INLINE PlaneScale(const uint8_t* block, const uint8_t* header, int part, int lane) {
    const uint8_t* scales = block + kPlanes.code_bytes();
    const uint8_t* minima = scales + kPlanes.scale_bytes();
    if constexpr (kPlanes.super) {
      scale = V::mul(V::f16(header + 2 * lane), V::int8(scales + kPanel * part + lane));
      if constexpr (kPlanes.minima) minimum = V::mul(V::mul(V::f16(header + 2 * kPanel + 2 * lane), V::set(-1)), V::int8(minima + kPanel * part + lane));
    } else {
      scale = V::f16(scales + 2 * lane);
      if constexpr (kPlanes.minima) minimum = V::f16(minima + 2 * lane);
    }
  }
  /** The offset with which fma(code, scale, offset) is the weight; exact without a minimum. */
  KVASIR_INLINE typename V::Float offset() const {
    if constexpr (kPlanes.minima) return minimum;
    else return V::mul(scale, V::set(-kPlanes.zero));
  }
};

}  // namespace
}  // namespace kvasir
