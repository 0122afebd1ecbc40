// Decoding of quantised blocks: levels, and a scale and a minimum for each group of levels. Value = scale x level +
// minimum.
import { f16ToNumber } from './floats.ts';

export type QuantisedType = 'q4_0' | 'q4_1' | 'q5_0' | 'q5_1' | 'q8_0' | 'q2_k' | 'q3_k' | 'q4_k' | 'q5_k' | 'q6_k';

export interface QuantisedLayout {
  /** Elements that are stored together. */
  readonly blockElements: 32 | 256;
  readonly blockBytes: number;
  /** Elements that share a scale. */
  readonly groupElements: 16 | 32;
}

export const quantisedLayouts: Readonly<Record<QuantisedType, QuantisedLayout>> = {
  q4_0: { blockElements: 32, blockBytes: 18, groupElements: 32 },
  q4_1: { blockElements: 32, blockBytes: 20, groupElements: 32 },
  q5_0: { blockElements: 32, blockBytes: 22, groupElements: 32 },
  q5_1: { blockElements: 32, blockBytes: 24, groupElements: 32 },
  q8_0: { blockElements: 32, blockBytes: 34, groupElements: 32 },
  q2_k: { blockElements: 256, blockBytes: 84, groupElements: 16 },
  q3_k: { blockElements: 256, blockBytes: 110, groupElements: 16 },
  q4_k: { blockElements: 256, blockBytes: 144, groupElements: 32 },
  q5_k: { blockElements: 256, blockBytes: 176, groupElements: 32 },
  q6_k: { blockElements: 256, blockBytes: 210, groupElements: 16 },
};

/** Levels of whole blocks; scales and minima one for each group, exact as float32. */
export interface QuantisedBlocks {
  readonly levels: Int8Array;
  readonly scales: Float32Array;
  /** undefined: the type has none. */
  readonly minimums: Float32Array | undefined;
}

/** Decodes the whole blocks that `bytes` holds. */
export function decodeBlocks(type: QuantisedType, bytes: Uint8Array): QuantisedBlocks {
  const { blockElements, blockBytes, groupElements } = quantisedLayouts[type];
  const { minimums: minima, decode } = decoders[type];
  const blocks = bytes.byteLength / blockBytes;
  const groups = blockElements / groupElements;
  const scales = new Float32Array(blocks * groups);
  const minimums = minima ? new Float32Array(blocks * groups) : undefined;
  const levels = new Int8Array(blocks * blockElements);
  for (let block = 0; block < blocks; block++) {
    decode({
      bytes: bytes.subarray(block * blockBytes, (block + 1) * blockBytes),
      levels: levels.subarray(block * blockElements, (block + 1) * blockElements),
      scales: scales.subarray(block * groups, (block + 1) * groups),
      minimums: minimums?.subarray(block * groups, (block + 1) * groups) ?? noMinimums,
    });
  }
  return { levels, scales, minimums };
}

/** Values of whole blocks, rounded once: scales and products are exact. */
export function decodeValues(type: QuantisedType, bytes: Uint8Array, values: Float32Array): void {
  const { levels, scales, minimums } = decodeBlocks(type, bytes);
  const shift = quantisedLayouts[type].groupElements === 16 ? 4 : 5;
  for (let i = 0; i < values.length; i++) {
    const product = (scales[i >> shift] as number) * (levels[i] as number);
    values[i] = minimums === undefined ? product : product + (minimums[i >> shift] as number);
  }
}

/** One block: its bytes, and where its levels, scales and minima go. */
interface Block {
  readonly bytes: Uint8Array;
  readonly levels: Int8Array;
  readonly scales: Float32Array;
  readonly minimums: Float32Array;
}

const noMinimums = new Float32Array(0);

const decoders: Readonly<Record<QuantisedType, { minimums: boolean; decode: (block: Block) => void }>> = {
  q4_0: { minimums: false, decode: (block) => decodeNibbles(block, 8) },
  q4_1: { minimums: true, decode: (block) => decodeNibbles(block, 0) },
  q5_0: { minimums: false, decode: (block) => decodeFiveBits(block, 16) },
  q5_1: { minimums: true, decode: (block) => decodeFiveBits(block, 0) },
  q8_0: { minimums: false, decode: decodeBytes },
  q2_k: { minimums: true, decode: decodeQ2K },
  q3_k: { minimums: false, decode: decodeQ3K },
  q4_k: { minimums: true, decode: decodeQ4K },
  q5_k: { minimums: true, decode: decodeQ5K },
  q6_k: { minimums: false, decode: decodeQ6K },
};

const f16At = (bytes: Uint8Array, at: number): number =>
  f16ToNumber((bytes[at] as number) | ((bytes[at + 1] as number) << 8));
const bits = (bytes: Uint8Array, at: number, shift: number, mask: number): number =>
  ((bytes[at] as number) >> shift) & mask;

/** Scale f16, perhaps minimum f16, 16 bytes: elements 0..15 in low nibbles, 16..31 in high ones. */
function decodeNibbles({ bytes, levels, scales, minimums }: Block, zero: number): void {
  scales[0] = f16At(bytes, 0);
  if (minimums.length > 0) minimums[0] = f16At(bytes, 2);
  const first = bytes.length - 16;
  for (let k = 0; k < 32; k++) levels[k] = bits(bytes, first + (k & 15), (k >> 4) * 4, 15) - zero;
}

/** Like the 4-bit types, with 32 fifth bits before the nibbles. */
function decodeFiveBits(block: Block, zero: number): void {
  const { bytes, levels } = block;
  decodeNibbles(block, zero);
  const first = bytes.length - 20;
  for (let k = 0; k < 32; k++) levels[k] = (levels[k] as number) + (bits(bytes, first + (k >> 3), k & 7, 1) << 4);
}

/** Scale f16, then 32 signed bytes. */
function decodeBytes({ bytes, levels, scales }: Block): void {
  scales[0] = f16At(bytes, 0);
  levels.set(bytes.subarray(2));
}

/** 16 bytes of 4-bit scale and 4-bit minimum, 64 bytes of 2-bit levels, d f16, dmin f16. */
function decodeQ2K({ bytes, levels, scales, minimums }: Block): void {
  const d = f16At(bytes, 80);
  const dmin = f16At(bytes, 82);
  for (let group = 0; group < 16; group++) {
    scales[group] = d * bits(bytes, group, 0, 15);
    minimums[group] = -(dmin * bits(bytes, group, 4, 15));
  }
  for (let k = 0; k < 256; k++) levels[k] = twoBits(bytes, 16, k);
}

/**
 * 32 bytes of third bits, 64 bytes of 2-bit levels, 12 bytes of 6-bit scales, d f16. A level counts from -4, a scale
 * from -32.
 */
function decodeQ3K({ bytes, levels, scales }: Block): void {
  const d = f16At(bytes, 108);
  for (let group = 0; group < 16; group++) {
    const low = bits(bytes, 96 + (group & 7), (group >> 3) * 4, 15);
    const high = bits(bytes, 104 + (group & 3), (group >> 2) * 2, 3);
    scales[group] = d * ((low | (high << 4)) - 32);
  }
  for (let k = 0; k < 256; k++) levels[k] = (twoBits(bytes, 32, k) | (bits(bytes, k & 31, k >> 5, 1) << 2)) - 4;
}

/** Level k of 256: each byte holds elements 32 apart. */
function twoBits(bytes: Uint8Array, first: number, k: number): number {
  return bits(bytes, first + 32 * (k >> 7) + (k & 31), 2 * ((k >> 5) & 3), 3);
}

/** d f16, dmin f16, 12 bytes of 6-bit scales and minima, 128 bytes of nibbles. */
function decodeQ4K(block: Block): void {
  const { bytes, levels } = block;
  decodeScalesAndMinima(block);
  for (let k = 0; k < 256; k++) levels[k] = blockNibble(bytes, 16, k);
}

/** As Q4_K, with 32 bytes of fifth bits before the nibbles. */
function decodeQ5K(block: Block): void {
  const { bytes, levels } = block;
  decodeScalesAndMinima(block);
  for (let k = 0; k < 256; k++) levels[k] = blockNibble(bytes, 48, k) | (bits(bytes, 16 + (k & 31), k >> 5, 1) << 4);
}

/** Level k of 256: each byte holds elements 32 apart. */
function blockNibble(bytes: Uint8Array, first: number, k: number): number {
  return bits(bytes, first + 32 * (k >> 6) + (k & 31), 4 * ((k >> 5) & 1), 15);
}

function decodeScalesAndMinima({ bytes, scales, minimums }: Block): void {
  const d = f16At(bytes, 0);
  const dmin = f16At(bytes, 2);
  for (let group = 0; group < 8; group++) {
    const at = 4 + group;
    const scale = group < 4 ? bits(bytes, at, 0, 63) : bits(bytes, at + 4, 0, 15) | (bits(bytes, at - 4, 6, 3) << 4);
    const minimum = group < 4 ? bits(bytes, at + 4, 0, 63) : bits(bytes, at + 4, 4, 15) | (bits(bytes, at, 6, 3) << 4);
    scales[group] = d * scale;
    minimums[group] = -(dmin * minimum);
  }
}

/** 128 bytes of low nibbles, 64 bytes of high bit pairs, 16 signed bytes of scales, d f16. A level counts from -32. */
function decodeQ6K({ bytes, levels, scales }: Block): void {
  const d = f16At(bytes, 208);
  for (let group = 0; group < 16; group++) scales[group] = d * (((bytes[192 + group] as number) << 24) >> 24);
  for (let k = 0; k < 256; k++) {
    const low = bits(bytes, 64 * (k >> 7) + (k & 63), 4 * ((k >> 6) & 1), 15);
    levels[k] = (low | (twoBits(bytes, 128, k) << 4)) - 32;
  }
}
