// Stored bytes of any tensor type to float32: the reference for a tensor's values.
import { decodeValues, type QuantisedType } from '../../util/quantised-blocks.ts';
import { type TensorType, tensorLayouts } from '../types.ts';
import { f16Table } from './half.ts';

/**
 * Exact values of whole blocks.
 * @param bytes stored bytes; their count must be a multiple of the type's blockBytes
 * @param into receives the values if given; must hold at least as many elements as the bytes
 */
export function dequantise(type: TensorType, bytes: Uint8Array, into?: Float32Array): Float32Array {
  const { blockElements, blockBytes } = tensorLayouts[type];
  const blocks = bytes.byteLength / blockBytes;
  if (!Number.isInteger(blocks))
    throw new RangeError(`Cannot dequantise ${type}: ${bytes.byteLength} bytes are not whole blocks of ${blockBytes}`);
  const elements = blocks * blockElements;
  if (into !== undefined && into.length < elements)
    throw new RangeError(`Cannot dequantise ${type}: ${elements} values into ${into.length}`);
  const values = into?.subarray(0, elements) ?? new Float32Array(elements);
  decoders[type](bytes, values);
  return values;
}

type Decoder = (bytes: Uint8Array, values: Float32Array) => void;

const decoders: Readonly<Record<TensorType, Decoder>> = {
  f32: (bytes, values) => new Uint8Array(values.buffer, values.byteOffset, values.byteLength).set(bytes),
  f16: decodeF16,
  bf16: decodeBf16,
  q4_0: decodeQ40,
  q4_1: decodeQ41,
  q8_0: decodeQ80,
  q5_0: blockDecoder('q5_0'),
  q5_1: blockDecoder('q5_1'),
  q2_k: blockDecoder('q2_k'),
  q3_k: blockDecoder('q3_k'),
  q4_k: blockDecoder('q4_k'),
  q5_k: blockDecoder('q5_k'),
  q6_k: blockDecoder('q6_k'),
};

function blockDecoder(type: QuantisedType): Decoder {
  return (bytes, values) => decodeValues(type, bytes, values);
}

function patternsOf(values: Float32Array): Uint32Array {
  return new Uint32Array(values.buffer, values.byteOffset, values.length);
}

function u16(bytes: Uint8Array, at: number): number {
  return (bytes[at] as number) | ((bytes[at + 1] as number) << 8);
}

function decodeF16(bytes: Uint8Array, values: Float32Array): void {
  // Bit patterns are copied, not numbers, so a NaN keeps its payload.
  const table = patternsOf(f16Table());
  const patterns = patternsOf(values);
  for (let index = 0; index < patterns.length; index++) patterns[index] = table[u16(bytes, index * 2)] as number;
}

function decodeBf16(bytes: Uint8Array, values: Float32Array): void {
  const patterns = patternsOf(values);
  for (let index = 0; index < patterns.length; index++) patterns[index] = u16(bytes, index * 2) << 16;
}

/**
 * Block: scale f16, then 16 bytes: elements 0..15 in low nibbles, 16..31 in high ones. Value = (nibble - 8) × scale.
 */
function decodeQ40(bytes: Uint8Array, values: Float32Array): void {
  const half = f16Table();
  for (let block = 0, at = 0; block < values.length; block += 32, at += 18) {
    const scale = half[u16(bytes, at)] as number;
    for (let index = 0; index < 16; index++) {
      const pair = bytes[at + 2 + index] as number;
      values[block + index] = ((pair & 15) - 8) * scale;
      values[block + 16 + index] = ((pair >> 4) - 8) * scale;
    }
  }
}

/**
 * Block: scale f16, minimum f16, nibbles as in q4_0. Value = nibble × scale + minimum; product and sum each round to
 * float32.
 */
function decodeQ41(bytes: Uint8Array, values: Float32Array): void {
  const half = f16Table();
  for (let block = 0, at = 0; block < values.length; block += 32, at += 20) {
    const scale = half[u16(bytes, at)] as number;
    const minimum = half[u16(bytes, at + 2)] as number;
    for (let index = 0; index < 16; index++) {
      const pair = bytes[at + 4 + index] as number;
      // 4 bits times 11 bits is exact: only the sum rounds, with or without a fused multiply-add.
      values[block + index] = (pair & 15) * scale + minimum;
      values[block + 16 + index] = (pair >> 4) * scale + minimum;
    }
  }
}

/** Block: scale f16, then 32 signed bytes. Value = byte × scale. */
function decodeQ80(bytes: Uint8Array, values: Float32Array): void {
  const half = f16Table();
  for (let block = 0, at = 0; block < values.length; block += 32, at += 34) {
    const scale = half[u16(bytes, at)] as number;
    for (let index = 0; index < 32; index++)
      values[block + index] = (((bytes[at + 2 + index] as number) << 24) >> 24) * scale;
  }
}
