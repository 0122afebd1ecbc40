// `--inputs auto`, the default: the form by instruction set and weights, and the reason in words.
import { expect, test } from 'vitest';
import { modelOptionsSchema, readOptions } from '../../../src/cli/options/options.ts';
import { chooseInputs } from '../../../src/engine/forms.ts';
import { nativeIsas } from '../../../src/kernel/codes.ts';

const inputsOf = (flags: Record<string, unknown>) => readOptions(modelOptionsSchema, flags).inputs;

test('auto is the default, and a given form stays without a reason', () => {
  expect(inputsOf({})).toBe('auto');
  expect(inputsOf({ inputs: 'int8' })).toBe('int8');
  expect(chooseInputs('int8', 'avx512', ['q4_0'])).toEqual({ form: 'int8', reason: undefined });
});

test('auto takes i16 where words multiply fast, and bf16 on tiles', () => {
  const forms = nativeIsas.map((isa) => chooseInputs('auto', isa, ['f32', 'q4_0']));
  expect(forms.map(({ form }) => form)).toEqual(['i16', 'i16', 'i16', 'bf16']);
  expect(forms[2].reason).toBe('the most accurate form that is fast on AVX-512 VNNI');
  expect(forms[3].reason).toBe('the fastest form of AMX tiles');
});

test('auto takes bf16 for a model without quantised weights', () => {
  for (const isa of nativeIsas)
    expect(chooseInputs('auto', isa, ['bf16', 'f32'])).toEqual({
      form: 'bf16',
      reason: 'the weights are not quantised',
    });
});
