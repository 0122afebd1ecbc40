// The ops of the reference backend against direct computations of their definitions.
import fc from 'fast-check';
import { expect, test } from 'vitest';
import { greedySampling, plainPageTable, plainStep } from '../../src/engine/plain-step.ts';
import type { InputForm, Op, Program } from '../../src/graph/program.ts';
import type { WeightType } from '../../src/kernel/backend.ts';
import { ReferenceBackend } from '../../src/kernel/reference/reference.ts';
import { decodeWeights } from '../../src/kernel/reference/weights.ts';
import { bf16ToNumber, f16ToNumber, roundTiesToEven, roundToBf16 } from '../../src/util/floats.ts';
import { dequantise } from '../../src/weights/quants/dequantise.ts';
import { quantise } from '../../src/weights/quants/quantise.ts';

const types: readonly WeightType[] = ['f32', 'f16', 'bf16', 'q4_0', 'q4_1', 'q5_0', 'q5_1', 'q8_0'];
const superTypes: readonly WeightType[] = ['q2_k', 'q3_k', 'q4_k', 'q5_k', 'q6_k'];
const row = (length: number) =>
  fc.array(fc.integer({ min: -1000, max: 1000 }), { minLength: length, maxLength: length });

test('kernel and weights decode stored weights to equal values', () => {
  fc.assert(
    fc.property(fc.constantFrom(...types, ...superTypes), row(256), (type, values) => {
      const bytes = quantise(
        type,
        Float32Array.from(values, (value) => value / 77),
      );
      const out = new Float32Array(256);
      decodeWeights(type, bytes, out);
      // Adding 0 turns -0 into 0: a level of 0 may have the sign of its scale.
      expect(out.map((value) => value + 0)).toEqual(dequantise(type, bytes).map((value) => value + 0));
    }),
  );
});

test('16-bit formats widen and round exactly', () => {
  expect([0x3c00, 0xc000, 0x0001, 0x7bff, 0x7c00].map(f16ToNumber)).toEqual([1, -2, 2 ** -24, 65504, Infinity]);
  expect([0x3f80, 0xc000].map(bf16ToNumber)).toEqual([1, -2]);
  expect([1 + 2 ** -8, 1 + 3 * 2 ** -8, 1 + 2 ** -8 + 2 ** -20, 3.4e38].map(roundToBf16)).toEqual([
    1,
    1 + 2 ** -6,
    1 + 2 ** -7,
    Infinity,
  ]);
  expect([0.5, 1.5, 2.5, -0.5, -1.5, 2.4].map(roundTiesToEven).map((value) => value + 0)).toEqual([0, 2, 2, 0, -2, 2]);
});

function linearProgram(columns: number, rows: number, form: InputForm, bias: boolean): Program {
  const ops: Op[] = [{ kind: 'linear', weight: 0, bias: bias ? 0 : undefined, x: 0, out: 1 }];
  const buffers: Program['buffers'] = [
    { rows: 'token', columns, kind: 'input', form },
    { rows: 'token', columns: rows, kind: 'f32' },
  ];
  return { buffers, ops, logits: undefined, hidden: undefined, kvType: 'f32', groups: [] };
}

const oneToken = plainStep([{ tokens: [0], start: 0, blocks: [0], logits: 'none' }], plainPageTable(1, 1), 1);

test('a linear layer is the product of rounded inputs and stored weights, segment after segment, plus bias', () => {
  const columns = 256;
  const segments = fc.array(
    fc.record({ type: fc.constantFrom(...types, ...superTypes), rows: fc.integer({ min: 1, max: 9 }) }),
    {
      minLength: 1,
      maxLength: 3,
    },
  );
  fc.assert(
    fc.property(
      segments,
      fc.constantFrom<InputForm>('f32', 'bf16', 'i16', 'int8'),
      row(columns),
      fc.boolean(),
      (given, form, x, bias) => {
        const parts =
          form === 'int8' || form === 'i16'
            ? given.map((part) => (part.type.startsWith('q') ? part : { ...part, type: 'q4_1' as const }))
            : given;
        const backend = new ReferenceBackend();
        const linear = backend.createLinear({ columns, segments: parts, inputs: form });
        const weights = parts.flatMap(({ type, rows }, segment) =>
          Array.from({ length: rows }, (_, at) => {
            const bytes = quantise(
              type,
              Float32Array.from({ length: columns }, (_, i) => Math.sin(segment * 31 + at * 7 + i * i)),
            );
            backend.packRows(linear, segment, at, 1, bytes);
            const values = dequantise(type, bytes);
            return form === 'bf16' ? values.map(roundToBf16) : values;
          }),
        );
        const offsets = Float32Array.from(weights, (_, at) => at / 3);
        const program = backend.createProgram(linearProgram(columns, weights.length, form, bias), {
          linears: [linear],
          vectors: bias ? [backend.createVector(offsets)] : [],
          tokensMax: 1,
          logitRowsMax: 1,
          contextMax: 32,
        });
        const pool = backend.createKvPool({ pages: 1, kvHeads: 1, headDim: 1, type: 'f32' });
        backend.writeBuffer(
          program,
          0,
          1,
          Float32Array.from(x, (value) => value / 100),
        );
        const inputs = backend.readBuffer(program, 0, 1);
        backend.run(program, pool, oneToken, new Int32Array(1));
        const wanted = weights.map(
          (w, at) => w.reduce((sum, value, i) => sum + value * inputs[i], 0) + (bias ? offsets[at] : 0),
        );
        const got = backend.readBuffer(program, 1, 1);
        for (const [at, value] of wanted.entries()) expect(got[at]).toBeCloseTo(value, 3);
      },
    ),
    { numRuns: 60 },
  );
});

test('int8 inputs are levels of amax / 127, to nearest even; a block with NaN is all NaN', () => {
  const backend = new ReferenceBackend();
  const program = backend.createProgram(linearProgram(64, 1, 'int8', false), {
    linears: [],
    vectors: [],
    tokensMax: 1,
    logitRowsMax: 1,
    contextMax: 1,
  });
  const x = Float32Array.from({ length: 64 }, (_, i) => (i < 32 ? (i === 3 ? -127 : i / 2) : 0));
  x[40] = Number.NaN;
  backend.writeBuffer(program, 0, 1, x);
  const seen = backend.readBuffer(program, 0, 1);
  expect([...seen.subarray(0, 8)]).toEqual([0, 0, 1, -127, 2, 2, 3, 4]);
  expect([...seen.subarray(32)].every(Number.isNaN)).toBe(true);
});

// Computed with 120 digits.
const tails = {
  gelu: { [-1.25]: -0.132062217084, [-3]: -0.00404969409489, [-6]: -5.91952587023e-9, [-10.5]: -4.5349566337e-25 },
  gelu_tanh: { [-1.25]: -0.13228579703, [-3]: -0.00363739208177, [-6]: -8.43964670076e-11, [-9]: -1.33645959473e-28 },
} as const;

test.each(['gelu', 'gelu_tanh'] as const)('%s is exact to its last digits near 0', (activation) => {
  const wanted = Object.values(tails[activation]);
  const buffers: Program['buffers'] = [0, 1].map(() => ({ rows: 'token', columns: wanted.length, kind: 'f32' }));
  const ops: Op[] = [{ kind: 'activate', activation, x: 0, out: 1 }];
  const backend = new ReferenceBackend();
  const bindings = { linears: [], vectors: [], tokensMax: 1, logitRowsMax: 1, contextMax: 32 };
  const program = backend.createProgram(
    { buffers, ops, logits: undefined, hidden: undefined, kvType: 'f32', groups: [] },
    bindings,
  );
  const pool = backend.createKvPool({ kvHeads: 1, headDim: 2, type: 'f32', pages: 1 });
  backend.writeBuffer(program, 0, 1, Float32Array.from(Object.keys(tails[activation]), Number));
  backend.run(program, pool, oneToken, new Int32Array(1));
  for (const [i, value] of backend.readBuffer(program, 1, 1).entries())
    expect(Math.abs(value / wanted[i] - 1)).toBeLessThan(1e-7);
});

test('partials of two halves of the keys merge to attention over all of them', () => {
  const shape = { heads: 2, kvHeads: 1, headDim: 4 };
  const layer = { group: 0, index: 0 };
  const plainScores = { window: undefined, softcap: undefined, slopes: undefined };
  const stats = (max: number, sum: number) => ({ max, sum });
  const plain = { rows: 'token', kind: 'f32' } as const;
  const buffers: Program['buffers'] = [
    { rows: 'token', columns: 8, kind: 'query' },
    { ...plain, columns: 8 },
    { ...plain, columns: 2 },
    { ...plain, columns: 2 },
    { ...plain, columns: 8 },
  ];
  const ops: Op[] = [
    { kind: 'attention', layer, ...shape, ...plainScores, scale: 0.5, q: 0, stats: stats(2, 3), out: 1 },
    { kind: 'merge', parts: [{ o: 1, max: 2, sum: 3 }], heads: 2, headDim: 4, out: 4 },
  ];
  const backend = new ReferenceBackend();
  const bindings = { linears: [], vectors: [], tokensMax: 1, logitRowsMax: 1, contextMax: 64 };
  const program = backend.createProgram(
    { buffers, ops, logits: undefined, hidden: undefined, kvType: 'f32', groups: [{ layers: 1, window: undefined }] },
    bindings,
  );
  const pool = backend.createKvPool({ pages: 2, kvHeads: 1, headDim: 4, type: 'f32' });
  const page = (seed: number) => Float32Array.from({ length: 2 * 32 * 4 }, (_, i) => Math.sin(i * seed));
  backend.writePage(pool, 0, page(1.7));
  backend.writePage(pool, 1, page(2.3));
  backend.writeBuffer(
    program,
    0,
    1,
    Float32Array.from({ length: 8 }, (_, i) => Math.cos(3 * i)),
  );
  const attend = (position: number, blocks: number[]) => {
    const step = {
      ...plainStep([{ tokens: [0], start: position, blocks, logits: 'none' }], plainPageTable(2, 1), 1),
      sampling: greedySampling(0),
    };
    backend.run(program, pool, step, new Int32Array(1));
    return [1, 2, 3, 4].map((buffer) => backend.readBuffer(program, buffer, 1));
  };
  const whole = attend(63, [0, 1])[3];
  const halves = [attend(31, [0]), attend(31, [1])];
  const parts = [0, 1].map((i) => ({ o: 3 * i, max: 3 * i + 1, sum: 3 * i + 2 }));
  const mergeBuffers = [0, 1].flatMap(() => [buffers[1], buffers[2], buffers[3]]).concat([buffers[4]]);
  const merge: Op = { kind: 'merge', parts, heads: 2, headDim: 4, out: 6 };
  const merger = backend.createProgram(
    { buffers: mergeBuffers, ops: [merge], logits: undefined, hidden: undefined, kvType: 'f32', groups: [] },
    bindings,
  );
  for (const [half, values] of halves.entries()) {
    for (const part of [0, 1, 2]) backend.writeBuffer(merger, 3 * half + part, 1, values[part]);
  }
  backend.run(merger, pool, oneToken, new Int32Array(1));
  const merged = backend.readBuffer(merger, 6, 1);
  for (const [i, value] of whole.entries()) expect(merged[i]).toBeCloseTo(value, 6);
});

test('refuses a step larger than planned, and a freed handle', () => {
  const backend = new ReferenceBackend();
  const program = backend.createProgram(linearProgram(64, 1, 'f32', false), {
    linears: [],
    vectors: [],
    tokensMax: 0,
    logitRowsMax: 1,
    contextMax: 1,
  });
  const pool = backend.createKvPool({ pages: 1, kvHeads: 1, headDim: 1, type: 'f32' });
  expect(() => backend.run(program, pool, oneToken, new Int32Array(1))).toThrow(
    '1 tokens and 0 logit rows exceed 0 and 1',
  );
  backend.freeProgram(program);
  expect(() => backend.run(program, pool, oneToken, new Int32Array(1))).toThrow('Cannot use program: no such handle');
});
