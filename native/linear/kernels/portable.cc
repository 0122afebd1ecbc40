// Linear kernels in plain C++: every form, any machine. The order of operations is that of the vector kernels of the
// same form.
#if defined(__aarch64__)
#include <arm_neon.h>
#endif

#include "linear/kernels/chain.hpp"
#include "linear/integer/int8_planes.hpp"
#include "linear/kernels/planes_portable.hpp"

namespace kvasir {
namespace {

/** Four lanes of compiler vectors. */
struct Portable {
  typedef float Float __attribute__((vector_size(16)));
  typedef int32_t Int __attribute__((vector_size(16)));
  typedef uint16_t Halves __attribute__((vector_size(8)));
  using Planes = PlanesPortable;
  static constexpr int kLanes = 4;
  static constexpr int kTileRows = 3;
  static constexpr int kDirectPanels = 1;

  template <class T>
  static KVASIR_INLINE T load_as(const void* p) {
    T v;
    std::memcpy(&v, p, sizeof v);
    return v;
  }
  static KVASIR_INLINE Float zero() { return Float{}; }
  static KVASIR_INLINE Float load(const float* p) { return load_as<Float>(p); }
  static KVASIR_INLINE void store(float* p, Float v) { std::memcpy(p, &v, sizeof v); }
  static KVASIR_INLINE Float broadcast(float x) { return Float{x, x, x, x}; }
  static KVASIR_INLINE Float mul(Float a, Float b) { return a * b; }
  /** Rounds once if the machine has a fast fma, else twice. */
  static KVASIR_INLINE Float fma(Float a, Float b, Float c) {
#if defined(__aarch64__)
    return vfmaq_f32(c, a, b);
#else
    return a * b + c;
#endif
  }
  static KVASIR_INLINE Int widen(const uint8_t* p) { return __builtin_convertvector(load_as<Halves>(p), Int); }
  /** As f16_to_float. */
  static KVASIR_INLINE Float load_f16(const uint8_t* p) {
    Int h = widen(p);
    Int magnitude = (h & 0x7fff) << 13;
    Int special = magnitude >= 0x0f800000;
    Int finite = (Int)((Float)magnitude * broadcast(0x1p112f));
    Int quiet = (magnitude > 0x0f800000) & 0x400000;
    return (Float)(((h & 0x8000) << 16) | (special & (0x7f800000 | magnitude | quiet)) | (~special & finite));
  }
  static KVASIR_INLINE Float load_bf16(const uint8_t* p) { return (Float)(widen(p) << 16); }
  static KVASIR_INLINE Int load_int(const uint8_t* p) { return load_as<Int>(p); }
  static KVASIR_INLINE Int bits(Int a, int32_t mask) { return a & mask; }
  template <int SHIFT>
  static KVASIR_INLINE Int shift_down(Int a) {
    return (a >> SHIFT) & static_cast<int32_t>((1u << (32 - SHIFT)) - 1);
  }
  static KVASIR_INLINE Float to_float(Int a) { return __builtin_convertvector(a, Float); }
};

using Float = Portable::Float;
constexpr int kVectors = kPanel / Portable::kLanes;
constexpr int kRows = Portable::kTileRows;

/** Results of a tile between chunks. */
using Results = float[kRows][kPanel];

/** acc = sum x (d x scale) + acc; q4_1: then acc = minimum x scaled_sum + acc. */
template <TensorType TYPE>
KVASIR_INLINE void add_scaled(float* acc, const Float (&sum)[kVectors], const uint8_t* block, const Int8Block& x) {
  const uint8_t* scales = block + QuadsOf<TYPE>::kScales;
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; v++) {
    const int lane = v * Portable::kLanes;
    Float value = Portable::fma(sum[v], Portable::load_f16(scales + 2 * lane) * x.scale, Portable::load(acc + lane));
    if constexpr (TYPE == TensorType::q4_1) value = Portable::fma(Portable::load_f16(scales + 2 * kPanel + 2 * lane), Portable::broadcast(x.scaled_sum), value);
    Portable::store(acc + lane, value);
  }
}

/**
 * MT rows over a chunk. Sums of a block's products are integers below 2^24, which float32 holds exactly in any order.
 */
template <TensorType TYPE, int MT>
void multiply_levels(const float (*levels)[kPanel], const uint8_t* block, int blocks, const uint8_t* input, size_t row_bytes, Results& acc) {
  for (int b = 0; b < blocks; b++, block += Segment::block_bytes(TYPE), input += sizeof(Int8Block)) {
    const Int8Block* x[MT];
    float values[MT][kBlock];
    for (int m = 0; m < MT; m++) {
      x[m] = reinterpret_cast<const Int8Block*>(input + static_cast<size_t>(m) * row_bytes);
      for (int k = 0; k < kBlock; k++) values[m][k] = x[m]->values[k];
    }
    Float sum[MT][kVectors] = {};
    for (int k = 0; k < kBlock; k++, levels++) {
#pragma GCC unroll 4
      for (int m = 0; m < MT; m++) {
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; v++) sum[m][v] = Portable::fma(Portable::broadcast(values[m][k]), Portable::load(*levels + v * Portable::kLanes), sum[m][v]);
      }
    }
#pragma GCC unroll 4
    for (int m = 0; m < MT; m++) add_scaled<TYPE>(acc[m], sum[m], block, *x[m]);
  }
}

/** One panel and all rows: levels are widened once per chunk. */
template <TensorType TYPE>
void int8_panel(const Segment& s, const Product& p, int panel, const Share& share) {
  using Chunk = Chain<Portable>::Chunk;
  Chunk chunk;
  const uint8_t* first = s.data + s.panel_bytes() * static_cast<size_t>(panel);
  const int left = s.rows - panel * kPanel;
  const size_t columns = static_cast<size_t>(left < kPanel ? left : kPanel);
  for (int b = 0; b < s.blocks; b += Chunk::kBlocks) {
    const int blocks = s.blocks - b < Chunk::kBlocks ? s.blocks - b : Chunk::kBlocks;
    const uint8_t* block = first + Segment::block_bytes(TYPE) * static_cast<size_t>(b);
    Chain<Portable>::expand<TYPE, true>(block, blocks, chunk.weights);
    for_tiles<kRows>(share.row, share.row_end, [&](int row, int rows) {
      Results acc = {};
      const uint8_t* x = p.input + p.row_bytes * static_cast<size_t>(row) + sizeof(Int8Block) * static_cast<size_t>(b);
      const float* y = p.y + static_cast<size_t>(row) * p.ld + panel * kPanel;
      for (int m = 0; b > 0 && m < rows; m++) std::memcpy(acc[m], y + static_cast<size_t>(m) * p.ld, sizeof(float) * columns);
      if (rows == 3) multiply_levels<TYPE, 3>(chunk.weights, block, blocks, x, p.row_bytes, acc);
      else if (rows == 2) multiply_levels<TYPE, 2>(chunk.weights, block, blocks, x, p.row_bytes, acc);
      else multiply_levels<TYPE, 1>(chunk.weights, block, blocks, x, p.row_bytes, acc);
      for (int m = 0; m < rows; m++) Chain<Portable>::store_results(s, p, row + m, panel, 1, acc[m], b + blocks == s.blocks);
    });
  }
}

}  // namespace

void linear_chain_portable(const Segment& s, const Product& p, const Share& share) { Chain<Portable>::run(s, p, share); }

void linear_int8_planes_portable(const Segment& s, const Product& p, const Share& share) { run_planes<PlanesPortable>(s, p, share); }

void linear_int8_portable(const Segment& s, const Product& p, const Share& share) {
  if (is_planar(s.type)) return linear_int8_planes_portable(s, p, share);
  for (int panel = share.panel; panel < share.panel_end; panel++) {
    switch (s.type) {
      case TensorType::q4_0: int8_panel<TensorType::q4_0>(s, p, panel, share); break;
      case TensorType::q4_1: int8_panel<TensorType::q4_1>(s, p, panel, share); break;
      default: int8_panel<TensorType::q8_0>(s, p, panel, share);
    }
  }
}

}  // namespace kvasir
