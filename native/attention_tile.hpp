// The loops of attention over one range, written once over vector lanes (`Form::Lanes`) and an operand form. Everything has internal linkage:
// each instruction set compiles its own copy with its own flags.
#pragma once
#include <cstring>
#include <limits>
#include <utility>

#include "attention_range.hpp"

#if defined(__clang__)
#define KVASIR_UNROLL _Pragma("clang loop unroll(full)")
#else
#define KVASIR_UNROLL _Pragma("GCC unroll 16")
#endif

namespace kvasir {
namespace {

/** c (rows, columns) = or += a (rows, steps) x b (steps, columns of 32-bit lanes). One accumulator per element, steps in order. */
template <class Form>
struct Product {
  const typename Form::Element* a;  // (rows, steps x kPack)
  int a_stride;                     // elements
  const uint8_t* b;
  ptrdiff_t b_stride;  // bytes of a step
  int steps;
  float* c;
  int c_stride;
  bool fresh;       // c is not read
  ptrdiff_t ahead;  // bytes from an operand of b to what is prefetched with it; 0: nothing
};

/** Registers for R x N accumulators. `Part`: only the first `lanes` lanes of the last vector exist in b. */
template <class Form, int R, int N, bool Ahead, bool Part>
void multiply_block(const Product<Form>& work, int row, int column, int lanes) {
  using Lanes = typename Form::Lanes;
  constexpr int kWidth = Lanes::kWidth;
  const typename Form::Element* a = work.a + static_cast<ptrdiff_t>(row) * work.a_stride;
  const uint8_t* b = work.b + 4 * column;
  float* c = work.c + static_cast<ptrdiff_t>(row) * work.c_stride + column;
  typename Lanes::Vec sums[R][N];
  KVASIR_UNROLL
  for (int r = 0; r < R; r++) {
    KVASIR_UNROLL
    for (int n = 0; n < N; n++) sums[r][n] = work.fresh ? Lanes::zero() : Lanes::load(c + r * work.c_stride + n * kWidth);
  }
  for (int step = 0; step < work.steps; step++) {
    typename Form::Right right[N];
    KVASIR_UNROLL
    for (int n = 0; n < N; n++) {
      const uint8_t* from = b + 4 * n * kWidth;
      if (Ahead && (n * kWidth) % 16 == 0) __builtin_prefetch(from + work.ahead);
      right[n] = Part ? Form::load_part(from, lanes) : Form::load(from);
    }
    KVASIR_UNROLL
    for (int r = 0; r < R; r++) {
      typename Form::Left left = Form::broadcast(a + r * work.a_stride + step * Form::kPack);
      KVASIR_UNROLL
      for (int n = 0; n < N; n++) sums[r][n] = Form::multiply_add(sums[r][n], left, right[n]);
    }
    b += work.b_stride;
  }
  KVASIR_UNROLL
  for (int r = 0; r < R; r++) {
    KVASIR_UNROLL
    for (int n = 0; n < N; n++) Lanes::store(c + r * work.c_stride + n * kWidth, sums[r][n]);
  }
}

template <class Form>
using Block = void (*)(const Product<Form>&, int row, int column, int lanes);

template <class Form, int N, bool Ahead, bool Part, int... R>
Block<Form> pick_block(int rows, std::integer_sequence<int, R...>) {
  static constexpr Block<Form> blocks[] = {multiply_block<Form, R + 1, N, Ahead, Part>...};
  return blocks[rows - 1];
}

/** All rows of N vectors of columns, in blocks of nearly equal height; only the first block prefetches. */
template <class Form, int N, bool Part>
void multiply_columns(const Product<Form>& work, int rows, int column, int lanes) {
  constexpr int kRows = Form::kAccumulators / N < 12 ? Form::kAccumulators / N : 12;
  using Heights = std::make_integer_sequence<int, kRows>;
  int blocks = (rows + kRows - 1) / kRows;
  for (int block = 0, row = 0; block < blocks; block++) {
    int height = (rows - row + blocks - block - 1) / (blocks - block);
    Block<Form> run = block == 0 && work.ahead != 0 ? pick_block<Form, N, true, Part>(height, Heights{})
                                                    : pick_block<Form, N, false, Part>(height, Heights{});
    run(work, row, column, lanes);
    row += height;
  }
}

template <class Form>
void multiply(const Product<Form>& work, int rows, int columns) {
  constexpr int kWidth = Form::Lanes::kWidth;
  constexpr int kWide = Form::kWide;
  int column = 0;
  for (; columns - column >= kWide * kWidth; column += kWide * kWidth) multiply_columns<Form, kWide, false>(work, rows, column, kWidth);
  for (; columns - column >= 2 * kWidth; column += 2 * kWidth) multiply_columns<Form, 2, false>(work, rows, column, kWidth);
  for (; columns - column >= kWidth; column += kWidth) multiply_columns<Form, 1, false>(work, rows, column, kWidth);
  if (column < columns) multiply_columns<Form, 1, true>(work, rows, column, columns - column);
}

/**
 * exp(x) for x <= 0 (and a rounding error above), relative error under 2e-7; exactly 0 below -87, so that no weight is subnormal.
 * exp(x) = 2^n exp(f), |f| <= ln(2) / 2, the latter by a minimax polynomial.
 */
template <class Lanes>
typename Lanes::Vec exp_lanes(typename Lanes::Vec x) {
  using Vec = typename Lanes::Vec;
  Vec n = Lanes::round(Lanes::multiply(x, Lanes::set(1.44269504f)));
  Vec f = Lanes::multiply_add(n, Lanes::set(-0.693147182f), x);
  Vec p = Lanes::multiply_add(f, Lanes::set(0.00829027220f), Lanes::set(0.0418981612f));
  p = Lanes::multiply_add(p, f, Lanes::set(0.166676387f));
  p = Lanes::multiply_add(p, f, Lanes::set(0.499991477f));
  p = Lanes::multiply_add(p, f, Lanes::set(0.999999702f));
  p = Lanes::multiply_add(p, f, Lanes::set(1.0f));
  return Lanes::scale_from(x, -87.0f, p, n);
}

/** State of one row inside a range. */
template <class Form>
struct RowState {
  float* scores;                  // (32): unscaled
  typename Form::Element* weights;  // (32)
  float* lane_sums;               // (kWidth)
  float* o;
  int o_stride;
  float* max;  // unscaled
};

/** A larger maximum: what was summed so far shrinks by exp(old - new). */
template <class Form>
void raise_max(const RowState<Form>& row, float found, float scale) {
  using Lanes = typename Form::Lanes;
  auto shrink = exp_lanes<Lanes>(Lanes::set(*row.max * scale - found * scale));
  *row.max = found;
  Lanes::store(row.lane_sums, Lanes::multiply(Lanes::load(row.lane_sums), shrink));
  for (int i = 0; i < row.o_stride; i += Lanes::kWidth) Lanes::store(row.o + i, Lanes::multiply(Lanes::load(row.o + i), shrink));
}

/** Scores of a page to weights. `keys` < 32: the scores behind them are stale, and are replaced before anything is computed from them. */
template <class Form>
void weigh_row(const RowState<Form>& row, int keys, float scale) {
  using Lanes = typename Form::Lanes;
  constexpr int kVectors = kPageTokens / Lanes::kWidth;
  for (int key = keys; key < kPageTokens; key++) row.scores[key] = -std::numeric_limits<float>::infinity();
  typename Lanes::Vec scores[kVectors];
  KVASIR_UNROLL
  for (int n = 0; n < kVectors; n++) scores[n] = Lanes::load(row.scores + n * Lanes::kWidth);
  auto largest = scores[0];
  KVASIR_UNROLL
  for (int n = 1; n < kVectors; n++) largest = Lanes::max(largest, scores[n]);
  if (__builtin_expect(Lanes::any_above(largest, *row.max), 0)) raise_max(row, Lanes::largest(largest), scale);
  auto shift = Lanes::set(-(*row.max * scale));
  KVASIR_UNROLL
  for (int n = 0; n < kVectors; n++) scores[n] = exp_lanes<Lanes>(Lanes::multiply_add(scores[n], Lanes::set(scale), shift));
  Lanes::store(row.lane_sums, Form::store_weights(scores, row.weights, Lanes::load(row.lane_sums)));
}

template <class Form>
RowState<Form> row_state(const RangeWork& work, int row) {
  using Element = typename Form::Element;
  return {work.scores + row * kPageTokens, static_cast<Element*>(work.weights) + row * kPageTokens, work.lane_sums + row * 16,
          work.o + static_cast<ptrdiff_t>(row) * work.o_stride, work.o_stride, work.max + row};
}

/** o of `rows` rows += weights x V for the first `keys` keys of a page. An odd last key of a pair form meets zeros, never the stale key beside it. */
template <class Form>
void add_values(const RangeWork& work, int row, int rows, const uint8_t* values, int keys, ptrdiff_t ahead) {
  RowState<Form> first = row_state<Form>(work, row);
  ptrdiff_t step_bytes = 4 * static_cast<ptrdiff_t>(work.head_dim);
  Product<Form> product{first.weights, kPageTokens, values, step_bytes, keys / Form::kPack, first.o, work.o_stride, false, ahead};
  if (Form::kWholePages && keys < kPageTokens) {
    alignas(64) uint8_t copy[kPageTokens / 2 * 4 * Form::kHeadDimMax];
    Form::copy_values(values, keys, work.head_dim, copy);
    product.b = copy;
    product.steps = kPageTokens / Form::kPack;
    product.ahead = 0;
    return Form::multiply(product, rows, work.head_dim);
  }
  Form::multiply(product, rows, work.head_dim);
  if (keys % Form::kPack == 0) return;
  const uint8_t* last = values + product.steps * step_bytes;
  product.a += product.steps * Form::kPack;
  product.steps = 1;
  product.ahead = 0;
  constexpr int kColumns = 64;
  for (int column = 0; column < work.head_dim; column += kColumns) {
    alignas(64) uint8_t half[4 * kColumns];
    int columns = work.head_dim - column < kColumns ? work.head_dim - column : kColumns;
    for (int i = 0; i < columns; i++) {
      std::memcpy(half + 4 * i, last + 4 * (column + i), 2);
      std::memset(half + 4 * i + 2, 0, 2);
    }
    product.b = half;
    product.c = first.o + column;
    Form::multiply(product, rows, columns);
  }
}

/** One page: tokens before `first` have no key here, those from `full` on see all 32. */
template <class Form>
void run_page(const RangeWork& work, int page, int first_key, int first, int full) {
  const uint8_t* keys = work.pages[page];
  ptrdiff_t ahead = work.pages[page + kPrefetchPages] - keys;
  int rows = work.tokens * work.group;
  int row = first * work.group;
  const auto* query = static_cast<const typename Form::Element*>(work.query) + static_cast<ptrdiff_t>(row) * work.head_dim;
  Form::multiply(Product<Form>{query, work.head_dim, keys, 4 * kPageTokens, work.head_dim / Form::kPack, work.scores + row * kPageTokens,
                               kPageTokens, true, ahead},
                 rows - row, kPageTokens);
  const uint8_t* values = keys + 4 * static_cast<ptrdiff_t>(kPageTokens) * (work.head_dim / Form::kPack);
  for (int token = first; token < full; token++) {
    int seen = work.first_position + token - first_key + 1;
    for (int head = 0; head < work.group; head++) weigh_row(row_state<Form>(work, token * work.group + head), seen, work.scale);
    add_values<Form>(work, token * work.group, work.group, values, seen, 0);
  }
  if (full == work.tokens) return;
  for (int r = full * work.group; r < rows; r++) weigh_row(row_state<Form>(work, r), kPageTokens, work.scale);
  add_values<Form>(work, full * work.group, rows - full * work.group, values, kPageTokens, ahead);
}

inline int clamp_token(int token, int tokens) { return token < 0 ? 0 : token > tokens ? tokens : token; }

template <class Form>
void run_range(const RangeWork& work) {
  int rows = work.tokens * work.group;
  for (int r = 0; r < rows; r++) work.max[r] = -std::numeric_limits<float>::infinity();
  std::memset(work.lane_sums, 0, sizeof(float) * 16 * rows);
  std::memset(work.o, 0, sizeof(float) * static_cast<size_t>(work.o_stride) * rows);
  Form::prepare(work);
  for (int page = 0; page < work.page_count; page++) {
    int key = work.first_key + page * kPageTokens;
    int first = clamp_token(key - work.first_position, work.tokens);
    int full = clamp_token(key + kPageTokens - 1 - work.first_position, work.tokens);
    if (first < work.tokens) run_page<Form>(work, page, key, first, full);
  }
  for (int r = 0; r < rows; r++) {
    work.max[r] *= work.scale;
    work.sum[r] = Form::Lanes::sum(Form::Lanes::load(work.lane_sums + r * 16));
  }
}

/** What the forms without tiles share. */
template <class Form>
struct FormBase {
  static constexpr bool kWholePages = false;
  static constexpr int kHeadDimMax = 1;
  static void prepare(const RangeWork&) {}
  static void copy_values(const uint8_t*, int, int, uint8_t*) {}
  static void multiply(const Product<Form>& work, int rows, int columns) { kvasir::multiply<Form>(work, rows, columns); }
};

/** f32: one key or dimension per step. */
template <class L, int Accumulators, int Wide>
struct FloatForm : FormBase<FloatForm<L, Accumulators, Wide>> {
  using Lanes = L;
  using Element = float;
  using Left = typename L::Vec;
  using Right = typename L::Vec;
  static constexpr int kPack = 1, kAccumulators = Accumulators, kWide = Wide;
  static Right load(const uint8_t* from) { return L::load(reinterpret_cast<const float*>(from)); }
  static Right load_part(const uint8_t* from, int lanes) { return L::load_part(reinterpret_cast<const float*>(from), lanes); }
  static Left broadcast(const float* from) { return L::set(*from); }
  static typename L::Vec multiply_add(typename L::Vec sum, Left a, Right b) { return L::multiply_add(a, b, sum); }
  static typename L::Vec store_weights(const typename L::Vec* weights, float* out, typename L::Vec sums) {
    KVASIR_UNROLL
    for (int n = 0; n < kPageTokens / L::kWidth; n++) {
      L::store(out + n * L::kWidth, weights[n]);
      sums = L::add(sums, weights[n]);
    }
    return sums;
  }
};

/** bf16 without bf16 instructions: pairs are widened, the even one is added before the odd one. Elements are rounded values kept as float32. */
template <class L, int Accumulators, int Wide>
struct WidenedForm : FormBase<WidenedForm<L, Accumulators, Wide>> {
  using Lanes = L;
  using Element = float;
  struct Pair {
    typename L::Vec even, odd;
  };
  using Left = Pair;
  using Right = Pair;
  static constexpr int kPack = 2, kAccumulators = Accumulators, kWide = Wide;
  static Pair load(const uint8_t* from) {
    auto pairs = L::load(reinterpret_cast<const float*>(from));
    return {L::low_half(pairs), L::high_half(pairs)};
  }
  static Pair load_part(const uint8_t* from, int lanes) {
    auto pairs = L::load_part(reinterpret_cast<const float*>(from), lanes);
    return {L::low_half(pairs), L::high_half(pairs)};
  }
  static Pair broadcast(const float* from) { return {L::set(from[0]), L::set(from[1])}; }
  static typename L::Vec multiply_add(typename L::Vec sum, const Pair& a, const Pair& b) {
    return L::multiply_add(a.odd, b.odd, L::multiply_add(a.even, b.even, sum));
  }
  static typename L::Vec store_weights(const typename L::Vec* weights, float* out, typename L::Vec sums) {
    KVASIR_UNROLL
    for (int n = 0; n < kPageTokens / L::kWidth; n++) {
      auto rounded = L::round_bf16(weights[n]);
      L::store(out + n * L::kWidth, rounded);
      sums = L::add(sums, rounded);
    }
    return sums;
  }
};

inline void copy_floats(const void* row, int count, void* out) { std::memcpy(out, row, sizeof(float) * count); }
inline void copy_bf16(const void* row, int count, void* out) { std::memcpy(out, row, sizeof(uint16_t) * count); }
inline void widen_bf16(const void* row, int count, void* out) {
  const auto* from = static_cast<const uint16_t*>(row);
  for (int i = 0; i < count; i++) {
    uint32_t bits = static_cast<uint32_t>(from[i]) << 16;
    std::memcpy(static_cast<float*>(out) + i, &bits, 4);
  }
}

}  // namespace
}  // namespace kvasir
