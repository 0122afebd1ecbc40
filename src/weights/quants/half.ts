// Exact conversions between float32 and the two 16-bit formats, on bit patterns.

const float = new Float32Array(1);
const bits = new Uint32Array(float.buffer);

/** float32 bits of a binary16 value: exact, subnormals, infinities and NaN payloads included. */
export function f16ToF32Bits(half: number): number {
  const sign = (half & 0x8000) << 16;
  const exponent = (half >> 10) & 0x1f;
  const fraction = half & 0x3ff;
  if (exponent === 0x1f) return (sign | 0x7f80_0000 | (fraction << 13)) >>> 0;
  if (exponent !== 0) return (sign | ((exponent + 112) << 23) | (fraction << 13)) >>> 0;
  float[0] = fraction * 2 ** -24;
  return ((bits[0] as number) | sign) >>> 0;
}

let table: Float32Array | undefined;

/** All 65,536 binary16 values as float32, built at first use. */
export function f16Table(): Float32Array {
  if (table === undefined) {
    table = new Float32Array(65_536);
    const patterns = new Uint32Array(table.buffer);
    for (let half = 0; half < 65_536; half++) patterns[half] = f16ToF32Bits(half);
  }
  return table;
}

/** Nearest binary16 of float32 bits, ties to even; NaN stays a quiet NaN. */
export function f32BitsToF16(pattern: number): number {
  const sign = (pattern >>> 16) & 0x8000;
  const magnitude = pattern & 0x7fff_ffff;
  if (magnitude > 0x7f80_0000) return sign | 0x7e00 | ((magnitude >>> 13) & 0x3ff);
  // Values from 65,520 on (halfway to 2^16) round to infinity.
  if (magnitude >= 0x477f_f000) return sign | 0x7c00;
  // Normal numbers, from 2^-14 on: rebias the exponent and round away 13 bits. A carry increments the exponent
  // correctly.
  if (magnitude >= 0x3880_0000) return sign | ((magnitude - 0x3800_0000 + 0xfff + ((magnitude >>> 13) & 1)) >>> 13);
  // Values up to 2^-25 (halfway to the smallest subnormal) round to zero.
  if (magnitude <= 0x3300_0000) return sign;
  const shift = 126 - (magnitude >>> 23);
  const fraction = (magnitude & 0x7f_ffff) | 0x80_0000;
  const kept = fraction >>> shift;
  const rest = fraction & ((1 << shift) - 1);
  const half = 1 << (shift - 1);
  return sign | (kept + (rest > half || (rest === half && (kept & 1) === 1) ? 1 : 0));
}

/** Nearest bfloat16 of float32 bits, ties to even; NaN stays a quiet NaN. */
export function f32BitsToBf16(pattern: number): number {
  if ((pattern & 0x7fff_ffff) > 0x7f80_0000) return ((pattern >>> 16) | 0x40) & 0xffff;
  return ((pattern + 0x7fff + ((pattern >>> 16) & 1)) >>> 16) & 0xffff;
}

/** float32 rounded to the nearest binary16, as its 16 bits. */
export function toF16(value: number): number {
  float[0] = value;
  return f32BitsToF16(bits[0] as number);
}
