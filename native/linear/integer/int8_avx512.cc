// int8 inputs on AVX-512 VNNI: exact int32 sums of 32 products, one scale per sum.
#include "linear/kernels/avx512.hpp"

namespace kvasir {
namespace {

/** Offset of a block's scales. */
constexpr int scales_at(TensorType type) { return type == TensorType::q8_0 ? 512 : 256; }

/** Sums start at the negated bias of unsigned storage. */
template <TensorType TYPE>
KVASIR_INLINE __m512i first_sum(const uint8_t* block) {
  if constexpr (TYPE == TensorType::q4_0) return broadcast_i32(block + offsetof(Int8Block, minus8));
  if constexpr (TYPE == TensorType::q8_0) return _mm512_slli_epi32(broadcast_i32(block + offsetof(Int8Block, minus8)), 4);
  return _mm512_setzero_si512();
}

/** Adds the products of inputs 4 group .. 4 group + 3 for all rows and panels of the tile. */
template <int MT, int NP>
KVASIR_INLINE void add_group(__m512i (&sum)[MT][NP], const __m512i (&w)[NP], const RowPointers<MT>& x, int group) {
#pragma GCC unroll 16
  for (int m = 0; m < MT; m++) {
    __m512i values = broadcast_i32(x.row(m) + 4 * group);
#pragma GCC unroll 4
    for (int p = 0; p < NP; p++) sum[m][p] = _mm512_dpbusd_epi32(sum[m][p], w[p], values);
  }
}

/** Few sums would wait for each other, so odd groups are summed separately. Integer sums have no order. */
template <TensorType TYPE, int MT, int NP>
KVASIR_INLINE void block_sums(__m512i (&sum)[MT][NP], const uint8_t* w, size_t panel_bytes, const RowPointers<MT>& x) {
  constexpr bool kTwice = MT * NP <= 4;
  __m512i odd[MT][NP];
#pragma GCC unroll 16
  for (int m = 0; m < MT; m++)
#pragma GCC unroll 4
    for (int p = 0; p < NP; p++) odd[m][p] = _mm512_setzero_si512();
  __m512i group[NP];
  if constexpr (TYPE == TensorType::q8_0) {
#pragma GCC unroll 8
    for (int g = 0; g < 8; g++) {
#pragma GCC unroll 4
      for (int p = 0; p < NP; p++) group[p] = load512(w + static_cast<size_t>(p) * panel_bytes + 64 * g);
      add_group(kTwice && g % 2 ? odd : sum, group, x, g);
    }
  } else {
    const __m512i low = _mm512_set1_epi8(15);
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) {
      __m512i both[NP];
#pragma GCC unroll 4
      for (int p = 0; p < NP; p++) {
        both[p] = load512(w + static_cast<size_t>(p) * panel_bytes + 64 * j);
        group[p] = _mm512_and_si512(both[p], low);
      }
      add_group(sum, group, x, 2 * j);
#pragma GCC unroll 4
      for (int p = 0; p < NP; p++) group[p] = _mm512_and_si512(_mm512_srli_epi16(both[p], 4), low);
      add_group(kTwice ? odd : sum, group, x, 2 * j + 1);
    }
  }
  if constexpr (kTwice) {
#pragma GCC unroll 4
    for (int m = 0; m < MT; m++)
#pragma GCC unroll 4
      for (int p = 0; p < NP; p++) sum[m][p] = _mm512_add_epi32(sum[m][p], odd[m][p]);
  }
}

/** acc = fma(sum, d * scale, acc); q4_1: then acc = fma(minimum, scaled_sum, acc). */
template <TensorType TYPE, int MT, int NP>
KVASIR_INLINE void add_scaled(__m512 (&acc)[MT][NP], const __m512i (&sum)[MT][NP], const uint8_t* w, size_t panel_bytes, const RowPointers<MT>& x) {
#pragma GCC unroll 4
  for (int p = 0; p < NP; p++) {
    const uint8_t* scales = w + static_cast<size_t>(p) * panel_bytes + scales_at(TYPE);
    __m512 d = load_f16(scales);
#pragma GCC unroll 16
    for (int m = 0; m < MT; m++) {
      __m512 scale = _mm512_mul_ps(d, broadcast_f32(x.row(m) + offsetof(Int8Block, scale)));
      acc[m][p] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum[m][p]), scale, acc[m][p]);
    }
    if constexpr (TYPE == TensorType::q4_1) {
      __m512 minimum = load_f16(scales + 32);
#pragma GCC unroll 16
      for (int m = 0; m < MT; m++) acc[m][p] = _mm512_fmadd_ps(minimum, broadcast_f32(x.row(m) + offsetof(Int8Block, scaled_sum)), acc[m][p]);
    }
  }
}

/** MT rows x NP panels over all inputs. */
template <TensorType TYPE, int MT, int NP>
void tile(const Segment& s, const Product& product, int panel, int row) {
  constexpr size_t kBytes = Segment::block_bytes(TYPE);
  const size_t panel_bytes = s.panel_bytes();
  const uint8_t* w = s.data + panel_bytes * static_cast<size_t>(panel);
  RowPointers<MT> x(product.input + product.row_bytes * static_cast<size_t>(row), product.row_bytes);
  __m512 acc[MT][NP];
#pragma GCC unroll 16
  for (int m = 0; m < MT; m++)
#pragma GCC unroll 4
    for (int p = 0; p < NP; p++) acc[m][p] = _mm512_setzero_ps();
  for (int b = 0; b < s.blocks; b++, w += kBytes, x.advance(sizeof(Int8Block))) {
    __m512i sum[MT][NP];
#pragma GCC unroll 16
    for (int m = 0; m < MT; m++)
#pragma GCC unroll 4
      for (int p = 0; p < NP; p++) sum[m][p] = first_sum<TYPE>(x.row(m));
    const uint8_t* later = w + prefetch_ahead<NP>(s, b, kPrefetchBlocks * kBytes, kPrefetchBlocks);
#pragma GCC unroll 4
    for (int p = 0; p < NP; p++) prefetch<kBytes>(later + static_cast<size_t>(p) * panel_bytes);
    block_sums<TYPE, MT, NP>(sum, w, panel_bytes, x);
    add_scaled<TYPE, MT, NP>(acc, sum, w, panel_bytes, x);
  }
#pragma GCC unroll 4
  for (int p = 0; p < NP; p++) {
    __mmask16 mask = panel_mask(s, panel + p);
#pragma GCC unroll 16
    for (int m = 0; m < MT; m++) store_row(product, row + m, panel + p, mask, acc[m][p]);
  }
}

/** The tile for `rows` <= MAX rows. */
template <TensorType TYPE, int NP, int MAX>
void tile_of(int rows, const Segment& s, const Product& p, int panel, int row) {
  if constexpr (MAX > 1) {
    if (rows < MAX) return tile_of<TYPE, NP, MAX - 1>(rows, s, p, panel, row);
  }
  tile<TYPE, MAX, NP>(s, p, panel, row);
}

// 12 sums, 12 accumulators, two weights and an input fit into 32 registers.
constexpr int kRowsOfTwoPanels = 6;
constexpr int kRowsOfOnePanel = 12;

template <TensorType TYPE>
void one_panel(const Segment& s, const Product& p, int panel, int row, int row_end) {
  for_tiles<kRowsOfOnePanel>(row, row_end, [&](int r, int rows) { tile_of<TYPE, 1, kRowsOfOnePanel>(rows, s, p, panel, r); });
}

template <TensorType TYPE>
void two_panels(const Segment& s, const Product& p, int panel, int row, int row_end) {
  for_tiles<kRowsOfTwoPanels>(row, row_end, [&](int r, int rows) { tile_of<TYPE, 2, kRowsOfTwoPanels>(rows, s, p, panel, r); });
}

template <TensorType TYPE>
void run(const Segment& s, const Product& p, const Share& share) {
  int rows = share.row_end - share.row;
  int panel = share.panel;
  // Rows that fit one tile unpack every weight once, in one stream from memory.
  bool single = rows <= kRowsOfOnePanel;
  for (; !single && panel + 2 <= share.panel_end; panel += 2) two_panels<TYPE>(s, p, panel, share.row, share.row_end);
  for (; panel < share.panel_end; panel++) one_panel<TYPE>(s, p, panel, share.row, share.row_end);
}

}  // namespace

void linear_int8_avx512(const Segment& s, const Product& p, const Share& share) {
  switch (s.type) {
    case TensorType::q4_0: return run<TensorType::q4_0>(s, p, share);
    case TensorType::q4_1: return run<TensorType::q4_1>(s, p, share);
    case TensorType::q8_0: return run<TensorType::q8_0>(s, p, share);
    default: return linear_int8_planes_avx512(s, p, share);
  }
}

void quantise_row_avx512(int columns, const float* x, Int8Block* out) {
  const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
  for (int k = 0; k < columns; k += kBlock, out++) {
    __m512 a = _mm512_loadu_ps(x + k), b = _mm512_loadu_ps(x + k + 16);
    __m512i larger = _mm512_max_epu32(_mm512_and_si512(_mm512_castps_si512(a), magnitude), _mm512_and_si512(_mm512_castps_si512(b), magnitude));
    const InputScale scale(_mm512_reduce_max_epu32(larger), kByteMax);
    __m512 inverse = _mm512_set1_ps(scale.inverse);
    __mmask16 keep = scale.finite ? 0xffff : 0;
    __m512i qa = _mm512_maskz_cvtps_epi32(keep, _mm512_mul_ps(a, inverse)), qb = _mm512_maskz_cvtps_epi32(keep, _mm512_mul_ps(b, inverse));
    int first = _mm512_reduce_add_epi32(qa), second = _mm512_reduce_add_epi32(qb), sum = first + second;
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out->values), _mm512_cvtepi32_epi8(qa));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out->values + 16), _mm512_cvtepi32_epi8(qb));
    out->scale = scale.scale;
    out->scaled_sum = scale.scale * static_cast<float>(sum);
    out->minus8 = -8 * sum;
    out->sums[0] = static_cast<int16_t>(first);
    out->sums[1] = static_cast<int16_t>(second);
  }
}

}  // namespace kvasir
