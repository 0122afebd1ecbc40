// Weight and input forms: what the user asks for, and what it means for one stored tensor or one linear layer.
import type { InputForm, KvType } from '../graph/program.ts';
import type { TensorInfo, TensorType } from '../weights/types.ts';
import { tensorLayouts } from '../weights/types.ts';

/** `native` keeps every tensor's stored values exactly; the others convert at load. */
export type WeightsForm = 'native' | 'q4' | 'q8' | 'bf16' | 'f32';

export const weightsForms: readonly WeightsForm[] = ['native', 'q4', 'q8', 'bf16', 'f32'];
export const inputForms: readonly InputForm[] = ['bf16', 'int8', 'f32'];

/**
 * Type that a stored matrix is packed as. `vocabulary`: embeddings and heads keep 8 bits under q4, since errors there reach every token.
 * What is stored in 5 bits or fewer (vocabulary: in 8.5) stays under q4: to convert it would lose and save nothing.
 */
export function packedType(info: TensorInfo, form: WeightsForm, vocabulary: boolean): TensorType {
  if (form === 'native') return info.type;
  if (form === 'bf16' || form === 'f32') return form;
  if (form === 'q4' && isQuantised(info.type) && bitsOf(info.type) <= (vocabulary ? 8.5 : 5)) return info.type;
  const wanted = form === 'q8' || vocabulary ? 'q8_0' : 'q4_0';
  const columns = info.shape.at(-1) ?? 1;
  return columns % tensorLayouts[wanted].blockElements === 0 ? wanted : 'bf16';
}

/** Stored bits of an element, its share of scales included. */
function bitsOf(type: TensorType): number {
  const { blockElements, blockBytes } = tensorLayouts[type];
  return (8 * blockBytes) / blockElements;
}

export function isQuantised(type: TensorType): boolean {
  return tensorLayouts[type].blockElements > 1;
}

/** int8 inputs serve layers whose segments are all quantised; a layer with a float segment takes bf16. */
export function layerInputs(form: InputForm, types: readonly TensorType[]): InputForm {
  return form === 'int8' && !types.every(isQuantised) ? 'bf16' : form;
}

export function kvTypeOf(form: InputForm): KvType {
  return form === 'f32' ? 'f32' : 'bf16';
}
