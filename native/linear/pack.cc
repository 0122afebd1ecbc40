// Packing stored rows (GGUF byte layouts) into panels, and widening packed rows back to float32.
#include "linear/layout.hpp"
#include "linear/planes_pack.hpp"
#include "simd/float_bits.hpp"

namespace kvasir {
namespace {

template <class T>
T load(const uint8_t* p) {
  T value;
  std::memcpy(&value, p, sizeof value);
  return value;
}

template <class T>
void store(uint8_t* p, T value) {
  std::memcpy(p, &value, sizeof value);
}

/** Stored bytes of one block of 32: f16 scale, f16 minimum (q4_1), values. */
constexpr size_t stored_block_bytes(TensorType type) {
  return type == TensorType::q4_0 ? 18 : type == TensorType::q4_1 ? 20 : 34;
}

constexpr size_t element_bytes(TensorType type) { return type == TensorType::f32 ? 4 : 2; }

/** Byte k of a stored q4 block holds inputs k (low nibble) and k + 16. */
int stored_nibble(const uint8_t* values, int k) { return k < 16 ? values[k] & 15 : values[k - 16] >> 4; }

void pack_nibbles_quads(uint8_t* block, int column, const uint8_t* values) {
  for (int j = 0; j < 4; j++) {
    uint32_t word = 0;
    for (int e = 0; e < 4; e++) {
      word |= static_cast<uint32_t>(stored_nibble(values, 8 * j + e)) << (8 * e);
      word |= static_cast<uint32_t>(stored_nibble(values, 8 * j + 4 + e)) << (8 * e + 4);
    }
    store(block + 64 * j + 4 * column, word);
  }
}

void pack_nibbles_pairs(uint8_t* block, int column, const uint8_t* values) {
  int high = 4 * (column / 8);
  for (int z = 0; z < 4; z++) {
    uint8_t* place = block + 64 * z + 8 * (column % 8);
    uint64_t word = load<uint64_t>(place);
    for (int s = 0; s < 4; s++) {
      for (int h = 0; h < 2; h++) word |= static_cast<uint64_t>(stored_nibble(values, 8 * z + 2 * s + h)) << (32 * h + 8 * s + high);
    }
    store(place, word);
  }
}

void unpack_nibbles(Order order, const uint8_t* block, int column, float* q) {
  for (int z = 0; z < 4; z++) {
    if (order == Order::quads) {
      uint32_t word = load<uint32_t>(block + 64 * z + 4 * column);
      for (int n = 0; n < 8; n++) q[8 * z + 4 * (n & 1) + n / 2] = static_cast<float>((word >> (4 * n)) & 15);
    } else {
      uint64_t word = load<uint64_t>(block + 64 * z + 8 * (column % 8)) >> (4 * (column / 8));
      for (int n = 0; n < 8; n++) q[8 * z + 2 * (n & 3) + n / 4] = static_cast<float>((word >> (8 * n)) & 15);
    }
  }
}

/** Index of element (k, column) of a block, in elements. */
int element_index(Order order, int k, int column) {
  switch (order) {
    case Order::quads: return (k / 4) * 64 + column * 4 + k % 4;
    case Order::pairs: return (k / 2) * 32 + column * 2 + k % 2;
    default: return k * 16 + column;
  }
}

void pack_quantised_block(const Segment& s, uint8_t* block, int column, const uint8_t* stored) {
  uint8_t* scales = block + (s.type == TensorType::q8_0 ? 512 : 256);
  std::memcpy(scales + 2 * column, stored, 2);
  if (s.type == TensorType::q8_0) {
    uint8_t flip = s.order == Order::quads ? 0x80 : 0;
    for (int k = 0; k < kBlock; k++) block[element_index(s.order, k, column)] = stored[2 + k] ^ flip;
    return;
  }
  if (s.type == TensorType::q4_1) std::memcpy(scales + 32 + 2 * column, stored + 2, 2);
  const uint8_t* values = stored + (s.type == TensorType::q4_1 ? 4 : 2);
  if (s.order == Order::quads) pack_nibbles_quads(block, column, values);
  else pack_nibbles_pairs(block, column, values);
}

template <class T>
void pack_float_block(const Segment& s, uint8_t* block, int column, const uint8_t* stored, int count) {
  const size_t step = s.order == Order::pairs ? 2 : 1;  // adjacent elements of a column
  uint8_t* place = block + sizeof(T) * step * static_cast<size_t>(column);
  for (int k = 0; k < count; k++) {
    size_t element = s.order == Order::pairs ? static_cast<size_t>(k / 2 * 32 + k % 2) : static_cast<size_t>(k) * kPanel;
    std::memcpy(place + sizeof(T) * element, stored + sizeof(T) * static_cast<size_t>(k), sizeof(T));
  }
}

void unpack_quantised_block(const Segment& s, const uint8_t* block, int column, float* out) {
  const uint8_t* scales = block + (s.type == TensorType::q8_0 ? 512 : 256);
  float d = f16_to_float(load<uint16_t>(scales + 2 * column));
  if (s.type == TensorType::q8_0) {
    uint8_t flip = s.order == Order::quads ? 0x80 : 0;
    for (int k = 0; k < kBlock; k++) out[k] = d * static_cast<float>(static_cast<int8_t>(block[element_index(s.order, k, column)] ^ flip));
    return;
  }
  float q[kBlock];
  unpack_nibbles(s.order, block, column, q);
  if (s.type == TensorType::q4_0) {
    for (int k = 0; k < kBlock; k++) out[k] = d * (q[k] - 8.0f);
    return;
  }
  float m = f16_to_float(load<uint16_t>(scales + 32 + 2 * column));
  for (int k = 0; k < kBlock; k++) out[k] = d * q[k] + m;  // the product is exact, so the bits equal the kernels' fma
}

float widen(TensorType type, const uint8_t* p) {
  if (type == TensorType::f32) return load<float>(p);
  uint16_t h = load<uint16_t>(p);
  return type == TensorType::bf16 ? bf16_to_float(h) : f16_to_float(h);
}

}  // namespace

size_t stored_row_bytes(TensorType type, int columns) {
  if (is_planar(type)) return stored_plane_bytes(type) * static_cast<size_t>(columns / stored_plane_inputs(type));
  if (is_quantised(type)) return stored_block_bytes(type) * static_cast<size_t>(columns / kBlock);
  return element_bytes(type) * static_cast<size_t>(columns);
}

void pack_row(const Segment& s, int row, const uint8_t* stored) {
  if (is_planar(s.type)) return pack_planar_row(s, row, stored);
  uint8_t* block = s.data + s.panel_bytes() * static_cast<size_t>(row / kPanel);
  size_t step = stored_row_bytes(s.type, kBlock);
  for (int b = 0; b < s.blocks; b++, block += s.block_bytes(), stored += step) {
    int left = s.columns - b * kBlock;
    if (is_quantised(s.type)) pack_quantised_block(s, block, row % kPanel, stored);
    else if (s.type == TensorType::f32) pack_float_block<uint32_t>(s, block, row % kPanel, stored, left < kBlock ? left : kBlock);
    else pack_float_block<uint16_t>(s, block, row % kPanel, stored, left < kBlock ? left : kBlock);
  }
}

void unpack_row(const Segment& s, int row, float* out) {
  if (is_planar(s.type)) return unpack_planar_row(s, row, out);
  const uint8_t* block = s.data + s.panel_bytes() * static_cast<size_t>(row / kPanel);
  int column = row % kPanel;
  for (int b = 0; b < s.blocks; b++, block += s.block_bytes(), out += kBlock) {
    if (is_quantised(s.type)) {
      unpack_quantised_block(s, block, column, out);
      continue;
    }
    int left = s.columns - b * kBlock;
    for (int k = 0; k < kBlock && k < left; k++) out[k] = widen(s.type, block + element_bytes(s.type) * static_cast<size_t>(element_index(s.order, k, column)));
  }
}

}  // namespace kvasir
