// Attention of the portable family: four lanes of compiler vectors, separate multiplies and adds.
#include "attention/kernels/tile.hpp"

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

using Float = FloatForm<PortableLanes, 8, 2>;
using Widened = WidenedForm<PortableLanes, 8, 2>;
constexpr AttentionKernel kFloat{4, copy_floats, run_range<Float>, score_range<Float>, bound_pages<Float>, merge_rows};
constexpr AttentionKernel kBf16{4, widen_bf16, run_range<Widened>, score_range<Widened>, bound_pages<Widened>, merge_rows};

}  // namespace

const AttentionKernel* attention_kernel_portable(KvType type) { return type == KvType::f32 ? &kFloat : &kBf16; }

}  // namespace kvasir
