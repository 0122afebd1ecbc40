// `--inputs auto` resolves to the form of the instruction set before anything else reads the option.
import { expect, test } from 'vitest';
import { modelOptionsSchema, readOptions } from '../../../src/cli/options/options.ts';
import { autoInputs } from '../../../src/engine/forms.ts';
import { nativeIsas } from '../../../src/kernel/codes.ts';
import { loadNative } from '../../../src/kernel/native/addon.ts';

const inputsOf = (flags: Record<string, unknown>) => readOptions(modelOptionsSchema, flags).inputs;

test('auto is the form of the instruction set of this machine, the same at every start', () => {
  const native = loadNative();
  const own = native === undefined ? 'reference' : nativeIsas[native.detectIsa()];
  expect(inputsOf({ inputs: 'auto' })).toBe(autoInputs(own));
  expect(inputsOf({ inputs: 'auto' })).toBe(inputsOf({ inputs: 'auto' }));
});

test('auto takes i16 where words multiply fast, and bf16 on tiles', () => {
  expect(nativeIsas.map((isa) => autoInputs(isa))).toEqual(['i16', 'i16', 'i16', 'bf16']);
});

test('a given form stays, and bf16 is the default', () => {
  expect(inputsOf({ inputs: 'int8' })).toBe('int8');
  expect(inputsOf({})).toBe('bf16');
});
