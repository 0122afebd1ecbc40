// The loops of attention over one range, written once over vector lanes (`Form::Lanes`) and an operand form. Internal
// linkage: each instruction set compiles its own copy with its own flags.
#pragma once
#include <algorithm>
#include <cstring>
#include <limits>

#include "attention/kernels/product.hpp"
#include "attention/kernels/scores.hpp"
#include "attention/merge_rows.hpp"

namespace kvasir {
namespace {

/**
 * A weight with at least this share of its row's sum is heavy. The rounding errors of the many lighter weights cancel.
 */
constexpr float kHeavyShare = 1.0f / 16.0f;
constexpr int kHeavyMost = 20;
/** Rows weighed side by side. */
constexpr int kWeighedRows = 8;

/** A key with a weight that rounding changed. */
struct HeavyKey {
  const uint8_t* values;  // V of its page, in pairs
  int slot;
  float lost;
};

/** The least scaled score of heavy weights, minus the row's largest score: ln(sum x share), at most 0.06 too low. */
inline float heavy_score(float sum) {
  int32_t bits;
  const float share = sum * kHeavyShare;
  std::memcpy(&bits, &share, 4);
  // log2 from the exponent, with a linear fraction
  return static_cast<float>(bits - 0x3f800000) * (0.693147181f / (1 << 23));
}

/** The rows of a tile against a range: what each sees, and its weights from its scores. */
template <class Form>
class RangeRows {
 public:
  using Element = typename Form::Element;

  explicit RangeRows(const RangeWork& work) : work_(work) {}

 protected:
  int within(int64_t key) const {
    const int64_t all = std::min(int64_t{work_.page_count} * kPageTokens, int64_t{work_.end_key} - work_.first_key);
    return static_cast<int>(std::clamp(key, int64_t{0}, all));
  }

  /** A token sees keys [first_of, keys_of) of this range. */
  int keys_of(int token) const { return within(int64_t{work_.first_position} + token - work_.first_key + 1); }
  int first_of(int token) const { return within(int64_t{work_.first_position} + token - work_.first_key + 1 - work_.window); }

  struct RowRange {
    int begin, end;
  };

  /** Rows that see a key of the page. */
  RowRange rows_of_page(int page) const {
    int token = work_.first_key + page * kPageTokens - work_.first_position;
    int row = token > 0 ? token * work_.group : 0;
    int tokens = work_.tokens;
    while (first_of(tokens - 1) >= (page + 1) * kPageTokens) tokens--;  // their windows begin after the page
    return {row, tokens * work_.group};
  }

  Element* weights_of(int row) const { return static_cast<Element*>(work_.weights) + static_cast<ptrdiff_t>(row) * kRangeStride; }

  /**
   * Weighs all rows, pass after pass: each pass folds a row to one number that the row's next pass needs, and other
   * rows fill the wait. `after` is called with tokens [from, to) that are weighed.
   */
  template <class After>
  void weigh_all(const After& after) const {
    const int side_by_side = std::max(1, kWeighedRows / work_.group);
    for (int from = 0; from < work_.tokens; from += side_by_side) {
      const int to = std::min(from + side_by_side, work_.tokens);
      weigh_tokens(from, to);
      after(from, to);
    }
  }

  /** Adds the weights of all rows to the sums by key. */
  void add_scores(const KeyScores& to) const {
    for (int token = 0; token < work_.tokens; token++) {
      const int first = first_of(token), keys = keys_of(token);
      for (int head = 0; first < keys && head < work_.group; head++) {
        const int row = token * work_.group + head;
        if (is_shaped()) shape_row(token, row, first, keys);
        add_weights<typename Form::Lanes>(scores_of(row), to.sums + head * kRangeTokens, first, keys, shaped_scale(), to.max[row], to.inverse_sum[row]);
      }
    }
  }

  /** Rows of tokens [from, to) with the visible keys [first, keys) of this range. Rows that see none are finished. */
  template <class Use>
  void each_row(int from, int to, const Use& use) const {
    for (int token = from; token < to; token++) {
      const int first = first_of(token), keys = keys_of(token);
      for (int row = token * work_.group; row < (token + 1) * work_.group; row++) {
        if (first < keys) {
          use(token, row, first, keys);
        } else {
          work_.max[row] = -std::numeric_limits<float>::infinity();
          work_.sum[row] = 0;
        }
      }
    }
  }

  bool is_shaped() const { return work_.softcap != 0 || work_.slopes != nullptr; }
  /** The scale of scores that `shape_row` has shaped, if it shapes them. */
  float shaped_scale() const { return is_shaped() ? 1.0f : work_.scale; }
  float* scores_of(int row) const { return work_.scores + static_cast<ptrdiff_t>(row) * kRangeStride; }

  const RangeWork& work_;

 private:
  void weigh_tokens(int from, int to) const {
    const float scale = shaped_scale();
    each_row(from, to, [&](int token, int row, int first, int keys) {
      if (is_shaped()) shape_row(token, row, first, keys);
      work_.max[row] = largest_score<typename Form::Lanes>(scores_of(row), first, keys, scale);
    });
    each_row(from, to, [&](int, int row, int first, int keys) {
      work_.sum[row] = weigh_row<Form>(scores_of(row), weights_of(row), first, keys, scale, work_.max[row]);
    });
  }

  void shape_row(int token, int row, int first, int keys) const {
    const float slope = work_.slopes == nullptr ? 0.0f : work_.slopes[row % work_.group];
    const ScoreShape shape{work_.scale, work_.softcap, slope, static_cast<float>(work_.first_key - work_.first_position - token)};
    const int end = (keys + kPageTokens - 1) / kPageTokens * kPageTokens;
    shape_scores<typename Form::Lanes>(scores_of(row), first / kPageTokens * kPageTokens, end, shape);
  }
};

/** A tile against a range, by the form's products. */
template <class Form>
class RangeRun : RangeRows<Form> {
  using Rows = RangeRows<Form>;
  using Rows::first_of;
  using Rows::keys_of;
  using Rows::scores_of;
  using Rows::weights_of;
  using Rows::work_;

 public:
  using Element = typename Form::Element;

  explicit RangeRun(const RangeWork& work)
      : Rows(work), rows_(work.tokens * work.group), values_offset_(4 * static_cast<ptrdiff_t>(kPageTokens) * (work.head_dim / Form::kPack)) {}

  void run() {
    std::memset(work_.o, 0, sizeof(float) * static_cast<size_t>(work_.o_stride) * rows_);
    Form::begin(work_);
    for (int page = 0; page < work_.page_count; page++) score_page(page);
    Rows::weigh_all([&](int from, int to) {
      if constexpr (Form::kRoundsWeights) {
        Rows::each_row(from, to, [&](int, int row, int first, int keys) {
          if (work_.sum[row] * kHeavyShare < 1) restore_heavy(row, scores_of(row), first, keys, Rows::shaped_scale());
        });
      }
    });
    add_values();
    Form::end();
  }

  void score(const KeyScores& to) {
    Form::begin(work_);
    for (int page = 0; page < work_.page_count; page++) score_page(page);
    Rows::add_scores(to);
    Form::end();
  }

 private:
  /** Scores of the rows that see a key of the page. */
  void score_page(int page) const {
    const auto seeing = Rows::rows_of_page(page);
    if (seeing.end <= seeing.begin) return;
    const auto* query = static_cast<const Element*>(work_.query) + static_cast<ptrdiff_t>(seeing.begin) * work_.head_dim;
    float* scores = scores_of(seeing.begin) + page * kPageTokens;
    Form::multiply_keys(Product<Form>{query, work_.head_dim, work_.pages + page, 0, 4 * kPageTokens, 1, work_.head_dim / Form::kPack, scores,
                                      kRangeStride, Into::nothing, work_.prefetch_pages},
                        seeing.end - seeing.begin);
  }

  /** Adds the rounding error of a row's few heavy weights to the sum and, times V, to o, which is still zero. */
  void restore_heavy(int row, const float* scores, int first, int keys, float scale) const {
    using Lanes = typename Form::Lanes;
    const float bound = (work_.max[row] + heavy_score(work_.sum[row])) / scale;
    HeavyKey heavy[kHeavyMost];
    int count = 0;
    for (int key = first / Lanes::kWidth * Lanes::kWidth; key < keys; key += Lanes::kWidth) {
      const auto lanes = Lanes::load(scores + key);
      uint32_t above = Lanes::above(lanes, bound);
      if (above == 0) continue;
      const Element* rounded = weights_of(row) + key;
      float lost[Lanes::kWidth];
      Lanes::store(lost, Form::lost(exp_lanes<Lanes>(Lanes::multiply_add(lanes, Lanes::set(scale), Lanes::set(-work_.max[row]))), rounded));
      for (; above != 0 && count < kHeavyMost; above &= above - 1) {
        const int lane = __builtin_ctz(above);
        if (lost[lane] == 0) continue;
        const uint8_t* values = work_.pages[key / kPageTokens] + values_offset_;
        heavy[count++] = {values, (key + lane) % kPageTokens, lost[lane]};
        work_.sum[row] += lost[lane];
      }
    }
    Form::add_heavy(work_.o + static_cast<ptrdiff_t>(row) * work_.o_stride, heavy, count, work_.head_dim);
  }

  /** Pages that every token sees completely are added for the whole tile; keys before and after them token by token. */
  void add_values() const {
    int begin = (first_of(work_.tokens - 1) + kPageTokens - 1) / kPageTokens;
    int end = keys_of(0) / kPageTokens;
    if (begin > end) begin = end = work_.page_count;
    for (int token = 0; begin > 0 && token < work_.tokens; token++) {
      const int keys = keys_of(token);
      add_keys(token * work_.group, first_of(token), keys < begin * kPageTokens ? keys : begin * kPageTokens);
    }
    add_pages(0, rows_, begin, end - begin, kPageTokens / Form::kPack);
    for (int token = 0; token < work_.tokens; token++) add_keys(token * work_.group, end * kPageTokens, keys_of(token));
  }

  /** Adds keys [from, to) for one token. */
  void add_keys(int row, int from, int to) const {
    if (from < to && from % kPageTokens != 0) {
      const int page = from / kPageTokens;
      const int stop = to < (page + 1) * kPageTokens ? to : (page + 1) * kPageTokens;
      add_part(row, page, from % kPageTokens, stop - page * kPageTokens);
      from = stop;
    }
    if (from >= to) return;
    const int whole = to / kPageTokens;
    add_pages(row, work_.group, from / kPageTokens, whole - from / kPageTokens, kPageTokens / Form::kPack);
    if (to % kPageTokens != 0) add_part(row, whole, 0, to % kPageTokens);
  }

  Product<Form> values_product(int row, int page) const {
    return {weights_of(row) + page * kPageTokens, kRangeStride, work_.pages + page, values_offset_, 4 * static_cast<ptrdiff_t>(work_.head_dim), 1,
            kPageTokens / Form::kPack, work_.o + static_cast<ptrdiff_t>(row) * work_.o_stride, work_.o_stride, Into::chain, 0};
  }

  void add_pages(int row, int rows, int page, int pages, int steps) const {
    if (pages <= 0) return;
    Product<Form> product = values_product(row, page);
    product.pages = pages;
    product.steps = steps;
    product.prefetch_pages = work_.prefetch_pages;
    Form::multiply_values(product, rows, work_.head_dim);
  }

  /**
   * Adds keys [from, to) of a page for one token. A half pair is multiplied with zeros, never with the stale key beside
   * it.
   */
  void add_part(int row, int page, int from, int to) const {
    if (Form::kWholePages) return add_padded_page(row, page, from, to);
    if (from % Form::kPack != 0) add_half(row, page, from++);
    const int step = from / Form::kPack;
    Product<Form> product = values_product(row, page);
    product.a += step * Form::kPack;
    product.b_offset += step * product.b_stride;
    product.steps = to / Form::kPack - step;
    product.prefetch_pages = work_.prefetch_pages;
    if (product.steps > 0) Form::multiply_values(product, work_.group, work_.head_dim);
    if (to % Form::kPack != 0) add_half(row, page, to - 1);
  }

  /** Adds one key of a page for one token, in a form of pairs: the other key of its pair is left out. */
  void add_half(int row, int page, int key) const {
    const int step = key / Form::kPack;
    Product<Form> product = values_product(row, page);
    const uint8_t* pairs = work_.pages[page] + values_offset_ + step * product.b_stride;
    product.a += step * Form::kPack;
    product.steps = 1;
    constexpr int kColumns = 64;
    for (int column = 0; column < work_.head_dim; column += kColumns) {
      alignas(64) uint8_t half[4 * kColumns];
      int columns = work_.head_dim - column < kColumns ? work_.head_dim - column : kColumns;
      copy_half(pairs + 4 * column, columns, key % 2, half);
      const uint8_t* b = half;
      product.b = &b;
      product.b_offset = 0;
      product.c = work_.o + static_cast<ptrdiff_t>(row) * work_.o_stride + column;
      Form::multiply_values(product, work_.group, columns);
    }
  }

  /** For forms that take whole pages only: uses a copy of V with zeros for keys outside [from, to). */
  void add_padded_page(int row, int page, int from, int to) const {
    constexpr int kColumns = 64;
    for (int column = 0; column < work_.head_dim; column += kColumns) {
      alignas(64) uint8_t copy[kPageTokens / 2 * 4 * kColumns] = {};
      int columns = work_.head_dim - column < kColumns ? work_.head_dim - column : kColumns;
      Product<Form> product = values_product(row, page);
      const uint8_t* values = work_.pages[page] + values_offset_ + 4 * column;
      for (int key = from; key < to; key++) {
        const int pair = key / 2;
        const bool whole = key % 2 == 0 && key + 1 < to;
        uint8_t* place = copy + pair * 4 * kColumns;
        if (whole) {
          std::memcpy(place, values + pair * product.b_stride, 4 * columns);
          key++;
        } else {
          copy_half(values + pair * product.b_stride, columns, key % 2, place);
        }
      }
      const uint8_t* b = copy;
      product.b = &b;
      product.b_offset = 0;
      product.b_stride = 4 * kColumns;
      product.c += column;
      Form::multiply_values(product, work_.group, columns);
    }
  }

  /** Copies one key (0 or 1) of a row of pairs, with zeros for the other. */
  static void copy_half(const uint8_t* pairs, int columns, int key, uint8_t* out) {
    std::memset(out, 0, 4 * static_cast<size_t>(columns));
    for (int i = 0; i < columns; i++) std::memcpy(out + 4 * i + 2 * key, pairs + 4 * i + 2 * key, 2);
  }

  int rows_;
  ptrdiff_t values_offset_;
};

template <class Form>
void run_range(const RangeWork& work) {
  RangeRun<Form>(work).run();
}

template <class Form>
void score_range(const RangeWork& work, const KeyScores& scores) {
  RangeRun<Form>(work).score(scores);
}

template <class Form>
void bound_pages(const BoundWork& work) {
  const ptrdiff_t minima = 4 * static_cast<ptrdiff_t>(kPageTokens) * (work.head_dim / Form::kPack);
  constexpr int kHeads = 8;  // heads side by side
  Form::begin(RangeWork{});
  for (int page = 0; page < work.page_count; page++) {
    for (int head = 0; head < work.group; head += kHeads) {
      const int heads = std::min(kHeads, work.group - head);
      const ptrdiff_t first = static_cast<ptrdiff_t>(head) * work.head_dim;
      float* bounds = work.bounds + static_cast<ptrdiff_t>(head) * work.stride + page * kPageTokens;
      alignas(64) float low[kHeads * kPageTokens];
      Product<Form> product = {static_cast<const typename Form::Element*>(work.positive) + first, work.head_dim, work.pages + page, 0, 4 * kPageTokens, 1,
                               work.head_dim / Form::kPack, bounds, work.stride, Into::nothing, 0};
      Form::multiply_keys(product, heads);
      product.a = static_cast<const typename Form::Element*>(work.negative) + first;
      product.b_offset = minima;
      product.c = low;
      product.c_stride = kPageTokens;
      Form::multiply_keys(product, heads);
      for (int i = 0; i < heads; i++)
        for (int place = 0; place < kPageTokens; place++) bounds[static_cast<ptrdiff_t>(i) * work.stride + place] += low[i * kPageTokens + place];
    }
  }
  Form::end();
}

/** The common part of forms without tiles. */
template <class Form>
struct FormBase {
  static constexpr bool kWholePages = false;
  static constexpr bool kRoundsWeights = false;
  /** Scores are sums of short chains. The error of one long chain is negligible beside that of rounded weights. */
  static constexpr bool kShortChains = true;
  static void begin(const RangeWork&) {}
  static void end() {}
  static void multiply_keys(const Product<Form>& work, int rows) {
    if constexpr (Form::kShortChains) {
      multiply_key_chains<Form>(work, rows);
    } else {
      multiply_key_chain<Form>(work, rows);
    }
  }
  static void multiply_values(const Product<Form>& work, int rows, int columns) { kvasir::multiply_values<Form>(work, rows, columns); }
};

/**
 * Stores a page's weights and adds their sum to `sums`. Light weights are added to each other before they meet the
 * heavy one of another page.
 */
template <class L>
typename L::Vec store_floats(const typename L::Vec* weights, float* out, typename L::Vec sums) {
  auto page = weights[0];
  L::store(out, page);
  KVASIR_UNROLL
  for (int n = 1; n < kPageTokens / L::kWidth; n++) {
    L::store(out + n * L::kWidth, weights[n]);
    page = L::add(page, weights[n]);
  }
  return L::add(sums, page);
}

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
  static typename L::Vec store_weights(const typename L::Vec* weights, float* out, typename L::Vec sums) { return store_floats<L>(weights, out, sums); }
};

/**
 * bf16 without bf16 instructions: pairs are widened, and the even product is added before the odd one. Weights stay
 * float32.
 */
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
  static typename L::Vec store_weights(const typename L::Vec* weights, float* out, typename L::Vec sums) { return store_floats<L>(weights, out, sums); }
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
