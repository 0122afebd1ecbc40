// Linear kernels in plain C++: every form, any machine. The order of operations is that of the vector kernels of the same form.
#include "linear_chain.hpp"

namespace kvasir {
namespace {

struct Scalar {
  using Float = float;
  using Int = int32_t;
  static constexpr int kLanes = 1;
  static constexpr int kTileRows = 4;
  static constexpr int kWidePanels = 1;

  static Float zero() { return 0; }
  static Float load(const float* p) { return *p; }
  static void store(float* p, Float v) { *p = v; }
  static Float broadcast(float x) { return x; }
  static Float mul(Float a, Float b) { return a * b; }
  static Float fma(Float a, Float b, Float c) { return std::fma(a, b, c); }
  static uint16_t half(const uint8_t* p) {
    uint16_t h;
    std::memcpy(&h, p, 2);
    return h;
  }
  static Float load_f16(const uint8_t* p) { return f16_to_float(half(p)); }
  static Float load_bf16(const uint8_t* p) { return bf16_to_float(half(p)); }
  static Float round_bf16(Float x) { return bf16_to_float(float_to_bf16(x)); }
  static Int nibble(const uint8_t* p, int shift) { return (p[shift / 8] >> (shift % 8)) & 15; }
  static Int byte(const uint8_t* p, int shift) { return p[shift / 8]; }
  static Int add(Int a, int b) { return a + b; }
  static Float to_float(Int a) { return static_cast<float>(a); }
};

/** Weight (k, column) of a block as stored for byte products: unsigned, offset by 8 (q4_0) or 128 (q8_0). */
int unsigned_weight(TensorType type, const uint8_t* block, int k, int column) {
  if (type == TensorType::q8_0) return block[64 * (k / 4) + 4 * column + k % 4];
  return (block[64 * (k / 8) + 4 * column + k % 4] >> (4 * (k / 4 % 2))) & 15;
}

float scale_at(const uint8_t* scales, int column) { return Scalar::load_f16(scales + 2 * column); }

float element(const Segment& s, const Int8Block* x, int panel, int column) {
  const uint8_t* block = s.data + s.panel_bytes() * static_cast<size_t>(panel);
  const int scales = s.type == TensorType::q8_0 ? 512 : 256;
  float acc = 0;
  for (int b = 0; b < s.blocks; b++, block += s.block_bytes()) {
    int sum = s.type == TensorType::q4_0 ? x[b].minus8 : s.type == TensorType::q8_0 ? x[b].minus128 : 0;
    for (int k = 0; k < kBlock; k++) sum += unsigned_weight(s.type, block, k, column) * x[b].values[k];
    acc = std::fma(static_cast<float>(sum), scale_at(block + scales, column) * x[b].scale, acc);
    if (s.type == TensorType::q4_1) acc = std::fma(scale_at(block + scales + 32, column), x[b].scaled_sum, acc);
  }
  return acc;
}

}  // namespace

void linear_f32_portable(const Segment& s, const Product& p, const Share& share) { Chain<Scalar, false>::run(s, p, share); }
void linear_bf16_portable(const Segment& s, const Product& p, const Share& share) { Chain<Scalar, true>::run(s, p, share); }

void linear_int8_portable(const Segment& s, const Product& p, const Share& share) {
  for (int row = share.row; row < share.row_end; row++) {
    const auto* x = reinterpret_cast<const Int8Block*>(p.input + p.row_bytes * static_cast<size_t>(row));
    float* y = p.y + static_cast<size_t>(row) * p.ld;
    for (int n = share.panel * kPanel; n < share.panel_end * kPanel && n < s.rows; n++) {
      float value = element(s, x, n / kPanel, n % kPanel);
      y[n] = p.bias ? value + p.bias[n] : value;
    }
  }
}

}  // namespace kvasir
