// i16 inputs in plain C++, with the bits of the vector kernels: SSE2 multiply-adds of words where the machine has them.
#if defined(__aarch64__)
#include <arm_neon.h>
#elif defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "linear/integer/i16.hpp"
#include "linear/kernels/planes_portable.hpp"

namespace kvasir {
namespace {

struct WordsPortable : PlanesPortable {
  using Int = Signed;
  typedef uint16_t Halves __attribute__((vector_size(16)));
  static constexpr int kDirectRows = 2, kDirectPlaneRows = 1, kDirectRowsMax = kDirectRows;
  static constexpr int kTileRows = 3, kTilePanels = 1, kChunkBlocks = 8;
  static constexpr bool kCrossed = false;

  static KVASIR_INLINE Word keep_words(Word w, int mask) { return w & (0x00010001u * static_cast<uint32_t>(mask)); }
  static KVASIR_INLINE Word subtract_words(Word w, int n) { return (Word)((Halves)w - static_cast<uint16_t>(n)); }
  static KVASIR_INLINE void store_words(uint8_t* p, Word w) { std::memcpy(p, &w, sizeof w); }
  static KVASIR_INLINE Int multiply_add(Int sum, Word w, int32_t values) {
#if defined(__SSE2__)
    return sum + (Int)_mm_madd_epi16((__m128i)w, _mm_set1_epi32(values));
#else
    const int32_t low = static_cast<int16_t>(values), high = values >> 16;
    return sum + ((Int)(w << 16) >> 16) * low + ((Int)w >> 16) * high;
#endif
  }
  static KVASIR_INLINE Int set_int(int32_t value) { return Int{value, value, value, value}; }
  template <int FACTOR>
  static KVASIR_INLINE Int scaled_int(const int32_t* value) {
    return set_int(*value * FACTOR);
  }
  static KVASIR_INLINE Int add(Int a, Int b) { return a + b; }
  static KVASIR_INLINE Float to_float(Int a) { return __builtin_convertvector(a, Float); }

  /** Rounds once, as the fused multiply-adds of other instruction sets do. */
  static KVASIR_INLINE Float fma(Float a, Float b, Float c) {
#if defined(__aarch64__)
    return vfmaq_f32(c, a, b);
#else
    return Float{fused(a[0], b[0], c[0]), fused(a[1], b[1], c[1]), fused(a[2], b[2], c[2]), fused(a[3], b[3], c[3])};
#endif
  }

 private:
  /**
   * The product is exact in float64. The sum is rounded to odd: towards the neighbour with an odd last bit if it is
   * inexact. Its rounding to float32 is then that of the exact sum.
   */
  static KVASIR_INLINE float fused(float a, float b, float c) {
    const double product = static_cast<double>(a) * static_cast<double>(b), addend = static_cast<double>(c);
    double sum = product + addend;
    const double back = sum - product;
    const double error = (product - (sum - back)) + (addend - back);
    int64_t bits;
    std::memcpy(&bits, &sum, sizeof bits);
    if ((error < 0 || error > 0) && bits % 2 == 0) bits += (error > 0) == (sum > 0) ? 1 : -1;
    std::memcpy(&sum, &bits, sizeof sum);
    return static_cast<float>(sum);
  }
};

}  // namespace

void linear_i16_portable(const Segment& s, const Product& p, const Share& share) { WordProducts<WordsPortable>::run(s, p, share); }

}  // namespace kvasir
