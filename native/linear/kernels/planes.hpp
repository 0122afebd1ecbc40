// Codes and scales of the types of planes, read a vector of columns at a time. Internal linkage: included by files of every instruction set.
#pragma once
#include "linear/kernels/tiles.hpp"

// V, lanes of columns: kLanes, Word (4 codes of each column), Float; load, shift (right; left where n < 0), keep (an and with a byte
// everywhere), either (an or), code(word, e) as floats, f16 and int8 (loads of one value for each column), set, mul.

namespace kvasir {
namespace {

/** Group `g` of a plane of BITS bits, in place PLACE of its bytes. */
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

/** Scale of a part of a block, for the columns from `lane` on: a product of 11 and 8 bits at most, exact. */
template <TensorType TYPE, class V>
struct PlaneScale {
  static constexpr Planes kPlanes = planes_of(TYPE);
  typename V::Float scale;
  typename V::Float minimum;  // where the type has them

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
  /** What fma(code, scale, offset) makes the weight; exact where there is no minimum. */
  KVASIR_INLINE typename V::Float offset() const {
    if constexpr (kPlanes.minima) return minimum;
    else return V::mul(scale, V::set(-kPlanes.zero));
  }
};

}  // namespace
}  // namespace kvasir
