// int8 inputs on AVX2: exact int32 sums of 32 products by byte multiply-adds that cannot saturate, one scale for each sum.
#include <immintrin.h>

#include "linear_kernels.hpp"

#define KVASIR_INLINE inline __attribute__((always_inline))

namespace kvasir {
namespace {

constexpr int kTileRows = 4;
constexpr int kPrefetchBlocks = 16;

template <class T>
KVASIR_INLINE T load_scalar(const void* p) {
  T value;
  __builtin_memcpy(&value, p, sizeof value);
  return value;
}

KVASIR_INLINE __m256i load256(const uint8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
KVASIR_INLINE __m256 load_f16(const uint8_t* p) { return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))); }
KVASIR_INLINE __m256i input_group(const Int8Block& x, int group) { return _mm256_set1_epi32(load_scalar<int32_t>(x.values + 4 * group)); }

/** Rows of int8 inputs, one block wide. */
template <int MT>
struct Rows {
  const uint8_t* first;
  size_t stride;
  KVASIR_INLINE const Int8Block& row(int m) const { return *reinterpret_cast<const Int8Block*>(first + static_cast<size_t>(m) * stride); }
};

/** Nibbles are at most 15: eight pairs of products stay within 8 * 2 * 15 * 127 < 2^15. */
template <int MT>
KVASIR_INLINE void nibble_sums(__m256i (&sum)[MT], const uint8_t* w, const Rows<MT>& x) {
  const __m256i low = _mm256_set1_epi8(15);
  __m256i pairs[MT];
#pragma GCC unroll 4
  for (int m = 0; m < MT; m++) pairs[m] = _mm256_setzero_si256();
#pragma GCC unroll 4
  for (int j = 0; j < 4; j++) {
    __m256i both = load256(w + 64 * j);
    __m256i even = _mm256_and_si256(both, low), odd = _mm256_and_si256(_mm256_srli_epi16(both, 4), low);
#pragma GCC unroll 4
    for (int m = 0; m < MT; m++) {
      pairs[m] = _mm256_add_epi16(pairs[m], _mm256_maddubs_epi16(even, input_group(x.row(m), 2 * j)));
      pairs[m] = _mm256_add_epi16(pairs[m], _mm256_maddubs_epi16(odd, input_group(x.row(m), 2 * j + 1)));
    }
  }
#pragma GCC unroll 4
  for (int m = 0; m < MT; m++) sum[m] = _mm256_madd_epi16(pairs[m], _mm256_set1_epi16(1));
}

/** |w| <= 128 as the unsigned side and x with the sign of w: a pair stays within 2 * 128 * 127 < 2^15; pairs are widened before they add up. */
template <int MT>
KVASIR_INLINE void byte_sums(__m256i (&sum)[MT], const uint8_t* w, const Rows<MT>& x) {
#pragma GCC unroll 4
  for (int m = 0; m < MT; m++) sum[m] = _mm256_setzero_si256();
#pragma GCC unroll 8
  for (int g = 0; g < 8; g++) {
    __m256i value = _mm256_xor_si256(load256(w + 64 * g), _mm256_set1_epi8(static_cast<char>(0x80)));
    __m256i magnitude = _mm256_abs_epi8(value);
#pragma GCC unroll 4
    for (int m = 0; m < MT; m++) {
      __m256i pairs = _mm256_maddubs_epi16(magnitude, _mm256_sign_epi8(input_group(x.row(m), g), value));
      sum[m] = _mm256_add_epi32(sum[m], _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
    }
  }
}

/** MT rows x 8 columns (half a panel) over all inputs. */
template <TensorType TYPE, int MT>
KVASIR_INLINE void half_tile(const Segment& s, const uint8_t* panel, int half, Rows<MT> x, float (*out)[kPanel]) {
  constexpr size_t kBytes = Segment::block_bytes(TYPE);
  constexpr int kScales = TYPE == TensorType::q8_0 ? 512 : 256;
  __m256 acc[MT];
#pragma GCC unroll 4
  for (int m = 0; m < MT; m++) acc[m] = _mm256_setzero_ps();
  const uint8_t* w = panel;
  for (int b = 0; b < s.blocks; b++, w += kBytes, x.first += sizeof(Int8Block)) {
    for (size_t i = 0; i < kBytes; i += 128) _mm_prefetch(reinterpret_cast<const char*>(w + kPrefetchBlocks * kBytes + i + 64 * static_cast<size_t>(half)), _MM_HINT_T0);
    __m256i sum[MT];
    if constexpr (TYPE == TensorType::q8_0) byte_sums<MT>(sum, w + 32 * half, x);
    else nibble_sums<MT>(sum, w + 32 * half, x);
    __m256 d = load_f16(w + kScales + 16 * half);
#pragma GCC unroll 4
    for (int m = 0; m < MT; m++) {
      const Int8Block& block = x.row(m);
      if constexpr (TYPE == TensorType::q4_0) sum[m] = _mm256_add_epi32(sum[m], _mm256_set1_epi32(block.minus8));
      acc[m] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum[m]), _mm256_mul_ps(d, _mm256_set1_ps(block.scale)), acc[m]);
      if constexpr (TYPE == TensorType::q4_1) acc[m] = _mm256_fmadd_ps(load_f16(w + kScales + 32 + 16 * half), _mm256_set1_ps(block.scaled_sum), acc[m]);
    }
  }
#pragma GCC unroll 4
  for (int m = 0; m < MT; m++) _mm256_storeu_ps(out[m] + 8 * half, acc[m]);
}

template <TensorType TYPE, int MT>
void tile(const Segment& s, const Product& p, int panel, int row) {
  float out[MT][kPanel];
  const uint8_t* w = s.data + s.panel_bytes() * static_cast<size_t>(panel);
  Rows<MT> x{p.input + p.row_bytes * static_cast<size_t>(row), p.row_bytes};
  half_tile<TYPE, MT>(s, w, 0, x, out);
  half_tile<TYPE, MT>(s, w, 1, x, out);
  int left = s.rows - panel * kPanel;
  int columns = left < kPanel ? left : kPanel;
  for (int m = 0; m < MT; m++) {
    float* y = p.y + static_cast<size_t>(row + m) * p.ld + panel * kPanel;
    for (int c = 0; c < columns; c++) y[c] = p.bias ? out[m][c] + p.bias[panel * kPanel + c] : out[m][c];
  }
}

template <TensorType TYPE>
void run(const Segment& s, const Product& p, const Share& share) {
  for (int panel = share.panel; panel < share.panel_end; panel++) {
    int row = share.row;
    for (; row + kTileRows <= share.row_end; row += kTileRows) tile<TYPE, kTileRows>(s, p, panel, row);
    switch (share.row_end - row) {
      case 3: tile<TYPE, 3>(s, p, panel, row); break;
      case 2: tile<TYPE, 2>(s, p, panel, row); break;
      case 1: tile<TYPE, 1>(s, p, panel, row); break;
      default: break;
    }
  }
}

}  // namespace

void linear_int8_avx2(const Segment& s, const Product& p, const Share& share) {
  switch (s.type) {
    case TensorType::q4_0: return run<TensorType::q4_0>(s, p, share);
    case TensorType::q4_1: return run<TensorType::q4_1>(s, p, share);
    default: return run<TensorType::q8_0>(s, p, share);
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
    bool finite = _mm_cvtsi128_si32(four) < 0x7f800000;
    float max = _mm_cvtss_f32(_mm_castsi128_ps(four));
    bool zero = !(max >= 1e-30f);
    // A NaN or infinity leaves zero values under a NaN scale: the row that holds it shows it.
    float scale = !finite ? __builtin_nanf("") : zero ? 0.0f : max / 127.0f;
    __m256 inverse = _mm256_set1_ps(zero ? 0.0f : 127.0f / max);
    __m256i keep = _mm256_set1_epi32(finite ? -1 : 0);
    __m256i q[4], total = _mm256_setzero_si256();
    for (int i = 0; i < 4; i++) {
      q[i] = _mm256_and_si256(keep, _mm256_cvtps_epi32(_mm256_mul_ps(v[i], inverse)));
      total = _mm256_add_epi32(total, q[i]);
    }
    __m256i bytes = _mm256_packs_epi16(_mm256_packs_epi32(q[0], q[1]), _mm256_packs_epi32(q[2], q[3]));
    bytes = _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out->values), bytes);
    __m128i sums = _mm_add_epi32(_mm256_castsi256_si128(total), _mm256_extracti128_si256(total, 1));
    sums = _mm_add_epi32(sums, _mm_shuffle_epi32(sums, 0x4e));
    sums = _mm_add_epi32(sums, _mm_shuffle_epi32(sums, 0xb1));
    int sum = _mm_cvtsi128_si32(sums);
    out->scale = scale;
    out->scaled_sum = scale * static_cast<float>(sum);
    out->minus8 = -8 * sum;
    out->minus128 = -128 * sum;
  }
}

}  // namespace kvasir
