// The loops of attention over one range, written once over vector lanes (`Form::Lanes`) and an operand form. Everything has internal linkage:
// each instruction set compiles its own copy with its own flags.
#pragma once
#include <cstring>
#include <limits>

#include "attention_product.hpp"

namespace kvasir {
namespace {

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

/**
 * Scores of one row to weights exp(score - max) and their sum. `keys` of the range are seen: scores behind them in the last page are stale, and
 * are replaced before anything is computed from them. `largest` and the sum run over lanes in the order of pages.
 */
template <class Form>
void weigh_row(float* scores, typename Form::Element* weights, int keys, float scale, float* max, float* sum) {
  using Lanes = typename Form::Lanes;
  constexpr int kVectors = kPageTokens / Lanes::kWidth;
  int seen = (keys + kPageTokens - 1) / kPageTokens * kPageTokens;
  for (int key = keys; key < seen; key++) scores[key] = -std::numeric_limits<float>::infinity();
  typename Lanes::Vec largest[kVectors];
  KVASIR_UNROLL
  for (int n = 0; n < kVectors; n++) largest[n] = Lanes::load(scores + n * Lanes::kWidth);
  for (int key = kPageTokens; key < seen; key += kPageTokens) {
    KVASIR_UNROLL
    for (int n = 0; n < kVectors; n++) largest[n] = Lanes::max(largest[n], Lanes::load(scores + key + n * Lanes::kWidth));
  }
  KVASIR_UNROLL
  for (int n = 1; n < kVectors; n++) largest[0] = Lanes::max(largest[0], largest[n]);
  *max = Lanes::largest(largest[0]) * scale;
  auto shift = Lanes::set(-*max);
  auto sums = Lanes::zero();
  for (int key = 0; key < seen; key += kPageTokens) {
    typename Lanes::Vec page[kVectors];
    KVASIR_UNROLL
    for (int n = 0; n < kVectors; n++) {
      page[n] = exp_lanes<Lanes>(Lanes::multiply_add(Lanes::load(scores + key + n * Lanes::kWidth), Lanes::set(scale), shift));
    }
    sums = Form::store_weights(page, weights + key, sums);
  }
  *sum = Lanes::sum(sums);
}

/** A tile against a range, by the form's own products. */
template <class Form>
class RangeRun {
 public:
  using Element = typename Form::Element;

  explicit RangeRun(const RangeWork& work)
      : work_(work), rows_(work.tokens * work.group), values_offset_(4 * static_cast<ptrdiff_t>(kPageTokens) * (work.head_dim / Form::kPack)) {}

  void run() {
    std::memset(work_.o, 0, sizeof(float) * static_cast<size_t>(work_.o_stride) * rows_);
    Form::begin(work_);
    for (int page = 0; page < work_.page_count; page++) score_page(page);
    for (int token = 0; token < work_.tokens; token++) weigh_token(token);
    add_values();
    Form::end();
  }

 private:
  /** Keys of this range that a token sees. */
  int keys_of(int token) const {
    int keys = work_.first_position + token - work_.first_key + 1;
    int all = work_.page_count * kPageTokens;
    return keys < 0 ? 0 : keys > all ? all : keys;
  }

  /** Scores of the rows that see any key of the page. */
  void score_page(int page) const {
    int token = work_.first_key + page * kPageTokens - work_.first_position;
    int row = token > 0 ? token * work_.group : 0;
    const auto* query = static_cast<const Element*>(work_.query) + static_cast<ptrdiff_t>(row) * work_.head_dim;
    float* scores = work_.scores + static_cast<ptrdiff_t>(row) * kRangeStride + page * kPageTokens;
    Form::multiply_keys(Product<Form>{query, work_.head_dim, work_.pages + page, 0, 4 * kPageTokens, 1, work_.head_dim / Form::kPack, scores,
                                      kRangeStride, true, work_.prefetch_pages},
                        rows_ - row);
  }

  Element* weights_of(int row) const { return static_cast<Element*>(work_.weights) + static_cast<ptrdiff_t>(row) * kRangeStride; }

  void weigh_token(int token) const {
    int keys = keys_of(token);
    for (int row = token * work_.group; row < (token + 1) * work_.group; row++) {
      if (keys == 0) {
        work_.max[row] = -std::numeric_limits<float>::infinity();
        work_.sum[row] = 0;
      } else {
        float* scores = work_.scores + static_cast<ptrdiff_t>(row) * kRangeStride;
        weigh_row<Form>(scores, weights_of(row), keys, work_.scale, work_.max + row, work_.sum + row);
      }
    }
  }

  /** Pages that every token sees whole are added for the tile at once; the others token by token, each up to its own last key. */
  void add_values() const {
    int shared = keys_of(0) / kPageTokens;
    add_pages(0, rows_, 0, shared, kPageTokens / Form::kPack);
    for (int token = 0; token < work_.tokens; token++) {
      int keys = keys_of(token);
      int whole = keys / kPageTokens;
      add_pages(token * work_.group, work_.group, shared, whole - shared, kPageTokens / Form::kPack);
      if (keys % kPageTokens != 0) add_part(token * work_.group, whole, keys % kPageTokens);
    }
  }

  Product<Form> values_product(int row, int page) const {
    return {weights_of(row) + page * kPageTokens, kRangeStride, work_.pages + page, values_offset_, 4 * static_cast<ptrdiff_t>(work_.head_dim), 1,
            kPageTokens / Form::kPack, work_.o + static_cast<ptrdiff_t>(row) * work_.o_stride, work_.o_stride, false, 0};
  }

  void add_pages(int row, int rows, int page, int pages, int steps) const {
    if (pages <= 0) return;
    Product<Form> product = values_product(row, page);
    product.pages = pages;
    product.steps = steps;
    product.prefetch_pages = work_.prefetch_pages;
    Form::multiply_values(product, rows, work_.head_dim);
  }

  /** The first `keys` keys of a page for one token. An odd last key of a pair form meets zeros, never the stale key beside it. */
  void add_part(int row, int page, int keys) const {
    if (Form::kWholePages) return add_padded_page(row, page, keys);
    int pairs = keys / Form::kPack;
    if (pairs > 0) add_pages(row, work_.group, page, 1, pairs);
    if (keys % Form::kPack == 0) return;
    Product<Form> product = values_product(row, page);
    const uint8_t* last = work_.pages[page] + values_offset_ + pairs * product.b_stride;
    product.a += pairs * Form::kPack;
    product.steps = 1;
    constexpr int kColumns = 64;
    for (int column = 0; column < work_.head_dim; column += kColumns) {
      alignas(64) uint8_t half[4 * kColumns];
      int columns = work_.head_dim - column < kColumns ? work_.head_dim - column : kColumns;
      copy_even(last + 4 * column, columns, half);
      const uint8_t* b = half;
      product.b = &b;
      product.b_offset = 0;
      product.c = work_.o + static_cast<ptrdiff_t>(row) * work_.o_stride + column;
      Form::multiply_values(product, work_.group, columns);
    }
  }

  /** For forms that take whole pages only: a copy of V in which keys from `keys` on are zeros. */
  void add_padded_page(int row, int page, int keys) const {
    constexpr int kColumns = 64;
    for (int column = 0; column < work_.head_dim; column += kColumns) {
      alignas(64) uint8_t copy[kPageTokens / 2 * 4 * kColumns] = {};
      int columns = work_.head_dim - column < kColumns ? work_.head_dim - column : kColumns;
      Product<Form> product = values_product(row, page);
      const uint8_t* from = work_.pages[page] + values_offset_ + 4 * column;
      for (int pair = 0; pair < keys / 2; pair++) std::memcpy(copy + pair * 4 * kColumns, from + pair * product.b_stride, 4 * columns);
      if (keys % 2 != 0) copy_even(from + keys / 2 * product.b_stride, columns, copy + keys / 2 * 4 * kColumns);
      const uint8_t* b = copy;
      product.b = &b;
      product.b_offset = 0;
      product.b_stride = 4 * kColumns;
      product.c += column;
      Form::multiply_values(product, work_.group, columns);
    }
  }

  /** The even key of a row of pairs beside zeros. */
  static void copy_even(const uint8_t* pairs, int columns, uint8_t* out) {
    for (int i = 0; i < columns; i++) {
      std::memcpy(out + 4 * i, pairs + 4 * i, 2);
      std::memset(out + 4 * i + 2, 0, 2);
    }
  }

  const RangeWork& work_;
  int rows_;
  ptrdiff_t values_offset_;
};

template <class Form>
void run_range(const RangeWork& work) {
  RangeRun<Form>(work).run();
}

/** What the forms without tiles share. */
template <class Form>
struct FormBase {
  static constexpr bool kWholePages = false;
  static void begin(const RangeWork&) {}
  static void end() {}
  static void multiply_keys(const Product<Form>& work, int rows) { kvasir::multiply_keys<Form>(work, rows); }
  static void multiply_values(const Product<Form>& work, int rows, int columns) { kvasir::multiply_values<Form>(work, rows, columns); }
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
