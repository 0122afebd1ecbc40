// Scalar conversions between float32, bf16 and f16 bit patterns. Internal linkage: every instruction set compiles its
// own copy.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

namespace kvasir {
namespace {

[[maybe_unused]] inline uint32_t float_bits(float x) {
  uint32_t u;
  std::memcpy(&u, &x, 4);
  return u;
}

[[maybe_unused]] inline float bits_float(uint32_t u) {
  float x;
  std::memcpy(&x, &u, 4);
  return x;
}

[[maybe_unused]] inline float bf16_to_float(uint16_t h) { return bits_float(static_cast<uint32_t>(h) << 16); }

/** Rounds to nearest, ties to even. NaN stays NaN (quiet); subnormals are kept. */
[[maybe_unused]] inline uint16_t float_to_bf16(float x) {
  uint32_t u = float_bits(x);
  if ((u & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((u >> 16) | 0x40);
  return static_cast<uint16_t>((u + 0x7fff + ((u >> 16) & 1)) >> 16);
}

/** Exact; NaN becomes quiet. */
[[maybe_unused]] inline float f16_to_float(uint16_t h) {
  uint32_t sign = static_cast<uint32_t>(h & 0x8000) << 16;
  uint32_t magnitude = static_cast<uint32_t>(h & 0x7fff) << 13;
  if (magnitude >= 0x0f800000u) return bits_float(sign | 0x7f800000u | magnitude | (magnitude > 0x0f800000u ? 0x400000u : 0));
  // Changing the exponent's bias by a multiplication widens subnormals too.
  return bits_float(sign | float_bits(bits_float(magnitude) * 0x1p112f));
}

}  // namespace
}  // namespace kvasir
