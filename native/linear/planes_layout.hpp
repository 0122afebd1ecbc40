// The memory layout of blocks of codes of 2 to 6 bits: bit planes, followed by their scales.
#pragma once
#include <type_traits>

#include "base/types.hpp"

/**
 * Inlined everywhere: an out-of-line copy of one instruction set's file could replace another's. Builds of the portable
 * kernels alone, which compile faster without it, define it as `inline`.
 */
#ifndef KVASIR_INLINE
#define KVASIR_INLINE inline __attribute__((always_inline))
#endif

namespace kvasir {

constexpr int kPanel = 16;       // output columns of a panel; the last panel of a segment is padded with zero weights
constexpr int kBlock = 32;       // inputs of a block; inputs are padded with zeros to whole blocks
constexpr int kSuperBlocks = 8;  // blocks of a super-block; their scales have a common factor

/**
 * A block of (32 inputs, 16 columns) of codes: value = scale x (code - zero), or scale x code + minimum. First the
 * planes: the low bits of all codes, then the high ones. A group is four inputs of every column, its codes in bytes
 * [16][4] as byte dot products read them; a plane of n bits holds 8 / n groups in each of its rows of 64 bytes, the
 * first group in the lowest bits. Then 16 f16 scales and 16 f16 minima (q5_0, q5_1); or, for each part of 16 or 32
 * inputs, 16 scales as signed bytes, then all minima likewise. These multiply d and -dmin, which are f16 for each
 * column in a header before every eight blocks.
 */
struct Planes {
  int low_bits, high_bits;
  int part;  // inputs that share a scale
  int zero;
  bool minima;
  bool super;  // scales are multiplied by those of a header

  KVASIR_INLINE constexpr int parts() const { return kBlock / part; }
  KVASIR_INLINE constexpr size_t code_bytes() const { return 64 * static_cast<size_t>(low_bits + high_bits); }
  KVASIR_INLINE constexpr size_t scale_bytes() const { return super ? kPanel * static_cast<size_t>(parts()) : 2 * kPanel; }
  KVASIR_INLINE constexpr size_t block_bytes() const { return code_bytes() + scale_bytes() * (minima ? 2 : 1); }
  KVASIR_INLINE constexpr size_t header_bytes() const { return super ? 2 * kPanel * (minima ? 2 : 1) : 0; }
};

KVASIR_INLINE constexpr bool is_planar(TensorType type) { return type >= TensorType::q5_0; }

KVASIR_INLINE constexpr Planes planes_of(TensorType type) {
  switch (type) {
    case TensorType::q5_0: return {4, 1, 32, 16, false, false};
    case TensorType::q5_1: return {4, 1, 32, 0, true, false};
    case TensorType::q2_k: return {2, 0, 16, 0, true, true};
    case TensorType::q3_k: return {2, 1, 16, 4, false, true};
    case TensorType::q4_k: return {4, 0, 32, 0, true, true};
    case TensorType::q5_k: return {4, 1, 32, 0, true, true};
    default: return {4, 2, 16, 32, false, true};
  }
}

/** Calls body(integral constant of the type) for a type of planes. */
template <class F>
void with_planar(TensorType type, F&& body) {
  switch (type) {
    case TensorType::q5_0: return body(std::integral_constant<TensorType, TensorType::q5_0>{});
    case TensorType::q5_1: return body(std::integral_constant<TensorType, TensorType::q5_1>{});
    case TensorType::q2_k: return body(std::integral_constant<TensorType, TensorType::q2_k>{});
    case TensorType::q3_k: return body(std::integral_constant<TensorType, TensorType::q3_k>{});
    case TensorType::q4_k: return body(std::integral_constant<TensorType, TensorType::q4_k>{});
    case TensorType::q5_k: return body(std::integral_constant<TensorType, TensorType::q5_k>{});
    default: return body(std::integral_constant<TensorType, TensorType::q6_k>{});
  }
}

}  // namespace kvasir
