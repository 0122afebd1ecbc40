// Decodes stored weight rows of each type to numbers.
import { bf16ToNumber, f16ToNumber } from '../../util/floats.ts';
import { decodeValues, type QuantisedType, quantisedLayouts } from '../../util/quantised-blocks.ts';
import type { WeightType } from '../backend.ts';

/** Inputs that are rounded together in the forms of integers. */
export const blockElements = 32;

/** Bytes of `elements` stored weights (whole blocks). */
export function storedBytes(type: WeightType, elements: number): number {
  if (!isQuantised(type)) return elements * (type === 'f32' ? 4 : 2);
  const layout = quantisedLayouts[type];
  return (elements / layout.blockElements) * layout.blockBytes;
}

export function isQuantised(type: WeightType): type is QuantisedType {
  return Object.hasOwn(quantisedLayouts, type);
}

/** Stored weights as float32, exactly; `bytes` holds just them. */
export function decodeWeights(type: WeightType, bytes: Uint8Array, out: Float32Array): void {
  const elements = out.length;
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  if (isQuantised(type)) decodeValues(type, bytes, out);
  else if (type === 'f32') for (let i = 0; i < elements; i++) out[i] = view.getFloat32(i * 4, true);
  else if (type === 'f16') for (let i = 0; i < elements; i++) out[i] = f16ToNumber(view.getUint16(i * 2, true));
  else for (let i = 0; i < elements; i++) out[i] = bf16ToNumber(view.getUint16(i * 2, true));
}
