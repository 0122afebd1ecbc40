// int8 inputs on AVX2: exact int32 sums of 32 products by byte multiply-adds that cannot saturate, one scale per sum.
#include <immintrin.h>

#include <cstddef>

#include "linear/kernels/tiles.hpp"

namespace kvasir {
namespace {

constexpr int kVectors = 2;  // of the 16 columns of a panel

/**
 * Rows of a tile: sums, weights and an input fill 16 registers. 16-bit sums of nibbles need no second operand beside
 * the weight.
 */
constexpr int tile_rows(TensorType type) { return type == TensorType::q8_0 ? 4 : 6; }
constexpr int scales_at(TensorType type) { return type == TensorType::q8_0 ? 512 : 256; }

template <class T>
KVASIR_INLINE T load_scalar(const void* p) {
  T value;
  __builtin_memcpy(&value, p, sizeof value);
  return value;
}

KVASIR_INLINE __m256i load256(const uint8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
KVASIR_INLINE __m256 load_f16(const uint8_t* p) { return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))); }
KVASIR_INLINE __m256i broadcast_i32(const uint8_t* p) { return _mm256_set1_epi32(load_scalar<int32_t>(p)); }
KVASIR_INLINE __m256 broadcast_f32(const uint8_t* p) { return _mm256_set1_ps(load_scalar<float>(p)); }

template <int MT>
using Sums = __m256i[MT][kVectors];

/** Fixes a sum's position: g++ otherwise reorders exact sums, and keeps all products in memory before it adds them. */
KVASIR_INLINE void pin(__m256i& sum) { asm("" : "+x"(sum)); }

/** Adds the products of four inputs to 16-bit sums; the first group initialises them. */
template <int MT>
KVASIR_INLINE void add_nibbles(Sums<MT>& sum, __m256i left, __m256i right, const RowPointers<MT>& x, int group) {
#pragma GCC unroll 8
  for (int m = 0; m < MT; m++) {
    __m256i values = broadcast_i32(x.row(m) + 4 * group);
    __m256i a = _mm256_maddubs_epi16(left, values), b = _mm256_maddubs_epi16(right, values);
    sum[m][0] = group == 0 ? a : _mm256_add_epi16(sum[m][0], a);
    sum[m][1] = group == 0 ? b : _mm256_add_epi16(sum[m][1], b);
    pin(sum[m][0]);
    pin(sum[m][1]);
  }
}

/**
 * Nibbles are at most 15: eight pairs of products stay within 8 * 2 * 15 * 127 < 2^15, so they are widened once per
 * block.
 */
template <int MT>
KVASIR_INLINE void nibble_sums(Sums<MT>& sum, const uint8_t* w, const RowPointers<MT>& x) {
  const __m256i low = _mm256_set1_epi8(15);
#pragma GCC unroll 4
  for (int j = 0; j < 4; j++) {
    __m256i left = load256(w + 64 * j), right = load256(w + 64 * j + 32);
    add_nibbles<MT>(sum, _mm256_and_si256(left, low), _mm256_and_si256(right, low), x, 2 * j);
    left = _mm256_and_si256(_mm256_srli_epi16(left, 4), low);
    right = _mm256_and_si256(_mm256_srli_epi16(right, 4), low);
    add_nibbles<MT>(sum, left, right, x, 2 * j + 1);
  }
#pragma GCC unroll 8
  for (int m = 0; m < MT; m++) {
    sum[m][0] = _mm256_madd_epi16(sum[m][0], _mm256_set1_epi16(1));
    sum[m][1] = _mm256_madd_epi16(sum[m][1], _mm256_set1_epi16(1));
  }
}

/**
 * |w| <= 128 is the unsigned side, and x takes the sign of w: a pair stays within 2 * 128 * 127 < 2^15. Pairs are
 * widened before they are summed.
 */
template <int MT>
KVASIR_INLINE void byte_sums(Sums<MT>& sum, const uint8_t* w, const RowPointers<MT>& x) {
#pragma GCC unroll 8
  for (int g = 0; g < 8; g++) {
    __m256i value[kVectors], magnitude[kVectors];
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; v++) {
      value[v] = _mm256_xor_si256(load256(w + 64 * g + 32 * v), _mm256_set1_epi8(static_cast<char>(0x80)));
      magnitude[v] = _mm256_abs_epi8(value[v]);
    }
#pragma GCC unroll 8
    for (int m = 0; m < MT; m++) {
      __m256i values = broadcast_i32(x.row(m) + 4 * g);
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; v++) {
        __m256i pairs = _mm256_madd_epi16(_mm256_maddubs_epi16(magnitude[v], _mm256_sign_epi8(values, value[v])), _mm256_set1_epi16(1));
        sum[m][v] = g == 0 ? pairs : _mm256_add_epi32(sum[m][v], pairs);
        pin(sum[m][v]);
      }
    }
  }
}

/**
 * acc = fma(sum, d * scale, acc); q4_1: then acc = fma(minimum, scaled_sum, acc). Accumulators are in memory, since
 * sums use the registers.
 */
template <TensorType TYPE, int MT>
KVASIR_INLINE void add_scaled(float (&acc)[MT][kPanel], const Sums<MT>& sum, const uint8_t* scales, const RowPointers<MT>& x) {
#pragma GCC unroll 2
  for (int v = 0; v < kVectors; v++) {
    __m256 d = load_f16(scales + 16 * v);
#pragma GCC unroll 8
    for (int m = 0; m < MT; m++) {
      __m256i whole = sum[m][v];
      if constexpr (TYPE == TensorType::q4_0) whole = _mm256_add_epi32(whole, broadcast_i32(x.row(m) + offsetof(Int8Block, minus8)));
      __m256 scale = _mm256_mul_ps(d, broadcast_f32(x.row(m) + offsetof(Int8Block, scale)));
      __m256 value = _mm256_fmadd_ps(_mm256_cvtepi32_ps(whole), scale, _mm256_load_ps(acc[m] + 8 * v));
      if constexpr (TYPE == TensorType::q4_1) {
        value = _mm256_fmadd_ps(load_f16(scales + 32 + 16 * v), broadcast_f32(x.row(m) + offsetof(Int8Block, scaled_sum)), value);
      }
      _mm256_store_ps(acc[m] + 8 * v, value);
    }
  }
}

/** MT rows x one panel over all inputs. */
template <TensorType TYPE, int MT>
void tile(const Segment& s, const Product& p, int panel, int row) {
  constexpr size_t kBytes = Segment::block_bytes(TYPE);
  const uint8_t* w = s.data + s.panel_bytes() * static_cast<size_t>(panel);
  RowPointers<MT> x(p.input + p.row_bytes * static_cast<size_t>(row), p.row_bytes);
  alignas(32) float acc[MT][kPanel] = {};
  for (int b = 0; b < s.blocks; b++, w += kBytes, x.advance(sizeof(Int8Block))) {
    prefetch<kBytes>(w + kPrefetchBlocks * kBytes);
    Sums<MT> sum;
    if constexpr (TYPE == TensorType::q8_0) byte_sums<MT>(sum, w, x);
    else nibble_sums<MT>(sum, w, x);
    add_scaled<TYPE, MT>(acc, sum, w + scales_at(TYPE), x);
  }
  int left = s.rows - panel * kPanel;
  int columns = left < kPanel ? left : kPanel;
  for (int m = 0; m < MT; m++) {
    float* y = p.y + static_cast<size_t>(row + m) * p.ld + panel * kPanel;
    for (int c = 0; c < columns; c++) y[c] = p.bias ? acc[m][c] + p.bias[panel * kPanel + c] : acc[m][c];
  }
}

/** The tile for `rows` <= MAX rows. */
template <TensorType TYPE, int MAX>
void tile_of(int rows, const Segment& s, const Product& p, int panel, int row) {
  if constexpr (MAX > 1) {
    if (rows < MAX) return tile_of<TYPE, MAX - 1>(rows, s, p, panel, row);
  }
  tile<TYPE, MAX>(s, p, panel, row);
}

template <TensorType TYPE>
void run(const Segment& s, const Product& p, const Share& share) {
  constexpr int kRows = tile_rows(TYPE);
  for (int panel = share.panel; panel < share.panel_end; panel++) {
    for_tiles<kRows>(share.row, share.row_end, [&](int row, int rows) { tile_of<TYPE, kRows>(rows, s, p, panel, row); });
  }
}

}  // namespace

void linear_int8_avx2(const Segment& s, const Product& p, const Share& share) {
  switch (s.type) {
    case TensorType::q4_0: return run<TensorType::q4_0>(s, p, share);
    case TensorType::q4_1: return run<TensorType::q4_1>(s, p, share);
    case TensorType::q8_0: return run<TensorType::q8_0>(s, p, share);
    default: return linear_int8_planes_avx2(s, p, share);
  }
}

void quantise_row_avx2(int columns, const float* x, Int8Block* out) {
  const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
  for (int k = 0; k < columns; k += kBlock, out++) {
    __m256 v[4];
    __m256i largest = _mm256_setzero_si256();
    for (int i = 0; i < 4; i++) {
      v[i] = _mm256_loadu_ps(x + k + 8 * i);
      largest = _mm256_max_epi32(largest, _mm256_and_si256(_mm256_castps_si256(v[i]), magnitude));
    }
    __m128i four = _mm_max_epi32(_mm256_castsi256_si128(largest), _mm256_extracti128_si256(largest, 1));
    four = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0x4e));
    four = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0xb1));
    const InputScale scale(static_cast<uint32_t>(_mm_cvtsi128_si32(four)), kByteMax);
    __m256 inverse = _mm256_set1_ps(scale.inverse);
    __m256i keep = _mm256_set1_epi32(scale.finite ? -1 : 0);
    __m256i q[4];
    for (int i = 0; i < 4; i++) {
      q[i] = _mm256_and_si256(keep, _mm256_cvtps_epi32(_mm256_mul_ps(v[i], inverse)));
    }
    __m256i bytes = _mm256_packs_epi16(_mm256_packs_epi32(q[0], q[1]), _mm256_packs_epi32(q[2], q[3]));
    bytes = _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out->values), bytes);
    // Pairwise: the low half of both lanes becomes (first, second, first, second) sums of 16.
    __m256i halves = _mm256_hadd_epi32(_mm256_add_epi32(q[0], q[1]), _mm256_add_epi32(q[2], q[3]));
    __m128i pairs = _mm_add_epi32(_mm256_castsi256_si128(halves), _mm256_extracti128_si256(halves, 1));
    pairs = _mm_hadd_epi32(pairs, pairs);
    int first = _mm_cvtsi128_si32(pairs), second = _mm_extract_epi32(pairs, 1), sum = first + second;
    out->scale = scale.scale;
    out->scaled_sum = scale.scale * static_cast<float>(sum);
    out->minus8 = -8 * sum;
    out->sums[0] = static_cast<int16_t>(first);
    out->sums[1] = static_cast<int16_t>(second);
  }
}

}  // namespace kvasir
