// Vectors of 4 columns for the types of planes, in plain C++ over the compiler's own vectors. Internal linkage.
#pragma once
#include "linear/kernels/planes.hpp"
#include "simd/float_bits.hpp"

namespace kvasir {
namespace {

struct PlanesPortable {
  typedef uint32_t Word __attribute__((vector_size(16)));
  typedef int32_t Signed __attribute__((vector_size(16)));
  typedef float Float __attribute__((vector_size(16)));
  /** Sums of a part's products stay below 2^24: float32 holds such integers exactly. */
  using Int = Float;
  struct Codes {
    Float of[4];
  };
  static constexpr int kLanes = 4;

  template <class T>
  static KVASIR_INLINE T load_as(const void* p) {
    T v;
    std::memcpy(&v, p, sizeof v);
    return v;
  }
  static KVASIR_INLINE Word load(const uint8_t* p) { return load_as<Word>(p); }
  static KVASIR_INLINE Word shift(Word w, int n) { return n >= 0 ? w >> n : w << -n; }
  static KVASIR_INLINE Word keep(Word w, int mask) { return w & (0x01010101u * static_cast<uint32_t>(mask)); }
  static KVASIR_INLINE Word either(Word a, Word b) { return a | b; }
  static KVASIR_INLINE Float code(Word w, int e) { return __builtin_convertvector((Signed)((w >> (8 * e)) & 255), Float); }
  static KVASIR_INLINE Codes prepare(Word w) { return {{code(w, 0), code(w, 1), code(w, 2), code(w, 3)}}; }
  static KVASIR_INLINE Float f16(const uint8_t* p) {
    Float v;
    for (int c = 0; c < kLanes; c++) v[c] = f16_to_float(load_as<uint16_t>(p + 2 * c));
    return v;
  }
  static KVASIR_INLINE Float int8(const uint8_t* p) {
    Float v;
    for (int c = 0; c < kLanes; c++) v[c] = static_cast<float>(static_cast<int8_t>(p[c]));
    return v;
  }
  static KVASIR_INLINE Float set(float x) { return Float{x, x, x, x}; }
  static KVASIR_INLINE Float mul(Float a, Float b) { return a * b; }
  /** Rounds twice; when it widens weights, the product is exact. */
  static KVASIR_INLINE Float fma(Float a, Float b, Float c) { return a * b + c; }
  static KVASIR_INLINE Float load_floats(const float* p) { return load_as<Float>(p); }
  static KVASIR_INLINE void store_floats(float* p, Float v) { std::memcpy(p, &v, sizeof v); }
  static KVASIR_INLINE Float to_float(Int a) { return a; }

  template <int GROUPS, int MAX>
  static KVASIR_INLINE Int dot(const Codes* codes, const int8_t* x, int first) {
    Float sum = set(static_cast<float>(first));
#pragma GCC unroll 8
    for (int g = 0; g < GROUPS; g++) {
#pragma GCC unroll 4
      for (int e = 0; e < 4; e++) sum = codes[g].of[e] * set(static_cast<float>(x[4 * g + e])) + sum;
    }
    return sum;
  }
};

}  // namespace
}  // namespace kvasir
