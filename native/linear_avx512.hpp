// What the AVX-512 kernels of linear layers share. Internal linkage: never include it in a file built for less.
#pragma once
#if defined(__GNUC__) && !defined(__clang__)
// g++ 12 takes the undefined sources inside its own AVX-512 intrinsics for mistakes of ours.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>

#include "linear_kernels.hpp"

#define KVASIR_INLINE inline __attribute__((always_inline))

namespace kvasir {
namespace {

constexpr int kPrefetchBlocks = 16;  // ahead of use; found by measurement

template <int BYTES>
KVASIR_INLINE void prefetch(const uint8_t* p) {
  for (int i = 0; i < BYTES; i += 64) _mm_prefetch(reinterpret_cast<const char*>(p + i), _MM_HINT_T0);
}

KVASIR_INLINE __m512i load512(const void* p) { return _mm512_loadu_si512(p); }
KVASIR_INLINE __m512 load_f16(const uint8_t* p) { return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))); }

template <class T>
KVASIR_INLINE T load_scalar(const uint8_t* p) {
  T value;
  __builtin_memcpy(&value, p, sizeof value);
  return value;
}
KVASIR_INLINE __m512i broadcast_i32(const uint8_t* p) { return _mm512_set1_epi32(load_scalar<int32_t>(p)); }
KVASIR_INLINE __m512 broadcast_f32(const uint8_t* p) { return _mm512_set1_ps(load_scalar<float>(p)); }

/**
 * Pointers to rows of an input, a stride apart, by one address register for every third row: address modes reach the two between,
 * so that a tile of twelve rows does not run out of registers.
 */
template <int MT>
struct RowPointers {
  const uint8_t* third[(MT + 2) / 3];
  size_t stride;

  KVASIR_INLINE RowPointers(const uint8_t* first, size_t row_bytes) : stride(row_bytes) {
#pragma GCC unroll 8
    for (int i = 0; i < (MT + 2) / 3; i++) third[i] = first + 3 * static_cast<size_t>(i) * row_bytes;
  }
  KVASIR_INLINE const uint8_t* row(int m) const { return third[m / 3] + static_cast<size_t>(m % 3) * stride; }
  KVASIR_INLINE void advance(size_t bytes) {
#pragma GCC unroll 8
    for (int i = 0; i < (MT + 2) / 3; i++) third[i] += bytes;
  }
};

/** Columns of a panel that exist. */
inline __mmask16 panel_mask(const Segment& s, int panel) {
  int columns = s.rows - panel * kPanel;
  return columns >= kPanel ? 0xffff : static_cast<__mmask16>((1u << columns) - 1);
}

/** Stores one row of a panel's results, plus bias. */
KVASIR_INLINE void store_row(const Product& p, int row, int panel, __mmask16 mask, __m512 value) {
  float* y = p.y + static_cast<size_t>(row) * p.ld + panel * kPanel;
  if (p.bias) value = _mm512_add_ps(value, _mm512_maskz_loadu_ps(mask, p.bias + panel * kPanel));
  if (mask == 0xffff) _mm512_storeu_ps(y, value);
  else _mm512_mask_storeu_ps(y, mask, value);
}

/** Calls body(row, integral constant of rows) for tiles that cut [row, end) into nearly equal parts of at most MAX rows. */
template <int MAX, class F>
inline void for_row_tiles(int row, int end, F&& body) {
  int tiles = (end - row + MAX - 1) / MAX;
  for (; tiles > 0; tiles--) {
    int rows = (end - row + tiles - 1) / tiles;
    body(row, rows);
    row += rows;
  }
}

}  // namespace
}  // namespace kvasir
