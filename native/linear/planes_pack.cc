// Packing stored rows of the five-bit and K types (GGUF byte layouts) into planes, and widening packed rows back to
// float32.
#include "linear/planes_pack.hpp"

#include "simd/float_bits.hpp"

namespace kvasir {
namespace {

uint16_t load_u16(const uint8_t* p) {
  uint16_t value;
  std::memcpy(&value, p, 2);
  return value;
}

int bits(int byte, int shift, int count) { return (byte >> shift) & ((1 << count) - 1); }

// Code k of a stored block. K types keep elements 32 apart in one byte, in halves of 128 (two bits) or runs of 64
// (nibbles).
int two_bits(const uint8_t* p, int k) { return bits(p[32 * (k / 128) + k % 32], 2 * (k / 32 % 4), 2); }
int one_bit(const uint8_t* p, int k) { return bits(p[k % 32], k / 32, 1); }
int nibble(const uint8_t* p, int k) { return bits(p[32 * (k / 64) + k % 32], 4 * (k / 32 % 2), 4); }

int stored_code(TensorType type, const uint8_t* p, int k) {
  switch (type) {
    case TensorType::q2_k: return two_bits(p + 16, k);
    case TensorType::q3_k: return two_bits(p + 32, k) | one_bit(p, k) << 2;
    case TensorType::q4_k: return nibble(p + 16, k);
    case TensorType::q5_k: return nibble(p + 48, k) | one_bit(p + 16, k) << 4;
    case TensorType::q6_k: return bits(p[64 * (k / 128) + k % 64], 4 * (k / 64 % 2), 4) | two_bits(p + 128, k) << 4;
    default: break;
  }
  if (type == TensorType::q5_1) p += 2;  // the minimum
  return bits(p[6 + k % 16], 4 * (k / 16), 4) | bits(p[2 + k / 8], k % 8, 1) << 4;
}

/** Scale and minimum of a part of a super-block, in units of d and dmin. */
struct PartScale {
  int scale, minimum;
};

PartScale stored_scale(TensorType type, const uint8_t* p, int part) {
  switch (type) {
    case TensorType::q2_k: return {bits(p[part], 0, 4), bits(p[part], 4, 4)};
    case TensorType::q3_k: return {(bits(p[96 + part % 8], 4 * (part / 8), 4) | bits(p[104 + part % 4], 2 * (part / 4), 2) << 4) - 32, 0};
    case TensorType::q6_k: return {static_cast<int8_t>(p[192 + part]), 0};
    default: break;
  }
  p += 4;  // q4_k, q5_k: d, dmin, then six-bit numbers; those of the last four parts are split
  if (part < 4) return {bits(p[part], 0, 6), bits(p[part + 4], 0, 6)};
  return {bits(p[part + 4], 0, 4) | bits(p[part - 4], 6, 2) << 4, bits(p[part + 4], 4, 4) | bits(p[part], 6, 2) << 4};
}

/** Offset of d in a stored super-block; dmin follows. */
size_t d_at(TensorType type) {
  switch (type) {
    case TensorType::q2_k: return 80;
    case TensorType::q3_k: return 108;
    case TensorType::q6_k: return 208;
    default: return 0;
  }
}

/** The byte of a plane of `count` bits with input k of a column, and the position of the bits in it. */
struct PlanePlace {
  size_t byte;
  int shift;
  PlanePlace(int count, int k, int column) {
    int group = k / 4, groups = 8 / count;
    byte = static_cast<size_t>(64 * (group / groups) + 4 * column + k % 4);
    shift = count * (group % groups);
  }
};

void put_code(const Planes& planes, uint8_t* block, int k, int column, int code) {
  PlanePlace low(planes.low_bits, k, column);
  block[low.byte] = static_cast<uint8_t>(block[low.byte] | bits(code, 0, planes.low_bits) << low.shift);
  if (planes.high_bits == 0) return;
  PlanePlace high(planes.high_bits, k, column);
  uint8_t& byte = block[64 * static_cast<size_t>(planes.low_bits) + high.byte];
  byte = static_cast<uint8_t>(byte | (code >> planes.low_bits) << high.shift);
}

int code_at(const Planes& planes, const uint8_t* block, int k, int column) {
  PlanePlace low(planes.low_bits, k, column);
  int code = bits(block[low.byte], low.shift, planes.low_bits);
  if (planes.high_bits == 0) return code;
  PlanePlace high(planes.high_bits, k, column);
  return code | bits(block[64 * static_cast<size_t>(planes.low_bits) + high.byte], high.shift, planes.high_bits) << planes.low_bits;
}

/** Block `b` of a panel. */
uint8_t* block_of(const Segment& s, uint8_t* panel, int b) {
  return panel + Segment::run_bytes(s.type, b - b % kSuperBlocks) + Segment::header_bytes(s.type) + s.block_bytes() * static_cast<size_t>(b % kSuperBlocks);
}

/** The header of block `b` of a panel. */
uint8_t* header_of(const Segment& s, uint8_t* panel, int b) { return panel + Segment::run_bytes(s.type, b - b % kSuperBlocks); }

void pack_scales(const Segment& s, uint8_t* header, uint8_t* block, int column, const uint8_t* stored, int block_of_super) {
  const Planes planes = planes_of(s.type);
  uint8_t* scales = block + planes.code_bytes();
  if (!planes.super) {
    std::memcpy(scales + 2 * column, stored, 2);
    if (planes.minima) std::memcpy(scales + planes.scale_bytes() + 2 * column, stored + 2, 2);
    return;
  }
  std::memcpy(header + 2 * column, stored + d_at(s.type), 2);
  if (planes.minima) std::memcpy(header + 2 * kPanel + 2 * column, stored + d_at(s.type) + 2, 2);
  for (int part = 0; part < planes.parts(); part++) {
    PartScale scale = stored_scale(s.type, stored, block_of_super * planes.parts() + part);
    scales[kPanel * part + column] = static_cast<uint8_t>(scale.scale);
    if (planes.minima) scales[planes.scale_bytes() + static_cast<size_t>(kPanel * part + column)] = static_cast<uint8_t>(scale.minimum);
  }
}

struct Scale {
  float scale, minimum;
};

/** Exact: a product of 11 and 8 bits. */
Scale scale_at(const Segment& s, const uint8_t* header, const uint8_t* block, int column, int part) {
  const Planes planes = planes_of(s.type);
  const uint8_t* scales = block + planes.code_bytes();
  const uint8_t* minima = scales + planes.scale_bytes();
  if (!planes.super) return {f16_to_float(load_u16(scales + 2 * column)), planes.minima ? f16_to_float(load_u16(minima + 2 * column)) : 0};
  int at = kPanel * part + column;
  float scale = f16_to_float(load_u16(header + 2 * column)) * static_cast<float>(static_cast<int8_t>(scales[at]));
  return {scale, planes.minima ? -(f16_to_float(load_u16(header + 2 * kPanel + 2 * column)) * static_cast<float>(minima[at])) : 0};
}

}  // namespace

size_t stored_plane_bytes(TensorType type) {
  switch (type) {
    case TensorType::q5_0: return 22;
    case TensorType::q5_1: return 24;
    case TensorType::q2_k: return 84;
    case TensorType::q3_k: return 110;
    case TensorType::q4_k: return 144;
    case TensorType::q5_k: return 176;
    default: return 210;
  }
}

void pack_planar_row(const Segment& s, int row, const uint8_t* stored) {
  const Planes planes = planes_of(s.type);
  uint8_t* panel = s.data + s.panel_bytes() * static_cast<size_t>(row / kPanel);
  const int blocks = stored_plane_inputs(s.type) / kBlock, column = row % kPanel;
  for (int b = 0; b < s.blocks; b++) {
    const uint8_t* from = stored + stored_plane_bytes(s.type) * static_cast<size_t>(b / blocks);
    uint8_t* block = block_of(s, panel, b);
    for (int k = 0; k < kBlock; k++) put_code(planes, block, k, column, stored_code(s.type, from, b % blocks * kBlock + k));
    pack_scales(s, header_of(s, panel, b), block, column, from, b % blocks);
  }
}

void unpack_planar_row(const Segment& s, int row, float* out) {
  const Planes planes = planes_of(s.type);
  uint8_t* panel = s.data + s.panel_bytes() * static_cast<size_t>(row / kPanel);
  const int column = row % kPanel;
  for (int b = 0; b < s.blocks; b++) {
    const uint8_t* block = block_of(s, panel, b);
    for (int k = 0; k < kBlock; k++) {
      Scale scale = scale_at(s, header_of(s, panel, b), block, column, k / planes.part);
      float product = scale.scale * static_cast<float>(code_at(planes, block, k, column) - planes.zero);  // exact
      *out++ = planes.minima ? product + scale.minimum : product;
    }
  }
}

}  // namespace kvasir
