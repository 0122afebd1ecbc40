// The interface between the linear layer and its kernels: their operands, and the list of kernels.
#pragma once
#include "linear/layout.hpp"

namespace kvasir {

/**
 * One block of 32 int8 inputs with the sums that products need; rows of an int8 input buffer are arrays of these. The
 * sums allow weights to be stored unsigned: sum (q - 8) x = sum q x + minus8, exactly.
 */
struct Int8Block {
  int8_t values[kBlock];
  float scale;         // largest magnitude / 127, 0 for a block of zeros
  float scaled_sum;    // scale * sum(values), which q4_1 minima multiply
  int32_t minus8;      // -8 * sum(values)
  int16_t sums[2];     // sums of the first and the last 16 values
};
static_assert(sizeof(Int8Block) == 48, "kernels step by this size");

constexpr float kByteMax = 127;
constexpr float kWordMax = 32639;  // 127 x 257: such a word is 256 times a signed byte plus a signed byte

/**
 * One block of 32 i16 inputs with the sums that products need. Of every four inputs the first and the third form a
 * pair, then the second and the fourth: so the bytes of a weight dword become words by a shift and a mask.
 */
struct Int16Block {
  int16_t values[kBlock];
  float scale;         // largest magnitude / 32,639, 0 for a block of zeros
  float scaled_sum;    // scale * sum(values), which minima multiply
  int32_t minus8;      // -8 * sum(values)
  int32_t sums[2];     // sums of the first and the last 16 values
  int32_t products[3];  // minus the sums of x[2i] x[2i + 1], modulo 2^32: of all values, of the first 16, of the last 16

  KVASIR_INLINE void finish(float of, int first, int second) {
    scale = of;
    scaled_sum = of * static_cast<float>(first + second);
    minus8 = -8 * (first + second);
    sums[0] = first;
    sums[1] = second;
  }
  /** Crossed products subtract these; only their kernels need them. */
  KVASIR_INLINE void finish_products(uint32_t first, uint32_t second) {
    const uint32_t all[3] = {0 - first - second, 0 - first, 0 - second};
    __builtin_memcpy(products, all, sizeof products);
  }
};
static_assert(sizeof(Int16Block) == 96, "kernels step by this size");

/** The scale of a block of integers by the bits of its largest magnitude; a NaN or infinity makes the scale NaN. */
struct InputScale {
  bool finite;
  float scale, inverse;

  KVASIR_INLINE InputScale(uint32_t largest, float level_max) {
    float max;
    __builtin_memcpy(&max, &largest, sizeof max);
    finite = largest < 0x7f800000u;
    const bool zero = !(max >= kTiny);
    scale = !finite ? __builtin_nanf("") : zero ? 0.0f : max / level_max;
    inverse = zero ? 0.0f : level_max / max;
  }

 private:
  /** A block with a largest magnitude below this becomes zero: the inverse must stay finite. */
  static constexpr float kTiny = 1e-30f;
};

/** Operands of a product: y (tokens, ld) = input (tokens, columns) x weights^T + bias. All tasks of a run share it. */
struct Product {
  const uint8_t* input;  // rows of the input buffer
  size_t row_bytes;      // from one input row to the next (AMX bf16: from one tile of 16 rows to the next)
  const float* bias;     // of this segment, (rows of the segment); or null
  float* y;              // (tokens, ld), at this segment's first column
  size_t ld;
};

/** The part of one task: panels of a segment x rows of the step. */
struct Share {
  int panel, panel_end;
  int row, row_end;
};

using SegmentKernel = void (*)(const Segment&, const Product&, const Share&);

/** A kernel with its layout and task sizes. */
struct KernelChoice {
  SegmentKernel run;
  Order quantised;   // order of quantised blocks
  Order floats;      // order of float blocks
  int row_block;     // most rows of a task; bounds how often a loaded panel is reused
  int row_unit;      // row blocks are multiples of this
  int panel_group;   // panels that the kernel processes at once
};

KernelChoice choose_kernel(Isa isa, InputForm inputs);

/**
 * int8 products of the types of planes, written once over vectors. The bits equal those of linear_int8_* of the same
 * set.
 */
void linear_int8_planes_portable(const Segment&, const Product&, const Share&);
void linear_int8_planes_avx2(const Segment&, const Product&, const Share&);
void linear_int8_planes_avx512(const Segment&, const Product&, const Share&);

/** i16 products: the same bits on every instruction set. */
void linear_i16_portable(const Segment&, const Product&, const Share&);
void linear_i16_avx2(const Segment&, const Product&, const Share&);
void linear_i16_avx512(const Segment&, const Product&, const Share&);

/**
 * Each kernel computes y (tokens, 16 columns of each panel of the share). float32 chains: acc = fma(x[k], w[k], acc), k
 * ascending, for float32 inputs, exact or rounded to bf16. Blocks of integers: acc = fma(float(block sum), scale * input
 * scale, acc), then, if the type has minima, acc = fma(minimum, scaled_sum, acc), blocks ascending. If 16 inputs share
 * a scale, each half of a block is processed so.
 */
void linear_chain_portable(const Segment&, const Product&, const Share&);
void linear_int8_portable(const Segment&, const Product&, const Share&);
// Below: kernels of the instruction sets that the compiler supports (KVASIR_HAVE_*).
void linear_chain_avx2(const Segment&, const Product&, const Share&);
void linear_int8_avx2(const Segment&, const Product&, const Share&);
void linear_chain_avx512(const Segment&, const Product&, const Share&);
/** One chain of vdpbf16ps over pairs of inputs, k ascending. */
void linear_bf16_avx512(const Segment&, const Product&, const Share&);
void linear_int8_avx512(const Segment&, const Product&, const Share&);
/** One chain of TDPBF16PS over blocks of 32 inputs, k ascending. */
void linear_bf16_amx(const Segment&, const Product&, const Share&);
void linear_bf16_amx_emulated(const Segment&, const Product&, const Share&);
/** The bits of linear_int8_avx512, through tiles for 16 or more rows. */
void linear_int8_amx(const Segment&, const Product&, const Share&);
void linear_int8_amx_emulated(const Segment&, const Product&, const Share&);

void quantise_row_avx2(int columns, const float* x, Int8Block* out);
void quantise_row_avx512(int columns, const float* x, Int8Block* out);
void quantise_words_avx2(int columns, const float* x, Int16Block* out);
void quantise_words_avx512(int columns, const float* x, Int16Block* out);
/** Writes blocks of 32 bf16 values, `block_bytes` apart. Subnormals become zero, as in the products. */
void round_row_avx512(int columns, const float* x, uint8_t* out, size_t block_bytes);

}  // namespace kvasir
