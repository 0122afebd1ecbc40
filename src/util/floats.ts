// Narrow floating-point formats: rounding to bfloat16, widening of bfloat16 and binary16.

const bits = new Uint32Array(1);
const float = new Float32Array(bits.buffer);

/** Nearest bfloat16 (ties to even) as a float32 value; NaN stays NaN, overflow goes to infinity. */
export function roundToBf16(value: number): number {
  float[0] = value;
  const word = bits[0];
  if ((word & 0x7fffffff) > 0x7f800000) return Number.NaN;
  bits[0] = (word + 0x7fff + ((word >>> 16) & 1)) & 0xffff0000;
  return float[0];
}

/** Rounds in place. */
export function roundAllToBf16(values: Float32Array): void {
  const words = new Uint32Array(values.buffer, values.byteOffset, values.length);
  for (let i = 0; i < words.length; i++) {
    const word = words[i];
    words[i] = (word & 0x7fffffff) > 0x7f800000 ? word | 0x400000 : (word + 0x7fff + ((word >>> 16) & 1)) & 0xffff0000;
  }
}

export function bf16ToNumber(half: number): number {
  bits[0] = half << 16;
  return float[0];
}

/** IEEE binary16. */
export function f16ToNumber(half: number): number {
  const sign = half & 0x8000 ? -1 : 1;
  const exponent = (half >>> 10) & 0x1f;
  const fraction = half & 0x3ff;
  if (exponent === 0) return sign * fraction * 2 ** -24;
  if (exponent === 31) return fraction === 0 ? sign * Infinity : Number.NaN;
  return sign * (1 + fraction / 1024) * 2 ** (exponent - 15);
}

const double = new Float64Array(1);
const longs = new BigInt64Array(double.buffer);

/** a b + c for float32 values, rounded once to float32. */
export function fusedMultiplyAdd(a: number, b: number, c: number): number {
  const product = a * b; // exact
  const sum = product + c;
  const back = sum - product;
  const error = product - (sum - back) + (c - back);
  if (error === 0 || !Number.isFinite(error)) return Math.fround(sum);
  // An inexact sum is rounded to odd: then its rounding to float32 is that of the exact sum.
  double[0] = sum;
  if ((longs[0] & 1n) === 0n) longs[0] += sum > 0 === error > 0 ? 1n : -1n;
  return Math.fround(double[0]);
}

/** Nearest integer, ties to even. */
export function roundTiesToEven(value: number): number {
  const rounded = Math.round(value);
  return Math.abs(value % 1) === 0.5 && rounded % 2 !== 0 ? rounded - 1 : rounded;
}
