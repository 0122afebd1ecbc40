// Layout of input buffers: rows of blocks of integers, bf16 values or float32 values, zero-padded to whole blocks of 32.
#pragma once
#include "linear/kernels.hpp"

namespace kvasir {

/** Strides of an input buffer in bytes. Row t, block b is at (t / rows) * tile + (t % rows) * row + b * block. */
struct InputLayout {
  int rows;      // rows of a tile: 1, or 16 for AMX
  size_t tile;
  size_t row;
  size_t block;

  static InputLayout of(Isa isa, InputForm form, int columns);
  size_t offset(int token) const {
    return static_cast<size_t>(token / rows) * tile + static_cast<size_t>(token % rows) * row;
  }
};

}  // namespace kvasir
