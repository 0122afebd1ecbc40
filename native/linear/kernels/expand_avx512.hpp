// Expansion of packed blocks (order `pairs`) to bf16 vectors of (16 columns, 2 inputs), for dot products and AMX tiles.
#pragma once
#include "linear/kernels/planes_avx512.hpp"

namespace kvasir {
namespace {

/** Blocks between prefetch and use: wide types need fewer for the same time. */
constexpr int prefetch_blocks(TensorType type) { return is_quantised(type) ? kPrefetchBlocks : 4; }

/**
 * Rounds two vectors to bf16: `low` becomes columns 0-7, `high` columns 8-15. The order of the nibbles avoids
 * interleaving.
 */
KVASIR_INLINE __m512i round_pair(__m512 low, __m512 high) { return reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low)); }

/** One value for each of 16 columns, doubled: lane j of `low` holds column j / 2, lane j of `high` column 8 + j / 2. */
struct Doubled {
  __m512 low, high;

  KVASIR_INLINE void load(const uint8_t* f16) {
    const __m512i first = _mm512_set_epi32(7, 7, 6, 6, 5, 5, 4, 4, 3, 3, 2, 2, 1, 1, 0, 0);
    __m512 values = load_f16(f16);
    low = _mm512_permutexvar_ps(first, values);
    high = _mm512_permutexvar_ps(_mm512_add_epi32(first, _mm512_set1_epi32(8)), values);
  }
};

/**
 * Two nibbles of every lane as floats without a conversion: the byte is moved to bits 8-15, and the nibbles become
 * mantissa bits of 2^15 + q (low nibble, bits 8-11) and 2^11 + q (high nibble, bits 12-15). Scales have 11 bits, so
 * fma(2^15 + q, d, -d (2^15 + z)) is d (q - z) exactly.
 */
struct NibblePair {
  static constexpr float kLow = 32768, kHigh = 2048;
  __m512 low, high;

  /** Byte `byte` of every lane. */
  KVASIR_INLINE NibblePair(__m512i lanes, int byte) {
    const __m512i low_bits = _mm512_set1_epi32(0x0f00), high_bits = _mm512_set1_epi32(0xf000);
    __m512i placed = byte == 0 ? _mm512_slli_epi32(lanes, 8) : byte == 1 ? lanes : _mm512_srli_epi32(lanes, 8 * (byte - 1));
    constexpr int kAndOr = 0xea;  // (a & b) | c
    low = _mm512_castsi512_ps(_mm512_ternarylogic_epi32(placed, low_bits, _mm512_castps_si512(_mm512_set1_ps(kLow)), kAndOr));
    high = _mm512_castsi512_ps(_mm512_ternarylogic_epi32(placed, high_bits, _mm512_castps_si512(_mm512_set1_ps(kHigh)), kAndOr));
  }
};

/**
 * Call begin() at a block (with the header of its super-block), then pair(i) for i = 0..15 in order: inputs 2 i and 2 i
 * + 1 of 16 columns.
 */
template <TensorType TYPE>
struct PairExpander {
  using Lanes = PlanesAvx512;
  static constexpr Planes kPlanes = planes_of(TYPE);
  const uint8_t *block, *header;
  __m512i codes;
  __m512 scale, offset;

  KVASIR_INLINE void begin(const uint8_t* b, const uint8_t* h) {
    block = b;
    header = h;
  }
  KVASIR_INLINE __m512i pair(int i) {
    const __m512i interleave = _mm512_cvtepu8_epi16(_mm256_set_epi64x(0x1f0f1e0e1d0d1c0c, 0x1b0b1a0a19091808, 0x1707160615051404, 0x1303120211011000));
    if (2 * i % kPlanes.part == 0) {
      const PlaneScale<TYPE, Lanes> part(block, header, 2 * i / kPlanes.part, 0);
      scale = part.scale;
      offset = part.offset();
    }
    if (i % 2 == 0) codes = plane_codes<TYPE, Lanes>(block, i / 2, 0);
    __m512 first = _mm512_fmadd_ps(Lanes::code(codes, 2 * (i % 2)), scale, offset);
    __m512 second = _mm512_fmadd_ps(Lanes::code(codes, 2 * (i % 2) + 1), scale, offset);
    return _mm512_permutexvar_epi16(interleave, reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(second, first)));
  }
};

template <>
struct PairExpander<TensorType::q4_0> {
  const uint8_t* block;
  Doubled scale;
  __m512 low_offset, high_offset;
  __m512i nibbles;

  KVASIR_INLINE void begin(const uint8_t* b, const uint8_t*) {
    block = b;
    scale.load(b + 256);
    low_offset = _mm512_mul_ps(scale.low, _mm512_set1_ps(-(NibblePair::kLow + 8)));
    high_offset = _mm512_mul_ps(scale.high, _mm512_set1_ps(-(NibblePair::kHigh + 8)));
  }
  KVASIR_INLINE __m512i pair(int i) {
    if (i % 4 == 0) nibbles = load512(block + 16 * i);
    NibblePair q(nibbles, i % 4);
    return round_pair(_mm512_fmadd_ps(q.low, scale.low, low_offset), _mm512_fmadd_ps(q.high, scale.high, high_offset));
  }
};

template <>
struct PairExpander<TensorType::q4_1> {
  const uint8_t* block;
  Doubled scale, minimum;
  __m512i nibbles;

  KVASIR_INLINE void begin(const uint8_t* b, const uint8_t*) {
    block = b;
    scale.load(b + 256);
    minimum.load(b + 288);
  }
  KVASIR_INLINE __m512i pair(int i) {
    const __m512 value = _mm512_set_ps(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    if (i % 4 == 0) nibbles = load512(block + 16 * i);
    __m512 low = _mm512_permutexvar_ps(_mm512_srli_epi32(nibbles, 8 * (i % 4)), value);
    __m512 high = _mm512_permutexvar_ps(_mm512_srli_epi32(nibbles, 8 * (i % 4) + 4), value);
    return round_pair(_mm512_fmadd_ps(scale.low, low, minimum.low), _mm512_fmadd_ps(scale.high, high, minimum.high));
  }
};
template <>
struct PairExpander<TensorType::q8_0> {
  const uint8_t* block;
  Doubled scale;

  KVASIR_INLINE void begin(const uint8_t* b, const uint8_t*) {
    block = b;
    scale.load(b + 512);
  }
  static KVASIR_INLINE __m512 widen(const uint8_t* p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
  }
  KVASIR_INLINE __m512i pair(int i) {
    return round_pair(_mm512_mul_ps(widen(block + 32 * i), scale.low), _mm512_mul_ps(widen(block + 32 * i + 16), scale.high));
  }
};

template <>
struct PairExpander<TensorType::f16> {
  const uint8_t* block;

  KVASIR_INLINE void begin(const uint8_t* b, const uint8_t*) { block = b; }
  KVASIR_INLINE __m512i pair(int i) { return round_pair(load_f16(block + 64 * i), load_f16(block + 64 * i + 32)); }
};

template <>
struct PairExpander<TensorType::bf16> {
  const uint8_t* block;

  KVASIR_INLINE void begin(const uint8_t* b, const uint8_t*) { block = b; }
  KVASIR_INLINE __m512i pair(int i) { return load512(block + 64 * i); }
};

template <>
struct PairExpander<TensorType::f32> {
  const uint8_t* block;

  KVASIR_INLINE void begin(const uint8_t* b, const uint8_t*) { block = b; }
  KVASIR_INLINE __m512i pair(int i) { return round_pair(_mm512_loadu_ps(block + 128 * i), _mm512_loadu_ps(block + 128 * i + 64)); }
};

}  // namespace
}  // namespace kvasir
