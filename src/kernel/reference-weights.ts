// Stored weight rows as numbers: what each type's bytes mean.
import { bf16ToNumber, f16ToNumber } from '../util/floats.ts';
import type { WeightType } from './backend.ts';

/** Weights of a block that share a scale. */
export const blockElements = 32;

/** Bytes of `elements` stored weights (whole blocks). */
export function storedBytes(type: WeightType, elements: number): number {
  const blocks = elements / blockElements;
  switch (type) {
    case 'f32':
      return elements * 4;
    case 'f16':
    case 'bf16':
      return elements * 2;
    case 'q4_0':
      return blocks * 18;
    case 'q4_1':
      return blocks * 20;
    case 'q8_0':
      return blocks * 34;
  }
}

export function isQuantised(type: WeightType): boolean {
  return type === 'q4_0' || type === 'q4_1' || type === 'q8_0';
}

/** Quantised weights: value = scale x level + minimum, scale and minimum per block of 32. */
export interface QuantisedBlocks {
  readonly levels: Int8Array;
  readonly scales: Float32Array;
  readonly minimums: Float32Array;
}

/** Decodes whole blocks; `bytes` holds exactly `elements` weights. */
export function decodeBlocks(type: WeightType, bytes: Uint8Array, elements: number): QuantisedBlocks {
  const blocks = elements / blockElements;
  const decoded = {
    levels: new Int8Array(elements),
    scales: new Float32Array(blocks),
    minimums: new Float32Array(blocks),
  };
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const blockBytes = storedBytes(type, blockElements);
  for (let block = 0; block < blocks; block++) {
    const at = block * blockBytes;
    decoded.scales[block] = f16ToNumber(view.getUint16(at, true));
    if (type === 'q4_1') decoded.minimums[block] = f16ToNumber(view.getUint16(at + 2, true));
    const levels = decoded.levels.subarray(block * blockElements, (block + 1) * blockElements);
    if (type === 'q8_0') levels.set(new Int8Array(bytes.buffer, bytes.byteOffset + at + 2, blockElements));
    else decodeNibbles(bytes.subarray(at + blockBytes - 16, at + blockBytes), type === 'q4_0' ? 8 : 0, levels);
  }
  return decoded;
}

/** Low nibbles are the first half of a block, high nibbles the second. */
function decodeNibbles(bytes: Uint8Array, zero: number, levels: Int8Array): void {
  for (let i = 0; i < 16; i++) {
    const pair = bytes[i];
    levels[i] = (pair & 15) - zero;
    levels[i + 16] = (pair >>> 4) - zero;
  }
}

/** `elements` stored weights as float32, exactly; `bytes` holds just them. */
export function decodeWeights(type: WeightType, bytes: Uint8Array, out: Float32Array): void {
  const elements = out.length;
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  if (type === 'f32') for (let i = 0; i < elements; i++) out[i] = view.getFloat32(i * 4, true);
  else if (type === 'f16') for (let i = 0; i < elements; i++) out[i] = f16ToNumber(view.getUint16(i * 2, true));
  else if (type === 'bf16') for (let i = 0; i < elements; i++) out[i] = bf16ToNumber(view.getUint16(i * 2, true));
  else {
    const { levels, scales, minimums } = decodeBlocks(type, bytes, elements);
    for (let i = 0; i < elements; i++) {
      const block = i >>> 5;
      out[i] = scales[block] * levels[i] + minimums[block];
    }
  }
}
