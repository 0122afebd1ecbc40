// The kernel benches with tiny parameters: arithmetic of rows and floors, and completeness of rows.
import { describe, expect, test } from 'vitest';
import { benchAttention } from '../../src/bench/kernel/attention.ts';
import { benchGemm, gemmShapes } from '../../src/bench/kernel/gemm.ts';
import { KernelLab } from '../../src/bench/kernel/lab.ts';
import { LayerStack } from '../../src/engine/layer-stack.ts';
import { findNative } from '../../src/kernel/native/native.ts';
import { ReferenceBackend } from '../../src/kernel/reference/reference.ts';

const native = findNative().kind === 'loaded';
const inputs = ['bf16', 'i16', 'int8', 'f32'] as const;

describe('gemm', () => {
  const shapes = [{ name: 'small', rows: 48, columns: 64 }];
  const roofGbPerSecond = 1e-3;
  const peaks = { bf16: 1e-6, i16: 1e6, int8: 1e6, f32: 1e6 };

  test('inputs of integers need quantised weights; every other pair has a row for each number of rows', () => {
    const report = benchGemm(new ReferenceBackend(), {
      shapes,
      types: ['q4_0', 'bf16'],
      inputs,
      rows: [1, 3],
      mebibytes: 0,
      repeats: 1,
      limits: undefined,
    });
    expect(report.rows.map((row) => `${row.weights} ${row.inputs} ${row.rows}`)).toEqual([
      'q4_0 bf16 1',
      'q4_0 bf16 3',
      'q4_0 i16 1',
      'q4_0 i16 3',
      'q4_0 int8 1',
      'q4_0 int8 3',
      'q4_0 f32 1',
      'q4_0 f32 3',
      'bf16 bf16 1',
      'bf16 bf16 3',
      'bf16 f32 1',
      'bf16 f32 3',
    ]);
    expect(report.rows.every((row) => row.ms > 0 && row.floorMs === undefined)).toBe(true);
  });

  test('K types have rows for the layers that are whole blocks of them; no row at all is an error', () => {
    const backend = new ReferenceBackend();
    const options = { inputs: ['f32'], rows: [1], mebibytes: 0, repeats: 1, limits: undefined } as const;
    const whole = { name: 'whole', rows: 16, columns: 256 };
    const { rows } = benchGemm(backend, { ...options, shapes: [...shapes, whole], types: ['q8_0', 'q4_k'] });
    expect(rows.map(({ shape, weights }) => `${shape} ${weights}`)).toEqual(['small q8_0', 'whole q8_0', 'whole q4_k']);
    expect(() => benchGemm(backend, { ...options, shapes, types: ['q4_k', 'q6_k'] })).toThrow(
      /^Cannot bench layers: .*: small in q4_k, q6_k with f32$/,
    );
  });

  test('the floor is the larger of bytes over the roof and operations over the peak', () => {
    const { rows } = benchGemm(new ReferenceBackend(), {
      shapes,
      types: ['f32'],
      inputs: ['bf16', 'f32'],
      rows: [2],
      mebibytes: 0,
      repeats: 1,
      limits: { roofGbPerSecond, peakGflopPerSecond: peaks },
    });
    const operations = 2 * 2 * 48 * 64;
    // At a thousandth of a GFLOP/s arithmetic is the limit, at a million memory is: 48 x 64 floats at a MB/s.
    expect(rows[0]).toMatchObject({ inputs: 'bf16', bound: 'compute', floorMs: operations });
    expect(rows[1]).toMatchObject({ inputs: 'f32', bound: 'memory', floorMs: 48 * 64 * 4e-3 });
  });

  test('copies fill the requested bytes', () => {
    const stack = new LayerStack(new ReferenceBackend(), { rows: 32, columns: 32 }, 'f32', 'f32', 10_000);
    expect(stack.layerBytes).toBe(4096);
    expect(stack.copies).toBe(3);
    expect(stack.time(2, 3, 2)).toHaveLength(2);
    stack.close();
  });

  test('the shapes of both models are whole quantisation blocks', () => {
    expect(gemmShapes).toHaveLength(10);
    expect(gemmShapes.every(({ columns }) => columns % 32 === 0)).toBe(true);
  });
});

describe.skipIf(!native)('on the native kernels (where they are compiled)', () => {
  test('attention: a row for each context, with its split, a roof and a peak', () => {
    const report = benchAttention({
      threads: 2,
      kv: 'bf16',
      shape: { kvHeads: 2, group: 2, headDim: 64 },
      contexts: [64, 600],
      queries: 8,
      mebibytes: 1,
      repeats: 1,
    });
    expect(report.decode.map(({ context }) => context)).toEqual([64, 600]);
    expect(report.oneThread).toMatchObject({ context: 64, threads: 1 });
    for (const row of report.decode) {
      // A token's K and V are 512 bytes; sequences fill a mebibyte.
      expect(row.sequences).toBe(Math.ceil(2 ** 20 / (512 * row.context)));
      expect(row.split.tasks).toBeGreaterThan(0);
      expect(row.percentOfRoof).toBeGreaterThan(0);
    }
    expect(report.prefill.map(({ queries, context }) => [queries, context])).toEqual([
      [8, 64],
      [8, 600],
    ]);
    expect(report.prefill.every((row) => row.percentOfPeak > 0 && row.split.tileTokens > 0)).toBe(true);
    expect(report.scoring.map(({ context, observed }) => [context, observed])).toEqual([
      [64, 64],
      [600, 256],
    ]);
    expect(report.scoring.every((row) => row.timesShare > 0)).toBe(true);
  });

  test('roofs and peaks are positive in every form', () => {
    const lab = new KernelLab(1);
    expect(lab.readRoof(1)).toBeGreaterThan(0);
    for (const form of inputs) expect(lab.productPeak(form)).toBeGreaterThan(0);
    for (const type of ['bf16', 'f32'] as const) expect(lab.attentionPeak(type)).toBeGreaterThan(0);
    lab.close();
  });
});
