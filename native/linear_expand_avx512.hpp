// Expansion of packed blocks (order `pairs`) to bf16 vectors of (16 columns, 2 inputs), for dot products and for AMX tiles.
#pragma once
#include "linear_avx512.hpp"

namespace kvasir {
namespace {

/** Bytes between use and prefetch: wide types need fewer blocks for the same time. */
constexpr size_t prefetch_ahead(TensorType type) {
  return is_quantised(type) ? kPrefetchBlocks * Segment::block_bytes(type) : 4 * Segment::block_bytes(type);
}

/** Rounds two vectors to bf16; `low` becomes columns 0-7, `high` columns 8-15: no interleaving, thanks to the order of the nibbles. */
KVASIR_INLINE __m512i round_pair(__m512 low, __m512 high) { return reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low)); }

/** One value for each of 16 columns, doubled: lane j of `low` holds column j / 2, of `high` column 8 + j / 2. */
struct Doubled {
  __m512 low, high;

  KVASIR_INLINE void load(const uint8_t* f16) {
    const __m512i first = _mm512_set_epi32(7, 7, 6, 6, 5, 5, 4, 4, 3, 3, 2, 2, 1, 1, 0, 0);
    __m512 values = load_f16(f16);
    low = _mm512_permutexvar_ps(first, values);
    high = _mm512_permutexvar_ps(_mm512_add_epi32(first, _mm512_set1_epi32(8)), values);
  }
};

/** begin() at a block, then pair(i) for i = 0..15 in order: inputs 2 i and 2 i + 1 of 16 columns. */
template <TensorType TYPE>
struct PairExpander;

template <>
struct PairExpander<TensorType::q4_0> {
  const uint8_t* block;
  Doubled scale;
  __m512i nibbles;

  KVASIR_INLINE void begin(const uint8_t* b) {
    block = b;
    scale.load(b + 256);
  }
  KVASIR_INLINE __m512i pair(int i) {
    // vpermps looks at the low four bits of a lane only: a shift is all the unpacking there is.
    const __m512 value = _mm512_set_ps(7, 6, 5, 4, 3, 2, 1, 0, -1, -2, -3, -4, -5, -6, -7, -8);
    if (i % 4 == 0) nibbles = load512(block + 16 * i);
    __m512 low = _mm512_permutexvar_ps(_mm512_srli_epi32(nibbles, 8 * (i % 4)), value);
    __m512 high = _mm512_permutexvar_ps(_mm512_srli_epi32(nibbles, 8 * (i % 4) + 4), value);
    return round_pair(_mm512_mul_ps(low, scale.low), _mm512_mul_ps(high, scale.high));
  }
};

template <>
struct PairExpander<TensorType::q4_1> {
  const uint8_t* block;
  Doubled scale, minimum;
  __m512i nibbles;

  KVASIR_INLINE void begin(const uint8_t* b) {
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

  KVASIR_INLINE void begin(const uint8_t* b) {
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

  KVASIR_INLINE void begin(const uint8_t* b) { block = b; }
  KVASIR_INLINE __m512i pair(int i) { return round_pair(load_f16(block + 64 * i), load_f16(block + 64 * i + 32)); }
};

template <>
struct PairExpander<TensorType::bf16> {
  const uint8_t* block;

  KVASIR_INLINE void begin(const uint8_t* b) { block = b; }
  KVASIR_INLINE __m512i pair(int i) { return load512(block + 64 * i); }
};

template <>
struct PairExpander<TensorType::f32> {
  const uint8_t* block;

  KVASIR_INLINE void begin(const uint8_t* b) { block = b; }
  KVASIR_INLINE __m512i pair(int i) { return round_pair(_mm512_loadu_ps(block + 128 * i), _mm512_loadu_ps(block + 128 * i + 64)); }
};

}  // namespace
}  // namespace kvasir
