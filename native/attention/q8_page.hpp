// Pages of 8-bit K and V. K and V of a KV head are blocks of 32 tokens by 32 dimensions: levels, then one bf16 scale for
// each token. Levels of K lie as (8, 32 tokens, 4 dimensions), those of V as (8, 32 dimensions, 4 tokens). Of every four
// the second follows the third: so the even bytes of a dword, and the odd ones, are neighbours.
#pragma once
#include "base/types.hpp"
#include "simd/float_bits.hpp"

namespace kvasir {

constexpr int kQ8Dims = 32;                                // dimensions that share a scale
constexpr int kQ8LevelBytes = kPageTokens * kQ8Dims;
constexpr int kQ8BlockBytes = kQ8LevelBytes + 2 * kPageTokens;
constexpr int kQ8Zero = 128;                               // levels are stored as bytes from 1 to 255
constexpr int kQ8Quad = 4;                                 // levels in a dword

namespace {

/** The byte of a dword that holds the i-th of four levels. */
constexpr int q8_place(int i) { return i % 4 == 1 ? i + 1 : i % 4 == 2 ? i - 1 : i; }

/** 32 values of one token: value = scale x (level - 128). */
struct Q8Values {
  uint16_t scale;  // bf16
  uint8_t levels[kQ8Dims];

  float value(int i) const { return bf16_to_float(scale) * static_cast<float>(levels[i] - kQ8Zero); }
};

typedef float Q8Floats __attribute__((vector_size(32)));
typedef uint32_t Q8Words __attribute__((vector_size(32)));
typedef uint8_t Q8Bytes __attribute__((vector_size(8)));
constexpr int kQ8Lanes = 8;

/** The largest magnitude of 32 values, as bits: those of NaN are above those of infinity. */
inline uint32_t largest_bits(const float* x) {
  uint32_t largest = 0;
  for (int i = 0; i < kQ8Dims; i++) {
    const uint32_t bits = float_bits(x[i]) & 0x7fffffffu;
    largest = bits > largest ? bits : largest;
  }
  return largest;
}

/**
 * Rounds 32 values. The scale is largest magnitude / 127, rounded to bf16, and levels are those of the rounded scale:
 * the largest is always 127, so rounded values stay as they are when they are rounded again. Values below 1e-30 become
 * 0; a NaN or infinity makes all 32 NaN.
 */
inline Q8Values round_q8(const float* x) {
  constexpr float kTiny = 1e-30f;
  constexpr float kIntegers = 12582912.0f;  // its sum with a small value has the nearest integer in its last bits
  Q8Values out;
  const uint32_t largest = largest_bits(x);
  const bool finite = largest < 0x7f800000u;
  if (!finite || bits_float(largest) < kTiny) {
    out.scale = finite ? 0 : 0x7fc0;
    std::memset(out.levels, kQ8Zero, sizeof out.levels);
    return out;
  }
  out.scale = float_to_bf16(bits_float(largest) / 127.0f);
  const float inverse = 1.0f / bf16_to_float(out.scale);
  for (int i = 0; i < kQ8Dims; i += kQ8Lanes) {
    Q8Floats values;
    std::memcpy(&values, x + i, sizeof values);
    const Q8Bytes levels = __builtin_convertvector((Q8Words)(values * inverse + kIntegers) + static_cast<uint32_t>(kQ8Zero), Q8Bytes);
    std::memcpy(out.levels + i, &levels, sizeof levels);
  }
  return out;
}

/** K and V of one KV head inside a page. */
struct Q8Page {
  uint8_t* k;
  uint8_t* v;
  int blocks;

  Q8Page(uint8_t* share, int head_dim) : k(share), v(share + half_bytes(head_dim)), blocks(head_dim / kQ8Dims) {}

  static size_t half_bytes(int head_dim) { return static_cast<size_t>(head_dim / kQ8Dims) * kQ8BlockBytes; }

  /** Other threads may write other slots at once. */
  void write_key(int block, int slot, const Q8Values& values) const {
    uint8_t* to = k + static_cast<ptrdiff_t>(block) * kQ8BlockBytes;
    for (int d = 0; d < kQ8Dims; d += kQ8Quad) {
      const uint8_t* of = values.levels + d;
      const uint8_t four[kQ8Quad] = {of[0], of[2], of[1], of[3]};
      std::memcpy(to + d * kPageTokens + kQ8Quad * slot, four, kQ8Quad);
    }
    std::memcpy(to + kQ8LevelBytes + 2 * slot, &values.scale, 2);
  }
  void write_value(int block, int slot, const Q8Values& values) const {
    uint8_t* to = v + static_cast<ptrdiff_t>(block) * kQ8BlockBytes;
    uint8_t* levels = to + slot / kQ8Quad * (kQ8Quad * kQ8Dims) + q8_place(slot % kQ8Quad);
    for (int d = 0; d < kQ8Dims; d++) levels[kQ8Quad * d] = values.levels[d];
    std::memcpy(to + kQ8LevelBytes + 2 * slot, &values.scale, 2);
  }
  void write(int slot, const float* key, const float* value) const {
    for (int block = 0; block < blocks; block++) {
      write_key(block, slot, round_q8(key + block * kQ8Dims));
      write_value(block, slot, round_q8(value + block * kQ8Dims));
    }
  }

  Q8Values key(int block, int slot) const {
    const uint8_t* from = k + static_cast<ptrdiff_t>(block) * kQ8BlockBytes;
    Q8Values values;
    for (int d = 0; d < kQ8Dims; d++) values.levels[d] = from[d / kQ8Quad * kQ8Quad * kPageTokens + kQ8Quad * slot + q8_place(d % kQ8Quad)];
    std::memcpy(&values.scale, from + kQ8LevelBytes + 2 * slot, 2);
    return values;
  }
  Q8Values value(int block, int slot) const {
    const uint8_t* from = v + static_cast<ptrdiff_t>(block) * kQ8BlockBytes;
    const uint8_t* levels = from + slot / kQ8Quad * (kQ8Quad * kQ8Dims) + q8_place(slot % kQ8Quad);
    Q8Values values;
    for (int d = 0; d < kQ8Dims; d++) values.levels[d] = levels[kQ8Quad * d];
    std::memcpy(&values.scale, from + kQ8LevelBytes + 2 * slot, 2);
    return values;
  }
  void read(int slot, float* key_out, float* value_out) const {
    for (int block = 0; block < blocks; block++) {
      const Q8Values keys = key(block, slot), values = value(block, slot);
      for (int d = 0; d < kQ8Dims; d++) {
        key_out[block * kQ8Dims + d] = keys.value(d);
        value_out[block * kQ8Dims + d] = values.value(d);
      }
    }
  }
  void copy_token(int slot, const Q8Page& to, int to_slot) const {
    for (int block = 0; block < blocks; block++) {
      to.write_key(block, to_slot, key(block, slot));
      to.write_value(block, to_slot, value(block, slot));
    }
  }
};

}  // namespace
}  // namespace kvasir
