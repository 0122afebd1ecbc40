// i16 inputs on AVX2: multiply-adds of pairs of words.
#include "linear/integer/i16.hpp"
#include "linear/kernels/planes_avx2.hpp"

namespace kvasir {
namespace {

struct WordsAvx2 : PlanesAvx2 {
  static constexpr int kDirectRows = 4, kDirectPlaneRows = 2, kDirectRowsMax = 16;
  static constexpr int kTileRows = 4, kTilePanels = 1, kChunkBlocks = 9;
  static constexpr bool kCrossed = true;

  static KVASIR_INLINE Word keep_words(Word w, int mask) { return _mm256_and_si256(w, _mm256_set1_epi16(static_cast<int16_t>(mask))); }
  static KVASIR_INLINE Word subtract_words(Word w, int n) { return n == 0 ? w : _mm256_sub_epi16(w, _mm256_set1_epi16(static_cast<int16_t>(n))); }
  static KVASIR_INLINE void store_words(uint8_t* p, Word w) { _mm256_store_si256(reinterpret_cast<__m256i*>(p), w); }
  static KVASIR_INLINE Int multiply_add(Int sum, Word w, int32_t values) {
    Int next = _mm256_add_epi32(sum, _mm256_madd_epi16(w, _mm256_set1_epi32(values)));
    asm("" : "+x"(next));  // g++ otherwise reorders exact sums, and keeps all products in memory before it adds them
    return next;
  }
  /** Adds (x0 + w1) (x1 + w0) of both words of a dword. */
  static KVASIR_INLINE Int crossed_add(Int sum, Word w0, Word w1, Word x0, Word x1) {
    Int next = _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_add_epi16(x0, w1), _mm256_add_epi16(x1, w0)));
    asm("" : "+x"(next));
    return next;
  }
  static KVASIR_INLINE Int subtract_products(Int sum, Word a, Word b) { return _mm256_sub_epi32(sum, _mm256_madd_epi16(a, b)); }
  static KVASIR_INLINE Int load_ints(const int32_t* p) { return _mm256_load_si256(reinterpret_cast<const __m256i*>(p)); }
  static KVASIR_INLINE void store_ints(int32_t* p, Int v) { _mm256_store_si256(reinterpret_cast<__m256i*>(p), v); }
  static KVASIR_INLINE Int set_int(int32_t value) { return _mm256_set1_epi32(value); }
  template <int FACTOR>
  static KVASIR_INLINE Int scaled_int(const int32_t* value) {
    return _mm256_slli_epi32(_mm256_set1_epi32(*value), __builtin_ctz(FACTOR));
  }
  static KVASIR_INLINE Int add(Int a, Int b) { return _mm256_add_epi32(a, b); }
};

KVASIR_INLINE int sum_of(__m256i a) {
  __m128i four = _mm_add_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
  four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(four, _mm_shuffle_epi32(four, 0xb1)));
}

}  // namespace

void linear_i16_avx2(const Segment& s, const Product& p, const Share& share) { WordProducts<WordsAvx2>::run(s, p, share); }

void quantise_words_avx2(int columns, const float* x, Int16Block* out) {
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
    const InputScale scale(static_cast<uint32_t>(_mm_cvtsi128_si32(four)), kWordMax);
    const __m256 inverse = _mm256_set1_ps(scale.inverse);
    const __m256i keep = _mm256_set1_epi32(scale.finite ? -1 : 0);
    __m256i q[4], products[2];
    for (int i = 0; i < 4; i++) q[i] = _mm256_and_si256(keep, _mm256_cvtps_epi32(_mm256_mul_ps(v[i], inverse)));
    for (int i = 0; i < 2; i++) {
      __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(q[2 * i], q[2 * i + 1]), 0xd8);
      words = _mm256_shufflehi_epi16(_mm256_shufflelo_epi16(words, 0xd8), 0xd8);
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(out->values + 16 * i), words);
      // The products of neighbouring pairs appear twice.
      products[i] = _mm256_and_si256(_mm256_madd_epi16(words, _mm256_shuffle_epi32(words, 0xb1)), _mm256_set1_epi64x(0xffffffff));
    }
    out->finish(scale.scale, sum_of(_mm256_add_epi32(q[0], q[1])), sum_of(_mm256_add_epi32(q[2], q[3])));
    out->finish_products(static_cast<uint32_t>(sum_of(products[0])), static_cast<uint32_t>(sum_of(products[1])));
  }
}

}  // namespace kvasir
