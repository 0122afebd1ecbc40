// Products of attention in registers: queries by keys and weights by values are one loop. Internal linkage: each
// instruction set compiles its own copy with its own flags.
#pragma once
#include <utility>

#include "attention/range.hpp"

#if defined(__clang__)
#define KVASIR_UNROLL _Pragma("clang loop unroll(full)")
#else
#define KVASIR_UNROLL _Pragma("GCC unroll 16")
#endif

namespace kvasir {
namespace {

/** How a product combines with c. */
enum class Into {
  nothing,  // c is not read
  chain,    // the products are added to c one by one
  sum,      // the products are summed, and the sum is added to c
};

/**
 * c (rows, columns) = or += a (rows, pages x steps) x b (pages x steps, columns of 32-bit lanes). One accumulator per
 * element, steps in order.
 */
template <class Form>
struct Product {
  const typename Form::Element* a;  // (rows, pages x steps x kPack)
  int a_stride;                     // elements
  const uint8_t* const* b;          // (pages): page + b_offset is the start of (steps, columns)
  ptrdiff_t b_offset;
  ptrdiff_t b_stride;  // bytes of a step
  int pages;
  int steps;
  float* c;
  int c_stride;
  Into into;
  int prefetch_pages;  // how many pages ahead to prefetch b; 0: none
};

/** Compile-time parameters of a block. */
template <int Vectors, int AStride, bool Ahead, bool Part>
struct BlockShape {
  static constexpr int kVectors = Vectors;  // of columns
  static constexpr int kAStride = AStride;  // 0: known at run time only; otherwise addresses of a need one register
  static constexpr bool kAhead = Ahead;     // prefetches
  static constexpr bool kPart = Part;       // only the first `lanes` lanes of b exist
};

/** Registers of R x N accumulators. */
template <class Form, class Shape, int R>
void multiply_block(const Product<Form>& work, int row, int column, int lanes) {
  using Lanes = typename Form::Lanes;
  constexpr int kWidth = Lanes::kWidth;
  constexpr int N = Shape::kVectors;
  const ptrdiff_t a_stride = Shape::kAStride != 0 ? Shape::kAStride : work.a_stride;
  const typename Form::Element* a = work.a + row * a_stride;
  float* c = work.c + static_cast<ptrdiff_t>(row) * work.c_stride + column;
  typename Lanes::Vec sums[R][N];
  KVASIR_UNROLL
  for (int r = 0; r < R; r++) {
    KVASIR_UNROLL
    for (int n = 0; n < N; n++) sums[r][n] = work.into == Into::chain ? Lanes::load(c + r * work.c_stride + n * kWidth) : Lanes::zero();
  }
  for (int page = 0; page < work.pages; page++) {
    const uint8_t* b = work.b[page] + work.b_offset + 4 * column;
    const ptrdiff_t ahead = Shape::kAhead ? work.b[page + work.prefetch_pages] - work.b[page] : 0;
    for (int step = 0; step < work.steps; step++) {
      typename Form::Right right[N];
      KVASIR_UNROLL
      for (int n = 0; n < N; n++) {
        const uint8_t* from = b + 4 * n * kWidth;
        if (Shape::kAhead && (n * kWidth) % 16 == 0) __builtin_prefetch(from + ahead);
        right[n] = Shape::kPart ? Form::load_part(from, lanes) : Form::load(from);
      }
      KVASIR_UNROLL
      for (int r = 0; r < R; r++) {
        typename Form::Left left = Form::broadcast(a + r * a_stride);
        KVASIR_UNROLL
        for (int n = 0; n < N; n++) sums[r][n] = Form::multiply_add(sums[r][n], left, right[n]);
      }
      a += Form::kPack;
      b += work.b_stride;
    }
  }
  if (Form::kShortChains && work.into == Into::sum) {
    KVASIR_UNROLL
    for (int r = 0; r < R; r++) {
      KVASIR_UNROLL
      for (int n = 0; n < N; n++) sums[r][n] = Lanes::add(Lanes::load(c + r * work.c_stride + n * kWidth), sums[r][n]);
    }
  }
  KVASIR_UNROLL
  for (int r = 0; r < R; r++) {
    KVASIR_UNROLL
    for (int n = 0; n < N; n++) Lanes::store(c + r * work.c_stride + n * kWidth, sums[r][n]);
  }
}

template <class Form>
using Block = void (*)(const Product<Form>&, int row, int column, int lanes);

template <class Form, class Shape, int... R>
Block<Form> pick_block(int rows, std::integer_sequence<int, R...>) {
  static constexpr Block<Form> blocks[] = {multiply_block<Form, Shape, R + 1>...};
  return blocks[rows - 1];
}

/** All rows of N vectors of columns, in blocks of nearly equal height. Only the first block prefetches. */
template <class Form, int N, int AStride, bool Part>
void multiply_columns(const Product<Form>& work, int rows, int column, int lanes) {
  constexpr int kRows = Form::kAccumulators / N < 12 ? Form::kAccumulators / N : 12;
  using Heights = std::make_integer_sequence<int, kRows>;
  int blocks = (rows + kRows - 1) / kRows;
  for (int block = 0, row = 0; block < blocks; block++) {
    int height = (rows - row + blocks - block - 1) / (blocks - block);
    Block<Form> run = block == 0 && work.prefetch_pages != 0 ? pick_block<Form, BlockShape<N, AStride, true, Part>>(height, Heights{})
                                                    : pick_block<Form, BlockShape<N, AStride, false, Part>>(height, Heights{});
    run(work, row, column, lanes);
    row += height;
  }
}

/** Scores (rows, 32) of a page: query (rows, head_dim) x K (head_dim, 32), one chain. */
template <class Form>
void multiply_key_chain(const Product<Form>& work, int rows) {
  constexpr int kWidth = Form::Lanes::kWidth;
  for (int column = 0; column < kPageTokens; column += 2 * kWidth) {
    if (work.a_stride == 64) {
      multiply_columns<Form, 2, 64, false>(work, rows, column, kWidth);
    } else if (work.a_stride == 128) {
      multiply_columns<Form, 2, 128, false>(work, rows, column, kWidth);
    } else {
      multiply_columns<Form, 2, 0, false>(work, rows, column, kWidth);
    }
  }
}

/** Dimensions of a short chain: the sum of short chains has a smaller rounding error than one long chain. */
constexpr int kChainDims = 64;

/** Scores (rows, 32) of a page as sums of chains, in the order of dimensions. */
template <class Form>
void multiply_key_chains(const Product<Form>& work, int rows) {
  constexpr int kSteps = kChainDims / Form::kPack;
  Product<Form> chain = work;
  for (int step = 0; step < work.steps; step += kSteps) {
    chain.steps = work.steps - step < kSteps ? work.steps - step : kSteps;
    chain.into = step == 0 ? Into::nothing : Into::sum;
    multiply_key_chain<Form>(chain, rows);
    chain.a += kChainDims;
    chain.b_offset += kSteps * work.b_stride;
  }
}

/**
 * weights (rows, keys) x V (keys, columns) to o (rows, columns). Few rows take wide blocks: enough accumulators to hide
 * the latency of an add.
 */
template <class Form>
void multiply_values(const Product<Form>& work, int rows, int columns) {
  constexpr int kWidth = Form::Lanes::kWidth;
  constexpr int kWide = Form::kWide;
  int column = 0;
  if (rows <= Form::kAccumulators / kWide) {
    for (; columns - column >= kWide * kWidth; column += kWide * kWidth) {
      multiply_columns<Form, kWide, kRangeStride, false>(work, rows, column, kWidth);
    }
  }
  for (; columns - column >= 2 * kWidth; column += 2 * kWidth) multiply_columns<Form, 2, kRangeStride, false>(work, rows, column, kWidth);
  for (; columns - column >= kWidth; column += kWidth) multiply_columns<Form, 1, kRangeStride, false>(work, rows, column, kWidth);
  if (column < columns) multiply_columns<Form, 1, kRangeStride, true>(work, rows, column, columns - column);
}

}  // namespace
}  // namespace kvasir
