// Tensor types: stored bytes against values computed by another tool, and quantisation back to bytes.
import { existsSync, readFileSync } from 'node:fs';
import { join, resolve } from 'node:path';
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { type QuantisedType, quantisedLayouts } from '../../src/util/quantised-blocks.ts';
import { openModel } from '../../src/weights/open-model.ts';
import { dequantise } from '../../src/weights/quants/dequantise.ts';
import { f16ToF32Bits, f32BitsToBf16, f32BitsToF16 } from '../../src/weights/quants/half.ts';
import { quantise } from '../../src/weights/quants/quantise.ts';
import type { ModelFiles, TensorType } from '../../src/weights/types.ts';
import { sharedModels } from './temporary.ts';

const folder = resolve(import.meta.dirname, '../data/quants');
const order = ['Q4_0', 'Q4_1', 'Q5_0', 'Q5_1', 'Q8_0', 'Q2_K', 'Q3_K', 'Q4_K', 'Q5_K', 'Q6_K', 'F32', 'F16', 'BF16'];
const columns = 512;

function stored(files: ModelFiles, name: string): { type: TensorType; bytes: Uint8Array } {
  const info = files.tensor(name);
  if (info === undefined) throw new Error(`no tensor ${name}`);
  return { type: info.type, bytes: files.read(info, 0, info.byteLength) };
}

function floats(path: string): Float32Array {
  const bytes = readFileSync(path);
  return new Float32Array(bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.byteLength));
}

const hex = (bytes: ArrayBufferView): string =>
  Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength).toString('hex');

const patternOf = (value: number): number => new Uint32Array(Float32Array.of(value).buffer)[0] ?? 0;

describe('dequantise', () => {
  test.each(order)('%s has exactly the values that the gguf package computes', (name) => {
    const files = openModel(join(folder, 'quants.gguf'));
    const expected = floats(join(folder, 'values.f32'));
    const at = order.indexOf(name) * columns;
    const { type, bytes } = stored(files, name);
    expect(type).toBe(name.toLowerCase());
    expect(hex(dequantise(type, bytes))).toBe(hex(expected.subarray(at, at + columns)));
    files.close();
  });

  const sharedQuants = join(sharedModels, 'quants');
  test.skipIf(!existsSync(sharedQuants))('the full set of types (needs ../shared/models/quants)', () => {
    const files = openModel(join(sharedQuants, 'quants.gguf'));
    const small = openModel(join(folder, 'quants.gguf'));
    const values = floats(join(sharedQuants, 'values.f32'));
    const about: unknown = JSON.parse(readFileSync(join(sharedQuants, 'values.json'), 'utf8'));
    const { rows, order: all } = about as { rows: number; order: string[] };
    expect(all).toEqual(order);
    for (const [place, name] of all.entries()) {
      const { type, bytes } = stored(files, name);
      const expected = values.subarray(place * rows * columns, (place + 1) * rows * columns);
      expect(hex(dequantise(type, bytes))).toBe(hex(expected));
      expect(hex(stored(small, name).bytes)).toBe(hex(bytes.subarray(0, bytes.byteLength / rows)));
    }
    expect([...files.unsupportedTensors()]).toEqual([]);
    files.close();
    small.close();
  });

  test('refuses bytes that are not whole blocks', () => {
    expect(() => dequantise('q4_0', new Uint8Array(19))).toThrow('19 bytes are not whole blocks of 18');
    expect(() => quantise('q8_0', new Float32Array(33))).toThrow('33 values are not whole blocks of 32');
  });
});

describe('16-bit floats', () => {
  test('every binary16 value survives the conversion to float32 and back', () => {
    for (let half = 0; half < 65_536; half++) {
      const quiet = (half & 0x7c00) === 0x7c00 && (half & 0x3ff) !== 0 ? half | 0x200 : half;
      if (f32BitsToF16(f16ToF32Bits(half)) !== quiet)
        expect([half, f32BitsToF16(f16ToF32Bits(half))]).toEqual([half, quiet]);
    }
    expect([0x0001, 0x03ff, 0x3c00, 0x7bff, 0xfc00].map((half) => f16ToF32Bits(half))).toEqual(
      [2 ** -24, 1023 * 2 ** -24, 1, 65_504, Number.NEGATIVE_INFINITY].map(patternOf),
    );
  });

  test('every bfloat16 value survives the conversion to float32 and back', () => {
    for (let half = 0; half < 65_536; half++) {
      const quiet = (half & 0x7f80) === 0x7f80 && (half & 0x7f) !== 0 ? half | 0x40 : half;
      const back = f32BitsToBf16((half << 16) >>> 0);
      if (back !== quiet) expect([half, back]).toEqual([half, quiet]);
    }
  });

  test.each([
    ['f16', f32BitsToF16, f16ToF32Bits, 0x7c00],
    ['bf16', f32BitsToBf16, (half: number) => (half << 16) >>> 0, 0x7f80],
  ] as const)('%s rounds to the nearest, ties to even', (_, narrow, widen, infinity) => {
    const value = (pattern: number): number => new Float32Array(Uint32Array.of(pattern).buffer)[0] ?? 0;
    fc.assert(
      fc.property(fc.integer({ min: 0, max: 0x7f7f_ffff }), (pattern) => {
        const half = narrow(pattern);
        if (half === infinity)
          return value(pattern) >= (value(widen(infinity - 1)) * 3 - value(widen(infinity - 2))) / 2;
        const error = (other: number): number => Math.abs(value(widen(other)) - value(pattern));
        const neighbours = [half - 1, half + 1].filter((other) => other >= 0 && other < infinity);
        return neighbours.every(
          (other) => error(other) > error(half) || (error(other) === error(half) && half % 2 === 0),
        );
      }),
      { numRuns: 3000 },
    );
  });
});

describe('quantise', () => {
  test.each(['f32', 'f16', 'bf16', 'q4_1', 'q8_0'] as const)('%s preserves values that it can represent', (type) => {
    const bytes = new Uint8Array(40 * { f32: 128, f16: 64, bf16: 64, q4_1: 20, q8_0: 34 }[type]);
    // Levels at both ends of the range in each block; scales are powers of two.
    const values = Float32Array.from({ length: 1280 }, (_, index) => {
      const level = index % 32 === 0 ? 0 : index % 32 === 1 ? 15 : (index * 7) % 16;
      const block = Math.floor(index / 32);
      return type === 'q8_0' ? (index % 32 === 0 ? 127 : level - 8) * 2 ** (block % 9) : (level - 5) * 2 ** (block % 9);
    });
    quantise(type, values, bytes);
    expect(hex(dequantise(type, bytes))).toBe(hex(values));
  });

  test('q4_0: the value of largest magnitude becomes -8, whatever its sign', () => {
    for (const sign of [-1, 1]) {
      const values = Float32Array.from(
        { length: 32 },
        (_, index) => sign * (index % 16 === 3 ? -2 : 0.25 * (index % 8)),
      );
      expect(hex(dequantise('q4_0', quantise('q4_0', values)))).toBe(hex(values));
    }
  });

  test('known blocks, byte by byte', () => {
    const ramp = Float32Array.from({ length: 32 }, (_, index) => index - 16);
    // Scale 2 (0x4000): nibble trunc(x / 2 + 8.5), the last one 15.
    expect(hex(quantise('q4_0', ramp))).toBe(`0040${nibbles(ramp, (x) => Math.min(15, Math.trunc(x / 2 + 8.5)))}`);
    const scale = Math.fround(31 / 15);
    expect(hex(quantise('q4_1', ramp))).toBe(`224000cc${nibbles(ramp, (x) => Math.trunc((x + 16) / scale + 0.5))}`);
    const eighth = quantise('q8_0', ramp);
    expect([...new Int8Array(eighth.buffer, 2, 32)]).toEqual(
      [...ramp].map((x) => Math.sign(x) * Math.round(Math.abs(x) * (127 / 16))),
    );
  });

  test('zeros stay zeros', () => {
    for (const type of Object.keys(quantisedLayouts) as QuantisedType[]) {
      expect([...dequantise(type, quantise(type, new Float32Array(512)))].every((value) => value === 0)).toBe(true);
    }
  });

  test.each([
    ['q4_0', 1 / 8],
    ['q4_1', 1 / 15],
    ['q8_0', 1 / 254],
  ] as const)('%s errs by at most half a step, and the top level of q4_0 by one', (type, share) => {
    const value = fc.float({ min: -100, max: 100, noNaN: true });
    fc.assert(
      fc.property(fc.array(value, { minLength: 32, maxLength: 32 }), (list) => {
        const values = Float32Array.from(list);
        const back = dequantise(type, quantise(type, values));
        const range = type === 'q4_1' ? Math.max(...values) - Math.min(...values) : Math.max(...values.map(Math.abs));
        // A scale is rounded to 11 bits, and to 2^-24 if it is tiny.
        const largest = Math.max(...values.map(Math.abs));
        const bound = range * share + largest * 2 ** -10 + 16 * 2 ** -24 + (type === 'q8_0' ? 127 * 2 ** -24 : 0);
        return values.every((x, index) => Math.abs(x - (back[index] ?? Number.NaN)) <= bound);
      }),
      { numRuns: 500 },
    );
  });
});

describe('quantise to five bits and K blocks', () => {
  // Error bounds relative to a block's largest magnitude: half a step of the widest group plus the rounding of scale
  // and minimum.
  test.each([
    ['q5_0', 1.1 / 16],
    ['q5_1', 1 / 31 + 0.002],
    ['q2_k', 2 / 6 + 1 / 4],
    ['q3_k', 1 / 4 + 1 / 15],
    ['q4_k', 2 / 30 + 1 / 30],
    ['q5_k', 2 / 62 + 1 / 30],
    ['q6_k', 1 / 31 + 1 / 100],
  ] as const)('%s errs by little more than half a step', (type, share) => {
    fc.assert(
      fc.property(fc.array(fc.float({ min: -1, max: 1, noNaN: true }), { minLength: 256, maxLength: 256 }), (list) => {
        const values = Float32Array.from(list);
        const back = dequantise(type, quantise(type, values));
        const largest = Math.max(...values.map(Math.abs));
        return values.every((x, index) => Math.abs(x - (back[index] ?? Number.NaN)) <= share * largest + 2 ** -18);
      }),
      { numRuns: 200 },
    );
  });
});

function nibbles(values: Float32Array, level: (value: number) => number): string {
  const bytes = Uint8Array.from(
    { length: 16 },
    (_, index) => level(values[index] ?? 0) | (level(values[index + 16] ?? 0) << 4),
  );
  return hex(bytes);
}
