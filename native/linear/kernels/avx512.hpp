// What the AVX-512 kernels of linear layers share. Internal linkage: include it only in files compiled for AVX-512.
#pragma once
#if defined(__GNUC__) && !defined(__clang__)
// g++ 12 warns about the undefined sources inside its own AVX-512 intrinsics.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>

#include "linear/kernels/tiles.hpp"

namespace kvasir {
namespace {

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

/** The existing columns of a panel. */
inline __mmask16 panel_mask(const Segment& s, int panel) {
  int columns = s.rows - panel * kPanel;
  return columns >= kPanel ? 0xffff : static_cast<__mmask16>((1u << columns) - 1);
}

/** Stores one row (16 columns) of a panel's results, plus bias. */
KVASIR_INLINE void store_row(const Product& p, int row, int panel, __mmask16 mask, __m512 value) {
  float* y = p.y + static_cast<size_t>(row) * p.ld + panel * kPanel;
  if (p.bias) value = _mm512_add_ps(value, _mm512_maskz_loadu_ps(mask, p.bias + panel * kPanel));
  if (mask == 0xffff) _mm512_storeu_ps(y, value);
  else _mm512_mask_storeu_ps(y, mask, value);
}

}  // namespace
}  // namespace kvasir
