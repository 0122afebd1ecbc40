// i16 inputs on AVX-512 VNNI: dot products of pairs of words.
#include "linear/integer/i16.hpp"
#include "linear/kernels/planes_avx512.hpp"

namespace kvasir {
namespace {

struct WordsAvx512 : PlanesAvx512 {
  static constexpr int kDirectRows = 12, kDirectPlaneRows = 4, kDirectRowsMax = 48;
  static constexpr int kTileRows = 8, kTilePanels = 2, kChunkBlocks = 4;
  static constexpr bool kCrossed = true;

  static KVASIR_INLINE Word keep_words(Word w, int mask) { return _mm512_and_si512(w, _mm512_set1_epi16(static_cast<int16_t>(mask))); }
  static KVASIR_INLINE Word subtract_words(Word w, int n) { return n == 0 ? w : _mm512_sub_epi16(w, _mm512_set1_epi16(static_cast<int16_t>(n))); }
  static KVASIR_INLINE void store_words(uint8_t* p, Word w) { _mm512_store_si512(p, w); }
  static KVASIR_INLINE Int multiply_add(Int sum, Word w, int32_t values) { return _mm512_dpwssd_epi32(sum, w, _mm512_set1_epi32(values)); }
  /** Adds (x0 + w1) (x1 + w0) of both words of a dword. */
  static KVASIR_INLINE Int crossed_add(Int sum, Word w0, Word w1, Word x0, Word x1) {
    Int next = _mm512_dpwssd_epi32(sum, _mm512_add_epi16(x0, w1), _mm512_add_epi16(x1, w0));
    asm("" : "+x"(next));
    return next;
  }
  static KVASIR_INLINE Int subtract_products(Int sum, Word a, Word b) { return _mm512_sub_epi32(sum, _mm512_madd_epi16(a, b)); }
  static KVASIR_INLINE Int load_ints(const int32_t* p) { return _mm512_load_si512(p); }
  static KVASIR_INLINE void store_ints(int32_t* p, Int v) { _mm512_store_si512(p, v); }
  static KVASIR_INLINE Int set_int(int32_t value) { return _mm512_set1_epi32(value); }
  template <int FACTOR>
  static KVASIR_INLINE Int scaled_int(const int32_t* value) {
    return _mm512_slli_epi32(_mm512_set1_epi32(*value), __builtin_ctz(FACTOR));
  }
  static KVASIR_INLINE Int add(Int a, Int b) { return _mm512_add_epi32(a, b); }
};

}  // namespace

void linear_i16_avx512(const Segment& s, const Product& p, const Share& share) { WordProducts<WordsAvx512>::run(s, p, share); }

namespace {

/** The sum of the chosen lanes, which wraps: the reductions of GCC add signed numbers, whose overflow is undefined. */
inline uint32_t wrapped_sum(__mmask16 which, __m512i lanes) {
  const __m512i chosen = _mm512_maskz_mov_epi32(which, lanes);
  const __m256i half = _mm256_add_epi32(_mm512_castsi512_si256(chosen), _mm512_extracti64x4_epi64(chosen, 1));
  __m128i sum = _mm_add_epi32(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
  sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0x4e));
  sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0xb1));
  return static_cast<uint32_t>(_mm_cvtsi128_si32(sum));
}

}  // namespace

void quantise_words_avx512(int columns, const float* x, Int16Block* out) {
  const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
  for (int k = 0; k < columns; k += kBlock, out++) {
    __m512 a = _mm512_loadu_ps(x + k), b = _mm512_loadu_ps(x + k + 16);
    __m512i larger = _mm512_max_epu32(_mm512_and_si512(_mm512_castps_si512(a), magnitude), _mm512_and_si512(_mm512_castps_si512(b), magnitude));
    const InputScale scale(_mm512_reduce_max_epu32(larger), kWordMax);
    __m512 inverse = _mm512_set1_ps(scale.inverse);
    __mmask16 keep = scale.finite ? 0xffff : 0;
    __m512i qa = _mm512_maskz_cvtps_epi32(keep, _mm512_mul_ps(a, inverse)), qb = _mm512_maskz_cvtps_epi32(keep, _mm512_mul_ps(b, inverse));
    __m512i words = _mm512_inserti64x4(_mm512_castsi256_si512(_mm512_cvtepi32_epi16(qa)), _mm512_cvtepi32_epi16(qb), 1);
    words = _mm512_shufflehi_epi16(_mm512_shufflelo_epi16(words, 0xd8), 0xd8);
    _mm512_storeu_si512(out->values, words);
    out->finish(scale.scale, _mm512_reduce_add_epi32(qa), _mm512_reduce_add_epi32(qb));
    // The products of neighbouring pairs appear twice.
    const __m512i products = _mm512_madd_epi16(words, _mm512_shuffle_epi32(words, _MM_PERM_CDAB));
    out->finish_products(wrapped_sum(0x0055, products), wrapped_sum(0x5500, products));
  }
}

}  // namespace kvasir
