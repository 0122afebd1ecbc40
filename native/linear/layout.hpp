// The memory layout of a segment of a linear layer: panels of 16 output columns, divided into blocks of 32 inputs,
// about as wide as stored.
#pragma once
#include <cstring>

#include "linear/planes_layout.hpp"

namespace kvasir {

/** The order of the elements inside a block of (32 inputs, 16 columns). */
enum class Order {
  /** [k/4][16][4]: four inputs of a column are adjacent, as byte dot products read them. Quantised types. */
  quads,
  /** [k/2][16][2]: two inputs of a column are adjacent, as bf16 dot products and AMX tiles read them. */
  pairs,
  /** [k][16], as chains of multiply-adds read them. Float types. */
  rows,
};

/**
 * The blocks of a panel are consecutive, and so are panels. A quantised block is its values, then 16 f16 scales (then
 * 16 f16 minima). Nibbles share bytes so that unpacking is a shift and a mask:
 * - quads: the dword of column c in 64-byte row j holds k = 8j + e in the low nibble of byte e and k = 8j + 4 + e in
 *   the high one.
 * - pairs: columns c and c + 8 share a qword in 64-byte row z: byte s of its dword h holds k = 8z + 2s + h, low nibble
 *   c, high nibble c + 8. q8_0 in quads has its sign bit flipped (value + 128), because byte dot products take one
 *   unsigned operand. Types of planes (planes_layout.hpp) have one layout for every order; those of super-blocks have a
 *   header before every 8 blocks.
 */
struct Segment {
  TensorType type;
  Order order;
  int rows;     // output columns of the product
  int columns;  // inputs as stored
  int blocks;
  int panels;
  uint8_t* data;

  KVASIR_INLINE size_t block_bytes() const { return block_bytes(type); }
  KVASIR_INLINE size_t panel_bytes() const { return run_bytes(type, blocks); }
  KVASIR_INLINE size_t bytes() const { return panel_bytes() * static_cast<size_t>(panels); }

  /** Bytes of `count` consecutive blocks, with the headers among them (whole super-blocks). */
  KVASIR_INLINE static constexpr size_t run_bytes(TensorType type, int count) {
    return block_bytes(type) * static_cast<size_t>(count) + header_bytes(type) * static_cast<size_t>(count / kSuperBlocks);
  }
  KVASIR_INLINE static constexpr size_t header_bytes(TensorType type) { return is_planar(type) ? planes_of(type).header_bytes() : 0; }
  KVASIR_INLINE static constexpr size_t block_bytes(TensorType type) {
    if (is_planar(type)) return planes_of(type).block_bytes();
    switch (type) {
      case TensorType::q4_0: return 256 + 32;
      case TensorType::q4_1: return 256 + 64;
      case TensorType::q8_0: return 512 + 32;
      case TensorType::f32: return 2048;
      default: return 1024;
    }
  }
};

constexpr bool is_quantised(TensorType type) { return type >= TensorType::q4_0; }

/** Packs one stored row (GGUF byte layout) into column `row` of the segment; requires zeroed memory. */
void pack_row(const Segment& segment, int row, const uint8_t* stored);
/** Widens one packed row to out (columns) in float32; adding a minimum rounds once, everything else is exact. */
void unpack_row(const Segment& segment, int row, float* out);

}  // namespace kvasir
