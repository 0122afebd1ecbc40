// AMX tile operations, and a bit-exact emulation of them (with KVASIR_AMX_EMULATED) for machines without AMX. Internal
// linkage: each file is compiled either for tiles or for their emulation.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace kvasir {

/** True if KVASIR_ISA=amx-emulated: kernels of Isa::amx then run their emulated copies. */
bool amx_emulated();

#if defined(KVASIR_AMX_EMULATED) || defined(__AMX_TILE__) || defined(__AMXTILE__)
namespace {

/** The operand of LDTILECFG. A tile has `rows` rows of `colsb` bytes. */
struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t colsb[16] = {};
  uint8_t rows[16] = {};

  void set(int tile, int row_count, int bytes) {
    rows[tile] = static_cast<uint8_t>(row_count);
    colsb[tile] = static_cast<uint16_t>(bytes);
  }
};
static_assert(sizeof(TileConfig) == 64, "layout of LDTILECFG");

#if defined(KVASIR_AMX_EMULATED)

struct EmulatedTiles {
  TileConfig config;
  uint8_t data[8][16][64];
};

inline EmulatedTiles& emulated_tiles() {
  static thread_local EmulatedTiles tiles;
  return tiles;
}

inline void tile_configure(const TileConfig& config) {
  EmulatedTiles& t = emulated_tiles();
  t.config = config;
  std::memset(t.data, 0, sizeof t.data);
}
inline void tile_release() { tile_configure(TileConfig()); }

template <int T>
inline void tile_zero() {
  std::memset(emulated_tiles().data[T], 0, sizeof emulated_tiles().data[T]);
}

template <int T>
inline void tile_load(const void* base, size_t stride) {
  EmulatedTiles& t = emulated_tiles();
  tile_zero<T>();
  for (int r = 0; r < t.config.rows[T]; r++) std::memcpy(t.data[T][r], static_cast<const uint8_t*>(base) + stride * static_cast<size_t>(r), t.config.colsb[T]);
}

template <int T>
inline void tile_store(void* base, size_t stride) {
  EmulatedTiles& t = emulated_tiles();
  for (int r = 0; r < t.config.rows[T]; r++) std::memcpy(static_cast<uint8_t*>(base) + stride * static_cast<size_t>(r), t.data[T][r], t.config.colsb[T]);
}

/** TDPBF16PS treats subnormal inputs and outputs as zero. */
inline float flush_subnormal(float x) {
  uint32_t u;
  std::memcpy(&u, &x, 4);
  if ((u & 0x7f800000u) == 0) u &= 0x80000000u;
  std::memcpy(&x, &u, 4);
  return x;
}

inline float tile_bf16(const uint8_t* p) {
  uint32_t u = 0;
  std::memcpy(reinterpret_cast<uint8_t*>(&u) + 2, p, 2);
  float x;
  std::memcpy(&x, &u, 4);
  return flush_subnormal(x);
}

/** Even and odd inputs form two chains from zero over a tile's pairs; their sum is added to the accumulator. */
template <int C, int A, int B>
inline void tile_dpbf16() {
  EmulatedTiles& t = emulated_tiles();
  for (int m = 0; m < t.config.rows[C]; m++) {
    for (int n = 0; n < t.config.colsb[C] / 4; n++) {
      float even = 0, odd = 0;
      for (int k = 0; k < t.config.colsb[A] / 4; k++) {
        even = flush_subnormal(__builtin_fmaf(tile_bf16(&t.data[A][m][4 * k]), tile_bf16(&t.data[B][k][4 * n]), even));
        odd = flush_subnormal(__builtin_fmaf(tile_bf16(&t.data[A][m][4 * k + 2]), tile_bf16(&t.data[B][k][4 * n + 2]), odd));
      }
      float acc;
      std::memcpy(&acc, &t.data[C][m][4 * n], 4);
      acc = flush_subnormal(flush_subnormal(acc) + flush_subnormal(even + odd));
      std::memcpy(&t.data[C][m][4 * n], &acc, 4);
    }
  }
}

/** Signed bytes times signed bytes; sums of four products are added to int32. */
template <int C, int A, int B>
inline void tile_dpbssd() {
  EmulatedTiles& t = emulated_tiles();
  for (int m = 0; m < t.config.rows[C]; m++) {
    for (int n = 0; n < t.config.colsb[C] / 4; n++) {
      int32_t acc;
      std::memcpy(&acc, &t.data[C][m][4 * n], 4);
      for (int k = 0; k < t.config.colsb[A]; k++) acc += static_cast<int8_t>(t.data[A][m][k]) * static_cast<int8_t>(t.data[B][k / 4][4 * n + k % 4]);
      std::memcpy(&t.data[C][m][4 * n], &acc, 4);
    }
  }
}

#else

inline void tile_configure(const TileConfig& config) {
  // The barrier keeps g++ 12 from dropping stores to a configuration on the stack.
  asm volatile("" ::"r"(&config) : "memory");
  asm volatile("ldtilecfg %0" ::"m"(config) : "memory");
}
inline void tile_release() { asm volatile("tilerelease" ::: "memory"); }

template <int T>
inline void tile_zero() {
  asm volatile("tilezero %%tmm%c0" ::"i"(T));
}

template <int T>
inline void tile_load(const void* base, size_t stride) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(base), "r"(stride), "i"(T) : "memory");
}

template <int T>
inline void tile_store(void* base, size_t stride) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(base), "r"(stride), "i"(T) : "memory");
}

template <int C, int A, int B>
inline void tile_dpbf16() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(C), "i"(A), "i"(B));
}

template <int C, int A, int B>
inline void tile_dpbssd() {
  asm volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(C), "i"(A), "i"(B));
}

#endif
}  // namespace
#endif

}  // namespace kvasir
