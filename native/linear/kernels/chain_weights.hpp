// Weights of a block as float32 vectors of columns; exact except q4_1, where d q + m is rounded once. Written once over
// a vector type V.
#pragma once
#include <utility>

#include "linear/kernels/tiles.hpp"
#include "simd/float_bits.hpp"

namespace kvasir {
namespace {

template <class F, int... I>
KVASIR_INLINE void for_each_index(F&& body, std::integer_sequence<int, I...>) {
  (body(std::integral_constant<int, I>{}), ...);
}

/** Calls body with integral constants 0 .. COUNT - 1. */
template <int COUNT, class F>
KVASIR_INLINE void unrolled(F&& body) {
  for_each_index(body, std::make_integer_sequence<int, COUNT>{});
}

/** Quantised weights in order `quads` (see Segment): `kBits` bits each in a dword of their column. */
template <TensorType TYPE>
struct QuadsOf {
  static constexpr int kBits = TYPE == TensorType::q8_0 ? 8 : 4;
  static constexpr int kPlaces = 32 / kBits;  // weights of a dword
  static constexpr uint32_t kMask = (1u << kBits) - 1;
  static constexpr int kScales = TYPE == TensorType::q8_0 ? 512 : 256;
  static constexpr float kOffset = TYPE == TensorType::q8_0 ? -128.0f : -8.0f;  // unused for q4_1

  static constexpr int row(int k) { return k / kPlaces; }
  static constexpr int place(int k) { return kBits == 8 ? k % 4 : 2 * (k % 4) + k / 4 % 2; }
};

/**
 * Weights of N vectors of columns of one block. A quantised weight stays at its position in the dword, which makes it
 * 2^shift times too large, and is multiplied by a scale that is as much too small: w = fma(bits, d / 2^shift, offset x
 * d), the bits of (q - 8) d. With LEVELS the weights are the integers of byte products: d is 1, and the minimum of q4_1
 * is left out.
 */
template <class V, TensorType TYPE, int N, bool LEVELS = false>
class BlockWeights {
  using Float = typename V::Float;
  using Quads = QuadsOf<TYPE>;
  static constexpr int kVectors = kPanel / V::kLanes;
  static constexpr bool kQuantised = is_quantised(TYPE);

 public:
  /**
   * Starts at vector `first` of the block's panel; vectors past the panel's last are those of the next panel,
   * `panel_bytes` on.
   */
  KVASIR_INLINE BlockWeights(const uint8_t* block, int first, size_t panel_bytes) : block_(block), first_(first), panel_bytes_(panel_bytes) {
    if constexpr (kQuantised) {
#pragma GCC unroll 8
      for (int n = 0; n < N; n++) {
        const uint8_t* scales = panel(n) + Quads::kScales + 2 * lane(n);
        Float d = LEVELS ? V::broadcast(1.0f) : V::load_f16(scales);
        if constexpr (TYPE == TensorType::q4_1) least_[n] = LEVELS ? V::zero() : V::load_f16(scales + 2 * kPanel);
        else least_[n] = V::mul(d, V::broadcast(Quads::kOffset));
#pragma GCC unroll 8
        for (int p = 0; p < Quads::kPlaces; p++) scales_[p][n] = V::mul(d, V::broadcast(1.0f / static_cast<float>(1u << (p * Quads::kBits))));
      }
    }
  }

  /** The weights of input K. */
  template <int K>
  KVASIR_INLINE void at(Float (&w)[N]) const {
#pragma GCC unroll 8
    for (int n = 0; n < N; n++) {
      if constexpr (kQuantised) w[n] = quantised<K>(n);
      else w[n] = stored(panel(n) + kBytes * (K * kPanel + lane(n)));
    }
  }

 private:
  static constexpr int kBytes = TYPE == TensorType::f32 ? 4 : 2;

  template <int K>
  KVASIR_INLINE Float quantised(int n) const {
    constexpr int kPlace = Quads::place(K), kShift = kPlace * Quads::kBits;
    typename V::Int dwords = V::load_int(panel(n) + 64 * Quads::row(K) + 4 * lane(n));
    // The topmost bits would include the sign bit: they are shifted down.
    if constexpr (kPlace + 1 == Quads::kPlaces) return V::fma(V::to_float(V::template shift_down<kShift>(dwords)), scales_[0][n], least_[n]);
    else return V::fma(V::to_float(V::bits(dwords, static_cast<int32_t>(Quads::kMask << kShift))), scales_[kPlace][n], least_[n]);
  }

  static KVASIR_INLINE Float stored(const uint8_t* p) {
    if constexpr (TYPE == TensorType::f32) return V::load(reinterpret_cast<const float*>(p));
    else if constexpr (TYPE == TensorType::f16) return V::load_f16(p);
    else return V::load_bf16(p);
  }

  KVASIR_INLINE const uint8_t* panel(int n) const { return block_ + static_cast<size_t>((first_ + n) / kVectors) * panel_bytes_; }
  KVASIR_INLINE int lane(int n) const { return (first_ + n) % kVectors * V::kLanes; }

  const uint8_t* block_;
  int first_;
  size_t panel_bytes_;
  Float scales_[kQuantised ? Quads::kPlaces : 1][N];
  Float least_[N];
};

}  // namespace
}  // namespace kvasir
