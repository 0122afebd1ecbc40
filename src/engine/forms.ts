// Weight and input forms: the user's choice, and the resulting type of one stored tensor or one linear layer.
import type { InputForm } from '../graph/program.ts';
import type { Isa } from '../kernel/backend.ts';
import type { KvType } from '../util/kv-type.ts';
import type { ModelFiles, TensorInfo, TensorType } from '../weights/types.ts';
import { tensorLayouts } from '../weights/types.ts';

/** `native` keeps the stored values of every tensor exactly; other forms convert at load. */
export type WeightsForm = 'native' | 'q4' | 'q8' | 'bf16' | 'f32';

export const weightsForms: readonly WeightsForm[] = ['native', 'q4', 'q8', 'bf16', 'f32'];
export const inputForms: readonly InputForm[] = ['bf16', 'i16', 'int8', 'f32'];
/** `auto`: by the instruction set and the model. */
export type InputChoice = InputForm | 'auto';
export const inputChoices: readonly InputChoice[] = ['auto', ...inputForms];

/**
 * Packed type of a stored matrix. `vocabulary`: embeddings and heads keep 8 bits under q4, since errors there affect
 * every token. Types of 5 bits or fewer (vocabulary: of 8.5) stay as stored under q4: conversion would lose accuracy
 * and save nothing.
 */
export function packedType(info: TensorInfo, form: WeightsForm, vocabulary: boolean): TensorType {
  if (form === 'native') return info.type;
  if (form === 'bf16' || form === 'f32') return form;
  if (form === 'q4' && isQuantised(info.type) && bitsOf(info.type) <= (vocabulary ? 8.5 : 5)) return info.type;
  const wanted = form === 'q8' || vocabulary ? 'q8_0' : 'q4_0';
  const columns = info.shape.at(-1) ?? 1;
  return columns % tensorLayouts[wanted].blockElements === 0 ? wanted : 'bf16';
}

/** Stored bits of an element, including its share of scales. */
function bitsOf(type: TensorType): number {
  const { blockElements, blockBytes } = tensorLayouts[type];
  return (8 * blockBytes) / blockElements;
}

export function isQuantised(type: TensorType): boolean {
  return tensorLayouts[type].blockElements > 1;
}

/** int8 and i16 inputs serve layers with quantised segments only; a layer with a float segment takes bf16. */
export function layerInputs(form: InputForm, types: readonly TensorType[]): InputForm {
  return (form === 'int8' || form === 'i16') && !types.every(isQuantised) ? 'bf16' : form;
}

export interface ChosenInputs {
  readonly form: InputForm;
  /** In words; undefined: the form was given. */
  readonly reason: string | undefined;
}

/**
 * Resolves `auto` to the most accurate form among the fast ones: i16 rounds more finely than bf16, and takes less time in
 * decode everywhere but on tiles. The choice depends on the instruction set and the weights alone, so equal machines
 * choose equally.
 * @param types packed types of the matrices
 */
export function chooseInputs(choice: InputChoice, isa: Isa, types: readonly TensorType[]): ChosenInputs {
  if (choice !== 'auto') return { form: choice, reason: undefined };
  return types.some(isQuantised) ? quantisedChoices[isa] : { form: 'bf16', reason: 'the weights are not quantised' };
}

/** Packed types of all matrices of a model. */
export function matrixTypes(files: Pick<ModelFiles, 'tensors'>, weights: WeightsForm): readonly TensorType[] {
  const matrices = [...files.tensors()].filter(({ shape }) => shape.length > 1);
  return [...new Set(matrices.map((info) => packedType(info, weights, false)))];
}

const accurate = 'the most accurate form that is fast';
const quantisedChoices: Readonly<Record<Isa, ChosenInputs>> = {
  portable: { form: 'i16', reason: `${accurate} in portable kernels` },
  avx2: { form: 'i16', reason: `${accurate} on AVX2` },
  avx512: { form: 'i16', reason: `${accurate} on AVX-512 VNNI` },
  amx: { form: 'bf16', reason: 'the fastest form of AMX tiles' },
  reference: { form: 'bf16', reason: 'the form of the TypeScript reference' },
};

/** Types of K and V that a user may choose. */
export const kvTypeChoices = ['bf16', 'q8'] as const satisfies readonly KvType[];

/** The forms in which a model is loaded. */
export interface ModelForms {
  readonly weights: WeightsForm;
  readonly inputs: InputForm;
  /** Undefined: f32 beside f32 inputs, else bf16. */
  readonly kvType?: KvType | undefined;
}

/** How a user chooses the form of K and V. */
export interface KvChoice {
  readonly inputs: InputChoice;
  readonly kvType?: KvType | undefined;
}

export function kvTypeOf({ inputs, kvType }: KvChoice): KvType {
  return kvType ?? (inputs === 'f32' ? 'f32' : 'bf16');
}
