// Quantises float32 rows to stored blocks. `f32`, `f16`, `bf16`, `q4_0`, `q4_1` and `q8_0` round as ggml's
// reference quantisers do, so files have the bytes that other tools write.

import { type TensorType, tensorLayouts } from '../types.ts';
import { f32BitsToBf16, f32BitsToF16, toF16 } from './half.ts';
import { plainEncoder } from './quantise-k.ts';

/**
 * @param values whole blocks: a multiple of the type's blockElements
 * @param into receives the bytes if given
 * @returns stored bytes, block after block
 */
export function quantise(type: TensorType, values: Float32Array, into?: Uint8Array): Uint8Array {
  const { blockElements, blockBytes } = tensorLayouts[type];
  const blocks = values.length / blockElements;
  if (!Number.isInteger(blocks))
    throw new RangeError(
      `Cannot quantise to ${type}: ${values.length} values are not whole blocks of ${blockElements}`,
    );
  const byteLength = blocks * blockBytes;
  if (into !== undefined && into.byteLength < byteLength)
    throw new RangeError(`Cannot quantise to ${type}: ${byteLength} bytes into ${into.byteLength}`);
  const bytes = into?.subarray(0, byteLength) ?? new Uint8Array(byteLength);
  encoders[type](values, bytes);
  return bytes;
}

type Encoder = (values: Float32Array, bytes: Uint8Array) => void;

const encoders: Readonly<Record<TensorType, Encoder>> = {
  f32: (values, bytes) => bytes.set(new Uint8Array(values.buffer, values.byteOffset, values.byteLength)),
  f16: (values, bytes) => encodeHalves(values, bytes, f32BitsToF16),
  bf16: (values, bytes) => encodeHalves(values, bytes, f32BitsToBf16),
  q4_0: encodeQ40,
  q4_1: encodeQ41,
  q8_0: encodeQ80,
  q5_0: plainEncoder('q5_0'),
  q5_1: plainEncoder('q5_1'),
  q2_k: plainEncoder('q2_k'),
  q3_k: plainEncoder('q3_k'),
  q4_k: plainEncoder('q4_k'),
  q5_k: plainEncoder('q5_k'),
  q6_k: plainEncoder('q6_k'),
};

const fround = Math.fround;

function encodeHalves(values: Float32Array, bytes: Uint8Array, convert: (pattern: number) => number): void {
  const patterns = new Uint32Array(values.buffer, values.byteOffset, values.length);
  for (let index = 0; index < patterns.length; index++) putU16(bytes, index * 2, convert(patterns[index] as number));
}

function putU16(bytes: Uint8Array, at: number, value: number): void {
  bytes[at] = value & 0xff;
  bytes[at + 1] = value >> 8;
}

/** The value of largest magnitude (the first if several) becomes -8. */
function encodeQ40(values: Float32Array, bytes: Uint8Array): void {
  for (let block = 0, at = 0; block < values.length; block += 32, at += 18) {
    let largest = 0;
    for (let index = block; index < block + 32; index++) {
      const value = values[index] as number;
      if (Math.abs(value) > Math.abs(largest)) largest = value;
    }
    const scale = fround(largest / -8);
    const inverse = scale === 0 ? 0 : fround(1 / scale);
    putU16(bytes, at, toF16(scale));
    for (let index = 0; index < 16; index++) {
      // float64, as in ggml's Python quantiser: the result of the C code depends on the compiler's use of fused
      // multiply-add.
      const low = Math.min(15, (values[block + index] as number) * inverse + 8.5) & 15;
      const high = Math.min(15, (values[block + 16 + index] as number) * inverse + 8.5) & 15;
      bytes[at + 2 + index] = low | (high << 4);
    }
  }
}

/** Minimum and maximum become 0 and 15. */
function encodeQ41(values: Float32Array, bytes: Uint8Array): void {
  for (let block = 0, at = 0; block < values.length; block += 32, at += 20) {
    let least = Number.POSITIVE_INFINITY;
    let most = Number.NEGATIVE_INFINITY;
    for (let index = block; index < block + 32; index++) {
      const value = values[index] as number;
      if (value < least) least = value;
      if (value > most) most = value;
    }
    const scale = fround(fround(most - least) / 15);
    const inverse = scale === 0 ? 0 : fround(1 / scale);
    putU16(bytes, at, toF16(scale));
    putU16(bytes, at + 2, toF16(least));
    for (let index = 0; index < 16; index++) {
      const low = Math.min(15, fround(fround(fround((values[block + index] as number) - least) * inverse) + 0.5)) & 15;
      const high =
        Math.min(15, fround(fround(fround((values[block + 16 + index] as number) - least) * inverse) + 0.5)) & 15;
      bytes[at + 4 + index] = low | (high << 4);
    }
  }
}

/** The largest magnitude becomes 127; halves round away from zero. */
function encodeQ80(values: Float32Array, bytes: Uint8Array): void {
  for (let block = 0, at = 0; block < values.length; block += 32, at += 34) {
    let largest = 0;
    for (let index = block; index < block + 32; index++) largest = Math.max(largest, Math.abs(values[index] as number));
    const scale = fround(largest / 127);
    const inverse = scale === 0 ? 0 : fround(1 / scale);
    putU16(bytes, at, toF16(scale));
    for (let index = 0; index < 32; index++) {
      const scaled = fround((values[block + index] as number) * inverse);
      const magnitude = Math.floor(Math.abs(scaled) + 0.5);
      bytes[at + 2 + index] = scaled < 0 ? -magnitude : magnitude;
    }
  }
}
