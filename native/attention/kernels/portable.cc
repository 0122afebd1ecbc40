// Attention of the portable family: four lanes of compiler vectors, separate multiplies and adds. q8 by multiply-adds of
// words where SSE2 has them.
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "attention/kernels/q8.hpp"

namespace kvasir {
namespace {

struct PortableLanes {
  typedef float Vec __attribute__((vector_size(16)));
  typedef int32_t Bits __attribute__((vector_size(16)));
  typedef uint32_t Words __attribute__((vector_size(16)));
  static constexpr int kWidth = 4;
  static Vec zero() { return Vec{}; }
  static Vec set(float x) { return Vec{x, x, x, x}; }
  static Vec load(const float* from) {
    Vec v;
    std::memcpy(&v, from, sizeof v);
    return v;
  }
  static Vec load_part(const float* from, int lanes) {
    Vec v{};
    std::memcpy(&v, from, sizeof(float) * lanes);
    return v;
  }
  static void store(float* to, Vec v) { std::memcpy(to, &v, sizeof v); }
  static Vec add(Vec a, Vec b) { return a + b; }
  static Vec multiply(Vec a, Vec b) { return a * b; }
  static Vec multiply_add(Vec a, Vec b, Vec c) { return a * b + c; }
  static Vec select(Bits mask, Vec a, Vec b) { return (Vec)((mask & (Bits)a) | (~mask & (Bits)b)); }
  static Vec divide(Vec a, Vec b) { return a / b; }
  static Vec magnitude(Vec v) { return (Vec)((Bits)v & 0x7fffffff); }
  static Vec with_sign(Vec size, Vec sign) { return (Vec)((Bits)size | ((Bits)sign & INT32_MIN)); }
  /** x < bound ? a : b */
  static Vec select_below(Vec x, float bound, Vec a, Vec b) { return select(x < set(bound), a, b); }
  static Vec max(Vec a, Vec b) { return select(a > b, a, b); }
  /** Nearest integer for |v| < 2^22: the sum leaves no fraction bits. */
  static Vec round(Vec v) { return (v + set(12582912.0f)) - set(12582912.0f); }
  static float largest(Vec v) {
    float best = v[0];
    for (int i = 1; i < kWidth; i++) best = v[i] > best ? v[i] : best;
    return best;
  }
  static float sum(Vec v) { return (v[0] + v[2]) + (v[1] + v[3]); }
  /** p 2^n if x is not below `lowest`, else 0; NaN stays. */
  static Vec scale_from(Vec x, float lowest, Vec p, Vec n) {
    // arbitrary in lanes that become 0
    Words exponent = ((Words)(n + set(12582912.0f)) - (Words)set(12582912.0f) + 127u) << 23;
    return select(x < set(lowest), zero(), p * (Vec)exponent);
  }
  static Vec low_half(Vec pairs) { return (Vec)((Bits)pairs << 16); }
  static Vec high_half(Vec pairs) { return (Vec)((Bits)pairs & -65536); }
};

struct Words {
  using Lanes = PortableLanes;
  using Int = Lanes::Bits;
  typedef uint16_t Halves __attribute__((vector_size(16)));
  static constexpr int kRows = 3;
  static Int load(const uint8_t* from) {
    Int bytes;
    std::memcpy(&bytes, from, sizeof bytes);
    return bytes;
  }
  static Int even(Int bytes) { return bytes & 0x00ff00ff; }
  static Int odd(Int bytes) { return (Int)((Halves)bytes >> 8); }
  static Int multiply_add(Int sum, Int words, int32_t two) {
#if defined(__SSE2__)
    return sum + (Int)_mm_madd_epi16((__m128i)words, _mm_set1_epi32(two));
#else
    const int32_t low = static_cast<int16_t>(two), high = two >> 16;
    return sum + (words & 0xffff) * low + (words >> 16) * high;
#endif
  }
  static Int set_int(int32_t value) { return Int{value, value, value, value}; }
  static Int add(Int a, Int b) { return a + b; }
  static int32_t sum(Int a) { return (a[0] + a[2]) + (a[1] + a[3]); }
  static Lanes::Vec to_float(Int a) { return __builtin_convertvector(a, Lanes::Vec); }
  static Lanes::Vec widen(const uint8_t* bf16) {
    uint16_t halves[4];
    std::memcpy(halves, bf16, sizeof halves);
    return (Lanes::Vec)(Lanes::Words{halves[0], halves[1], halves[2], halves[3]} << 16);
  }
  /** weight x scale, 0 where the weight is 0 */
  static Lanes::Vec weigh(Lanes::Vec weight, Lanes::Vec scale) { return Lanes::select(weight == Lanes::zero(), Lanes::zero(), weight * scale); }
  /** The larger of positive values or NaN, as bits. */
  static Int largest_bits(Int largest, Lanes::Vec v) {
    const Int bits = (Int)Lanes::magnitude(v), larger = bits > largest;
    return (larger & bits) | (~larger & largest);
  }
  static uint32_t highest(Int largest) {
    int32_t best = largest[0];
    for (int i = 1; i < Lanes::kWidth; i++) best = largest[i] > best ? largest[i] : best;
    return static_cast<uint32_t>(best);
  }
  /** Stores the nearest integers of two vectors; adds them to `sums`. */
  static Int store_levels(Lanes::Vec a, Lanes::Vec b, int16_t* out, Int sums) {
    typedef int16_t Four __attribute__((vector_size(8)));
    for (const Lanes::Vec& values : {a, b}) {
      const Int levels = __builtin_convertvector(Lanes::round(values), Int);
      const Four words = __builtin_convertvector(levels, Four);
      std::memcpy(out, &words, sizeof words);
      out += Lanes::kWidth;
      sums += levels;
    }
    return sums;
  }
};

using Float = FloatForm<PortableLanes, 8, 2>;
using Widened = WidenedForm<PortableLanes, 8, 2>;
constexpr AttentionKernel kFloat{4, copy_floats, run_range<Float>, score_range<Float>, bound_pages<Float>, merge_rows};
constexpr AttentionKernel kBf16{4, widen_bf16, run_range<Widened>, score_range<Widened>, bound_pages<Widened>, merge_rows};

}  // namespace

const AttentionKernel* attention_kernel_portable(KvType type) { return choose_kernel(type, kBf16, kFloat, q8_kernel<Words>); }

}  // namespace kvasir
