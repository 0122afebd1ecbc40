// Attention over 8-bit K and V, by products of 16-bit integers. Written once over vector lanes: `Words` has the lanes of
// floats (`Lanes`) and integers of one instruction set. Internal linkage, as in tile.hpp.
//
// Queries and weights become 16-bit integers with one scale for 32 dimensions, or for the keys of a range. Their sums of
// products with levels are exact: at most 256 x 255 x 32,639 < 2^31. So weights of keys that a row does not see are
// simply 0, and no order of sums matters.
#pragma once
#include "attention/kernels/tile.hpp"
#include "attention/q8_page.hpp"

namespace kvasir {
namespace {

constexpr float kQ8LevelMax = 32639.0f;  // of i16 inputs too: 127 x 257

/** A scale, and the sum of the levels that it belongs to. */
struct Q8Scale {
  float scale;
  int32_t sum;

  /** What stored levels, which are 128 too high, add to the products with these levels. */
  int32_t minus_zero() const { return -kQ8Zero * sum; }
};

/** 32 dimensions of a query. */
struct Q8Query {
  int16_t levels[kQ8Dims];
  Q8Scale scale;
  int32_t unused[6];  // a whole number of bytes for each dimension
};
constexpr int kQ8QueryBytes = sizeof(Q8Query) / kQ8Dims;  // of a dimension
static_assert(kQ8QueryBytes * kQ8Dims == sizeof(Q8Query) && kQ8QueryBytes <= 4, "a query fits into the workspace");

/** The weights of one row for 32 dimensions of V, in place of the row's scores. */
struct Q8Weights {
  int16_t levels[kRangeTokens];
  Q8Scale scale;
};
static_assert(sizeof(Q8Weights) <= sizeof(float) * kRangeStride, "weights fit in place of scores");

/** To the L2 cache: a range is more than the L1 cache holds. */
inline void prefetch_to_l2(const uint8_t* from) { __builtin_prefetch(from, 0, 2); }

inline int32_t pair_at(const int16_t* levels, int pair) {
  int32_t two;
  std::memcpy(&two, levels + 2 * pair, sizeof two);
  return two;
}

/** The scale of values by their largest magnitude, as bits. NaN and infinity make it NaN. */
struct Q8Rounding {
  bool has_levels;  // false: all are 0
  float scale, inverse;

  explicit Q8Rounding(uint32_t largest) {
    constexpr float kTiny = 1e-30f;
    const bool finite = largest < 0x7f800000u;
    has_levels = finite && bits_float(largest) >= kTiny;
    scale = !finite ? std::numeric_limits<float>::quiet_NaN() : has_levels ? bits_float(largest) / kQ8LevelMax : 0.0f;
    inverse = has_levels ? kQ8LevelMax / bits_float(largest) : 0.0f;
  }
};

/** Levels of `count` values, a multiple of two vectors. */
template <class Words>
Q8Scale round_words(const float* values, int count, const Q8Rounding& rounding, int16_t* out) {
  using Lanes = typename Words::Lanes;
  if (!rounding.has_levels) {
    std::memset(out, 0, sizeof(int16_t) * static_cast<size_t>(count));
    return {rounding.scale, 0};
  }
  const auto inverse = Lanes::set(rounding.inverse);
  auto sums = Words::set_int(0);
  for (int i = 0; i < count; i += 2 * Lanes::kWidth) {
    sums = Words::store_levels(Lanes::multiply(Lanes::load(values + i), inverse), Lanes::multiply(Lanes::load(values + i + Lanes::kWidth), inverse), out + i, sums);
  }
  return {rounding.scale, Words::sum(sums)};
}

/** Rounds `count` float32 values of query heads. */
template <class Words>
void load_query_q8(const void* row, int count, void* out) {
  using Lanes = typename Words::Lanes;
  const auto* values = static_cast<const float*>(row);
  auto* query = static_cast<Q8Query*>(out);
  for (int i = 0; i < count; i += kQ8Dims, query++) {
    auto largest = Words::set_int(0);
    for (int d = 0; d < kQ8Dims; d += Lanes::kWidth) largest = Words::largest_bits(largest, Lanes::magnitude(Lanes::load(values + i + d)));
    query->scale = round_words<Words>(values + i, kQ8Dims, Q8Rounding(Words::highest(largest)), query->levels);
  }
}

/** float32 scores and weights, as of f32 pages. */
template <class L>
struct Q8Form {
  using Lanes = L;
  using Element = float;
  static typename L::Vec store_weights(const typename L::Vec* weights, float* out, typename L::Vec sums) { return store_floats<L>(weights, out, sums); }
};

/** A tile against a range of 8-bit keys. */
template <class Words>
class Q8Run : RangeRows<Q8Form<typename Words::Lanes>> {
  using Lanes = typename Words::Lanes;
  using Rows = RangeRows<Q8Form<Lanes>>;
  using Rows::work_;
  static constexpr int kWidth = Lanes::kWidth;
  static constexpr int kVectors = 2;  // of columns side by side

 public:
  explicit Q8Run(const RangeWork& work) : Rows(work), blocks_(work.head_dim / kQ8Dims), values_offset_(static_cast<ptrdiff_t>(Q8Page::half_bytes(work.head_dim))) {}

  void run() {
    for (int page = 0; page < work_.page_count; page++) score_page(page);
    Rows::weigh_all([](int, int) {});
    for (int block = 0; block < blocks_; block++) add_values(block);
  }

  void score(const KeyScores& to) {
    for (int page = 0; page < work_.page_count; page++) score_page(page);
    Rows::add_scores(to);
  }

 private:
  const Q8Query* query_of(int row) const { return static_cast<const Q8Query*>(work_.query) + static_cast<ptrdiff_t>(row) * blocks_; }
  Q8Weights* levels_of(int row) const { return reinterpret_cast<Q8Weights*>(Rows::scores_of(row)); }

  /** Calls `use` with parts of rows [begin, end) of nearly equal size, at most MAX, as compile-time constants. */
  template <int MAX, class Use>
  static void in_parts(int begin, int end, const Use& use) {
    const int parts = (end - begin + MAX - 1) / MAX;
    for (int part = 0, row = begin; part < parts; part++) {
      const int rows = (end - row + parts - part - 1) / (parts - part);
      with_count<MAX>(rows, [&](auto count) { use(count, row); });
      row += rows;
    }
  }
  template <int MAX, class Use>
  static void with_count(int count, const Use& use) {
    if constexpr (MAX > 1) {
      if (count < MAX) return with_count<MAX - 1>(count, use);
    }
    use(std::integral_constant<int, MAX>{});
  }

  void score_page(int page) const {
    const auto seeing = Rows::rows_of_page(page);
    const ptrdiff_t ahead = work_.pages[page + work_.prefetch_pages] - work_.pages[page];
    for (int column = 0; column < kPageTokens; column += kVectors * kWidth) {
      in_parts<Words::kRows>(seeing.begin, seeing.end, [&](auto rows, int row) {
        score_rows<decltype(rows)::value>(page, row, column, row == seeing.begin ? ahead : 0);
      });
    }
  }

  /** Scores of R rows for the page's keys from `column` on: for each 32 dimensions an exact sum, then one multiply-add. */
  template <int R>
  void score_rows(int page, int row, int column, ptrdiff_t ahead) const {
    const uint8_t* block = work_.pages[page];
    float* scores = Rows::scores_of(row) + page * kPageTokens + column;
    typename Lanes::Vec totals[R][kVectors];
    KVASIR_UNROLL
    for (int r = 0; r < R; r++) {
      KVASIR_UNROLL
      for (int n = 0; n < kVectors; n++) totals[r][n] = Lanes::zero();
    }
    for (int b = 0; b < blocks_; b++, block += kQ8BlockBytes) {
      const Q8Query* queries[R];
      Sums<R> sums;
      KVASIR_UNROLL
      for (int r = 0; r < R; r++) {
        queries[r] = query_of(row + r) + b;
        sums.start(r, queries[r]->scale.minus_zero());
      }
      multiply<R>(block + kQ8Quad * column, ahead, [&](int r, int pair) { return pair_at(queries[r]->levels, pair); }, sums);
      if (ahead != 0) prefetch_to_l2(block + ahead + kQ8LevelBytes);
      KVASIR_UNROLL
      for (int n = 0; n < kVectors; n++) {
        const auto scale = Words::widen(block + kQ8LevelBytes + 2 * (column + n * kWidth));
        KVASIR_UNROLL
        for (int r = 0; r < R; r++) {
          totals[r][n] = Lanes::multiply_add(Words::to_float(sums.of(r, n)), Lanes::multiply(scale, Lanes::set(queries[r]->scale.scale)), totals[r][n]);
        }
      }
    }
    KVASIR_UNROLL
    for (int r = 0; r < R; r++) {
      KVASIR_UNROLL
      for (int n = 0; n < kVectors; n++) Lanes::store(scores + static_cast<ptrdiff_t>(r) * kRangeStride + n * kWidth, totals[r][n]);
    }
  }

  /** o of 32 dimensions: weights times the scales of V become integers, and one exact sum runs over the range. */
  void add_values(int block) const {
    float scales[kRangeTokens];
    const ptrdiff_t offset = values_offset_ + static_cast<ptrdiff_t>(block) * kQ8BlockBytes;
    for (int page = 0; page < work_.page_count; page++) {
      for (int key = 0; key < kPageTokens; key += kWidth) {
        Lanes::store(scales + page * kPageTokens + key, Words::widen(work_.pages[page] + offset + kQ8LevelBytes + 2 * key));
      }
    }
    const int rows = work_.tokens * work_.group;
    for (int token = 0; token < work_.tokens; token++) {
      const int first = Rows::first_of(token), keys = Rows::keys_of(token);
      for (int row = token * work_.group; row < (token + 1) * work_.group; row++) round_weights(row, first, keys, scales);
    }
    for (int column = 0; column < kQ8Dims; column += kVectors * kWidth) {
      in_parts<Words::kRows>(0, rows, [&](auto count, int row) {
        add_rows<decltype(count)::value>(row, offset, block * kQ8Dims + column, column, row == 0 && work_.prefetch_pages != 0);
      });
    }
  }

  /** Weights of keys [first, keys) of the range times their scales; all others are 0. */
  void round_weights(int row, int first, int keys, const float* scales) const {
    Q8Weights& out = *levels_of(row);
    const float* weights = Rows::weights_of(row);
    if constexpr (kRangeTokens / kWidth <= 16) {
      if (first == 0 && keys == kRangeTokens) return round_whole(weights, scales, out);
    }
    const int begin = first < keys ? first / kPageTokens * kPageTokens : 0;
    const int end = first < keys ? (keys + kPageTokens - 1) / kPageTokens * kPageTokens : 0;
    std::memset(out.levels, 0, sizeof(int16_t) * static_cast<size_t>(begin));
    std::memset(out.levels + end, 0, sizeof(int16_t) * static_cast<size_t>(work_.page_count * kPageTokens - end));
    float products[kRangeTokens];
    auto largest = Words::set_int(0);
    for (int key = begin; key < end; key += kWidth) {
      const auto weight = Lanes::load(weights + key), scale = Lanes::load(scales + key);
      // Scales of keys that the row does not see may be NaN.
      const bool seen = key >= first && key + kWidth <= keys;
      const auto product = seen ? Lanes::multiply(weight, scale) : Words::weigh(weight, scale);
      Lanes::store(products + key, product);
      largest = Words::largest_bits(largest, product);
    }
    out.scale = round_words<Words>(products + begin, end - begin, Q8Rounding(Words::highest(largest)), out.levels + begin);
  }

  /** For a row that sees the whole range: products stay in registers. */
  static void round_whole(const float* weights, const float* scales, Q8Weights& out) {
    constexpr int kCount = kRangeTokens / kWidth;
    typename Lanes::Vec products[kCount];
    auto largest = Words::set_int(0);
    KVASIR_UNROLL
    for (int i = 0; i < kCount; i++) {
      products[i] = Lanes::multiply(Lanes::load(weights + i * kWidth), Lanes::load(scales + i * kWidth));
      largest = Words::largest_bits(largest, products[i]);
    }
    const Q8Rounding rounding(Words::highest(largest));
    out.scale = {rounding.scale, 0};
    if (!rounding.has_levels) return void(std::memset(out.levels, 0, sizeof out.levels));
    const auto inverse = Lanes::set(rounding.inverse);
    auto sums = Words::set_int(0);
    KVASIR_UNROLL
    for (int i = 0; i < kCount; i += 2) {
      sums = Words::store_levels(Lanes::multiply(products[i], inverse), Lanes::multiply(products[i + 1], inverse), out.levels + i * kWidth, sums);
    }
    out.scale.sum = Words::sum(sums);
  }

  template <int R>
  void add_rows(int row, ptrdiff_t offset, int out_column, int column, bool prefetch) const {
    const Q8Weights* weights[R];
    Sums<R> sums;
    KVASIR_UNROLL
    for (int r = 0; r < R; r++) {
      weights[r] = levels_of(row + r);
      sums.start(r, weights[r]->scale.minus_zero());
    }
    for (int page = 0; page < work_.page_count; page++) {
      const uint8_t* from = work_.pages[page] + offset;
      const ptrdiff_t ahead = prefetch ? work_.pages[page + work_.prefetch_pages] - work_.pages[page] : 0;
      multiply<R>(from + kQ8Quad * column, ahead, [&](int r, int pair) { return pair_at(weights[r]->levels + page * kPageTokens, pair); }, sums);
      if (prefetch) prefetch_to_l2(from + ahead + kQ8LevelBytes);
    }
    KVASIR_UNROLL
    for (int r = 0; r < R; r++) {
      float* o = work_.o + static_cast<ptrdiff_t>(row + r) * work_.o_stride + out_column;
      KVASIR_UNROLL
      for (int n = 0; n < kVectors; n++) Lanes::store(o + n * kWidth, Lanes::multiply(Words::to_float(sums.of(r, n)), Lanes::set(weights[r]->scale.scale)));
    }
  }

  /** Integer sums of R rows x two vectors. Few sums would wait for each other, so they are kept in two halves. */
  template <int R>
  struct Sums {
    static constexpr bool kTwice = R * kVectors <= 4;
    typename Words::Int even[R][kVectors], odd[kTwice ? R : 1][kVectors];

    void start(int r, int32_t value) {
      KVASIR_UNROLL
      for (int n = 0; n < kVectors; n++) {
        even[r][n] = Words::set_int(value);
        if constexpr (kTwice) odd[r][n] = Words::set_int(0);
      }
    }
    typename Words::Int of(int r, int n) const {
      if constexpr (kTwice) return Words::add(even[r][n], odd[r][n]);
      return even[r][n];
    }
  };

  /** Adds the products of 32 levels of each column with words of R rows. */
  template <int R, class Pair>
  static void multiply(const uint8_t* levels, ptrdiff_t ahead, const Pair& pair, Sums<R>& sums) {
    KVASIR_UNROLL
    for (int quad = 0; quad < kQ8Dims / kQ8Quad; quad++, levels += kQ8Quad * kPageTokens) {
      typename Words::Int bytes[kVectors];
      KVASIR_UNROLL
      for (int n = 0; n < kVectors; n++) {
        const uint8_t* from = levels + kQ8Quad * n * kWidth;
        if (ahead != 0 && (n * kWidth) % 16 == 0) prefetch_to_l2(from + ahead);
        bytes[n] = Words::load(from);
      }
      KVASIR_UNROLL
      for (int half = 0; half < 2; half++) {
        typename Words::Int words[kVectors];
        KVASIR_UNROLL
        for (int n = 0; n < kVectors; n++) words[n] = half == 0 ? Words::even(bytes[n]) : Words::odd(bytes[n]);
        KVASIR_UNROLL
        for (int r = 0; r < R; r++) {
          const int32_t two = pair(r, 2 * quad + half);
          KVASIR_UNROLL
          for (int n = 0; n < kVectors; n++) {
            typename Words::Int& sum = Sums<R>::kTwice && half == 1 ? sums.odd[Sums<R>::kTwice ? r : 0][n] : sums.even[r][n];
            sum = Words::multiply_add(sum, words[n], two);
          }
        }
      }
    }
  }

  int blocks_;
  ptrdiff_t values_offset_;
};

template <class Words>
void run_range_q8(const RangeWork& work) {
  Q8Run<Words>(work).run();
}

template <class Words>
void score_range_q8(const RangeWork& work, const KeyScores& scores) {
  Q8Run<Words>(work).score(scores);
}

/** The kernel of an instruction set. */
template <class Words>
constexpr AttentionKernel q8_kernel{kQ8QueryBytes, load_query_q8<Words>, run_range_q8<Words>, score_range_q8<Words>, nullptr, merge_rows};

inline const AttentionKernel* choose_kernel(KvType type, const AttentionKernel& bf16, const AttentionKernel& f32, const AttentionKernel& q8) {
  return type == KvType::bf16 ? &bf16 : type == KvType::f32 ? &f32 : &q8;
}

}  // namespace
}  // namespace kvasir
