// Codes of enums between TypeScript and C++; C++ declares them in native/base/types.hpp.
import type { InputForm } from '../graph/program.ts';
import type { KvType } from '../util/kv-type.ts';
import type { Activation } from '../util/model-config.ts';
import type { WeightType } from './backend.ts';

export const inputFormCodes = { f32: 0, bf16: 1, int8: 2, i16: 3 } as const satisfies Record<InputForm, number>;
export const kvTypeCodes = { bf16: 0, f32: 1, q8: 2 } as const satisfies Record<KvType, number>;
export const normStyleCodes = { rms: 0, layer: 1 } as const;
export const activationCodes = { silu: 0, gelu: 1, gelu_tanh: 2, relu: 3 } as const satisfies Record<
  Activation,
  number
>;
export const weightTypeCodes = {
  f32: 0,
  f16: 1,
  bf16: 2,
  q4_0: 3,
  q4_1: 4,
  q8_0: 5,
  q5_0: 6,
  q5_1: 7,
  q2_k: 8,
  q3_k: 9,
  q4_k: 10,
  q5_k: 11,
  q6_k: 12,
} as const satisfies Record<WeightType, number>;

/** Instruction sets in ascending order: a machine that supports one supports those before it. */
export const nativeIsas = ['portable', 'avx2', 'avx512', 'amx'] as const;
export type NativeIsa = (typeof nativeIsas)[number];
