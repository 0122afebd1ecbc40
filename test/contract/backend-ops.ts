// Every op outside attention on random shapes: a backend against the reference backend.
import fc from 'fast-check';
import { expect, test } from 'vitest';
import { plainPageTable, plainStep } from '../../src/engine/plain-step.ts';
import type { BufferSpec, InputForm, Op } from '../../src/graph/program.ts';
import type { Backend, WeightType } from '../../src/kernel/backend.ts';
import { ReferenceBackend } from '../../src/kernel/reference/reference.ts';
import type { KvType } from '../../src/util/kv-type.ts';
import type { Activation } from '../../src/util/model-config.ts';
import { type QuantisedType, quantisedLayouts } from '../../src/util/quantised-blocks.ts';
import { pageTokens, type Step } from '../../src/util/step.ts';
import { dequantise } from '../../src/weights/quants/dequantise.ts';
import { quantise } from '../../src/weights/quants/quantise.ts';
import { expectClose, expectSameBits, numbers, play, type Scene } from './scene.ts';

const oracle = new ReferenceBackend();
const numRuns = 40;

type Rounding = 'f32' | InputForm;
const roundings = fc.constantFrom<Rounding | 'plain'>('plain', 'f32', 'bf16', 'i16', 'int8');
const activations = fc.constantFrom<Activation>('silu', 'gelu', 'gelu_tanh', 'relu');
const columnCounts = fc.integer({ min: 1, max: 300 });
const rowCounts = fc.oneof(fc.integer({ min: 1, max: 6 }), fc.integer({ min: 7, max: 90 }));

/** A step of one sequence for ops that use its rows only. */
export function rowsStep(rows: number, logits: 'none' | 'all' = 'none', tokens?: readonly number[]): Step {
  const blocks = Array.from({ length: Math.ceil(rows / pageTokens) }, (_, id) => id);
  const ids = tokens ?? new Array<number>(rows).fill(0);
  return plainStep([{ tokens: ids, start: 0, blocks, logits }], plainPageTable(blocks.length, 1), 1);
}

interface LinearShape {
  readonly form: InputForm;
  readonly types: WeightType[];
  /** Of 32 columns. */
  readonly blocks: number;
  /** Of each segment. */
  readonly rows: number[];
  readonly bias: boolean;
}

const kvFor = (step: Step) => ({ kvHeads: 1, headDim: 4, pages: step.groups[0].blocks.length });

function outSpec(columns: number, rounding: Rounding | 'plain'): BufferSpec {
  return rounding === 'plain'
    ? { rows: 'token', columns, kind: 'f32' }
    : { rows: 'token', columns, kind: 'input', form: rounding };
}

const isInteger = (form: InputForm): boolean => form === 'int8' || form === 'i16';

const plain = (columns: number): BufferSpec => ({ rows: 'token', columns, kind: 'f32' });

const floatTypes = ['f32', 'f16', 'bf16'] as const;
const quantisedTypes = Object.keys(quantisedLayouts) as QuantisedType[];

/** At least `columns`, in whole blocks of every type. */
function wholeBlocks(columns: number, types: readonly WeightType[]): number {
  const block = types.some((type) => type.endsWith('_k')) ? 256 : 32;
  return Math.ceil(columns / block) * block;
}

/** One order of operations may underflow where another does not. */
const vanishing = 1e-30;

/** Bound of the distance between two roundings of nearly equal values. */
function roundedTolerance(wanted: Float32Array, rounding: Rounding | 'plain' | KvType): (index: number) => number {
  const largest = wanted.reduce((most, value) => Math.max(most, Math.abs(value)), 0);
  if (rounding === 'int8') return () => largest / 100;
  if (rounding === 'i16') return () => largest / 16_000;
  const relative = rounding === 'bf16' ? 2 ** -7 : 2e-6;
  return (index) => relative * Math.abs(wanted[index]) + 1e-6 * largest + vanishing;
}

function expectOutput(backend: Backend, scene: Scene, rounding: Rounding | 'plain', buffers: readonly number[]): void {
  const wanted = play(oracle, scene, { buffers }).buffers;
  const got = play(backend, scene, { buffers }).buffers;
  for (const [i, values] of got.entries()) {
    const kind = i === 0 ? rounding : 'plain';
    expectClose(values, wanted[i], roundedTolerance(wanted[i], kind), `buffer ${buffers[i]}`);
  }
}

export function testOps(backend: Backend): void {
  test('embed', () => {
    const types = fc.constantFrom<WeightType>(...floatTypes, ...quantisedTypes);
    // A tied embedding table is packed in the form of the head.
    const shape = fc.record({
      blocks: fc.integer({ min: 1, max: 5 }),
      table: fc.integer({ min: 1, max: 70 }),
      form: fc.constantFrom<InputForm>('f32', 'bf16', 'i16', 'int8'),
    });
    fc.assert(
      fc.property(
        types,
        shape,
        rowCounts,
        roundings,
        fc.nat(),
        (type, { blocks, table, form }, rows, rounding, seed) => {
          const types = seed % 3 === 0 ? 1 : 1 + (seed % 2);
          const positions = seed % 3 === 0 ? undefined : { table: 0, offset: seed % 3, types };
          const tokenTypes = Uint8Array.from({ length: rows }, (_, i) => i % types);
          const columns = wholeBlocks(32 * blocks, [type]);
          const contextMax = 100;
          const ids = Array.from({ length: rows }, (_, i) => (seed + 7 * i) % table);
          const scene: Scene = {
            buffers: [outSpec(columns, rounding)],
            ops: [{ kind: 'embed', table: 0, scale: seed % 2 === 0 ? 1 : 1.5, positions, out: 0 }],
            vectors: [numbers(seed + 1, types * (contextMax + (seed % 3)) * columns)],
            contextMax,
            linears: [
              {
                spec: { columns, segments: [{ type, rows: table }], inputs: type.startsWith('q') ? form : 'f32' },
                segments: [quantise(type, numbers(seed, table * columns))],
              },
            ],
            inputs: new Map(),
            step: { ...rowsStep(rows, 'none', ids), ...(types > 1 && { tokenTypes }) },
          };
          expectOutput(backend, { ...scene, kv: kvFor(scene.step) }, rounding, [0]);
        },
      ),
      { numRuns },
    );
  });

  test('norms of both styles, with and without residual and bias', () => {
    const styles = fc.record({
      style: fc.constantFrom('rms', 'layer'),
      adds: fc.boolean(),
      shifts: fc.boolean(),
    });
    fc.assert(
      fc.property(
        columnCounts,
        rowCounts,
        roundings,
        styles,
        fc.nat(),
        (least, rows, rounding, { style, adds, shifts }, seed) => {
          // The variance of a few values may be nearly 0, which makes the result inexact.
          const columns = style === 'layer' ? least + 15 : least;
          const op: Op = {
            ...{ kind: 'norm', style, x: 0, residual: adds ? 1 : undefined },
            ...{ gain: 0, bias: shifts ? 1 : undefined, eps: 1e-5, out: 2 },
          };
          const scene: Scene = {
            buffers: [plain(columns), plain(columns), outSpec(columns, rounding)],
            ops: [op],
            vectors: [numbers(seed + 1, columns, 2), numbers(seed + 4, columns, 2)],
            inputs: new Map([
              [0, numbers(seed + 2, rows * columns, 3)],
              [1, numbers(seed + 3, rows * columns, 3)],
            ]),
            step: rowsStep(rows),
          };
          expectOutput(backend, { ...scene, kv: kvFor(scene.step) }, rounding, adds ? [2, 1] : [2]);
        },
      ),
      { numRuns },
    );
  });

  test('glu and activate, every activation', () => {
    const kinds = fc.record({ activation: activations, gated: fc.boolean(), size: fc.constantFrom(0.01, 3, 20) });
    fc.assert(
      fc.property(
        columnCounts,
        rowCounts,
        roundings,
        kinds,
        fc.nat(),
        (columns, rows, rounding, { activation, gated, size }, seed) => {
          const width = gated ? 2 * columns : columns;
          const scene: Scene = {
            buffers: [plain(width), outSpec(columns, rounding)],
            ops: [{ kind: gated ? 'glu' : 'activate', activation, x: 0, out: 1 }],
            inputs: new Map([[0, numbers(seed, width * rows, size)]]),
            step: rowsStep(rows),
          };
          expectOutput(backend, { ...scene, kv: kvFor(scene.step) }, rounding, [1]);
        },
      ),
      { numRuns: 2 * numRuns },
    );
  });

  test('activations keep the digits of small and of large arguments, and NaN', () => {
    const x = Float32Array.from({ length: 4001 }, (_, i) => (i < 4000 ? (i - 2000) / 130 : Number.NaN));
    for (const activation of ['silu', 'gelu', 'gelu_tanh', 'relu'] as const) {
      const scene: Scene = {
        buffers: [plain(1), plain(1)],
        ops: [{ kind: 'activate', activation, x: 0, out: 1 }],
        inputs: new Map([[0, x]]),
        step: rowsStep(x.length),
        kv: { kvHeads: 1, headDim: 4, pages: 126 },
      };
      const [wanted] = play(oracle, scene, { buffers: [1] }).buffers;
      const [got] = play(backend, scene, { buffers: [1] }).buffers;
      expectClose(got, wanted, (i) => 1e-6 * Math.abs(wanted[i]) + vanishing, activation);
    }
  });

  test('add, and softcap within 1e-6', () => {
    fc.assert(
      fc.property(columnCounts, rowCounts, fc.nat(), (columns, rows, seed) => {
        const cap = 1 + (seed % 50);
        const scene: Scene = {
          buffers: [plain(columns), plain(columns)],
          ops: [
            { kind: 'add', x: 0, residual: 1 },
            { kind: 'softcap', cap, x: 0 },
          ],
          inputs: new Map([
            [0, numbers(seed, rows * columns, seed % 2 === 0 ? 0.3 * cap : 10 * cap)],
            [1, numbers(seed + 1, rows * columns, 3)],
          ]),
          step: rowsStep(rows),
          kv: { kvHeads: 1, headDim: 4, pages: 4 },
        };
        const wanted = play(oracle, scene, { buffers: [0, 1] }).buffers;
        const got = play(backend, scene, { buffers: [0, 1] }).buffers;
        expectClose(got[0], wanted[0], (i) => 1e-6 * Math.abs(wanted[0][i]), 'softcap');
        expectSameBits(got[1], wanted[1], 'add');
      }),
      { numRuns },
    );
  });

  test('convert and gather move rows exactly, and input rows round exactly', () => {
    fc.assert(
      fc.property(columnCounts, rowCounts, fc.nat(), (columns, rows, seed) => {
        const exact = ['f32', 'bf16', 'i16', 'int8'] as const;
        const scene: Scene = {
          buffers: [
            plain(columns),
            ...exact.map((form) => outSpec(columns, form)),
            { ...plain(columns), rows: 'logit' },
          ],
          ops: [...exact.map((_, i): Op => ({ kind: 'convert', x: 0, out: 1 + i })), { kind: 'gather', x: 0, out: 5 }],
          inputs: new Map([[0, numbers(seed, rows * columns, 5)]]),
          step: rowsStep(rows, 'all'),
        };
        const picked = {
          ...scene,
          step: { ...scene.step, logitRows: scene.step.logitRows.filter((row) => row % 3 !== 1) },
        };
        const played = { ...picked, kv: kvFor(scene.step) };
        const buffers = [1, 2, 3, 4, 5];
        const wanted = play(oracle, played, { buffers }).buffers;
        for (const [i, values] of play(backend, played, { buffers }).buffers.entries()) {
          expectClose(values, wanted[i], () => 0, `buffer ${buffers[i]}`);
        }
      }),
      { numRuns },
    );
  });

  test('packed layers take at most 1.3 times their stored bytes', () => {
    for (const type of quantisedTypes) {
      const [columns, rows] = [512, 96];
      for (const inputs of ['f32', 'bf16', 'i16', 'int8'] as const) {
        const linear = backend.createLinear({ columns, segments: [{ type, rows }], inputs });
        const { blockElements, blockBytes } = quantisedLayouts[type];
        const stored = (rows * columns * blockBytes) / blockElements;
        expect(backend.linearBytes(linear)).toBeLessThanOrEqual(1.3 * stored);
        backend.freeLinear(linear);
      }
    }
  });

  test('K types refuse rows that are not whole blocks of 256', () => {
    const spec = { columns: 384, segments: [{ type: 'q4_k', rows: 8 }], inputs: 'bf16' } as const;
    expect(() => backend.createLinear(spec)).toThrow(
      'Cannot create linear layer: quantised rows are whole blocks of 256',
    );
  });

  test('linear, every stored type and input form; i16 inputs give the bits of the oracle', () => {
    const shape: fc.Arbitrary<LinearShape> = fc.record({
      form: fc.constantFrom<InputForm>('f32', 'bf16', 'i16', 'int8'),
      types: fc.array(fc.constantFrom<WeightType>(...floatTypes, ...quantisedTypes), { minLength: 1, maxLength: 3 }),
      blocks: fc.oneof(fc.integer({ min: 1, max: 9 }), fc.integer({ min: 10, max: 50 })),
      rows: fc.array(fc.integer({ min: 1, max: 70 }), { minLength: 3, maxLength: 3 }),
      bias: fc.boolean(),
    });
    fc.assert(
      fc.property(shape, rowCounts, fc.nat(), (given, tokens, seed) => {
        const types = isInteger(given.form)
          ? given.types.map((type) => (type.startsWith('q') ? type : 'q8_0'))
          : given.types;
        const columns = wholeBlocks(32 * given.blocks, types);
        const segments = types.map((type, i) => ({ type, rows: given.rows[i] }));
        const bytes = segments.map(({ type, rows }, i) => quantise(type, numbers(seed + i, rows * columns)));
        const outputs = segments.reduce((sum, { rows }) => sum + rows, 0);
        const x = numbers(seed + 9, tokens * columns, 2);
        const scene: Scene = {
          buffers: [outSpec(columns, given.form), plain(outputs)],
          ops: [{ kind: 'linear', weight: 0, bias: given.bias ? 0 : undefined, x: 0, out: 1 }],
          linears: [{ spec: { columns, segments, inputs: given.form }, segments: bytes }],
          vectors: [numbers(seed + 5, outputs)],
          inputs: new Map([[0, x]]),
          step: rowsStep(tokens),
        };
        const played = { ...scene, kv: kvFor(scene.step) };
        const [wanted] = play(oracle, played, { buffers: [1] }).buffers;
        const [got] = play(backend, played, { buffers: [1] }).buffers;
        if (given.form === 'i16') return expectSameBits(got, wanted, 'out');
        const weights = segments.flatMap(({ type }, i) => [...dequantise(type, bytes[i])]);
        expectClose(got, wanted, productTolerance(x, weights, columns, outputs, given.form), 'out');
      }),
      {
        numRuns,
        examples: [
          [behindHalfLine, 11, 1],
          [wordChunks, 100, 2],
        ],
      },
    );
  });
}

/** Enough rows that weights are unpacked by chunks on every instruction set, with one and two scales of a block. */
const wordChunks = {
  ...{ form: 'i16', types: ['q8_0', 'q4_1', 'q6_k'], blocks: 11, bias: true },
  rows: [33, 16, 5],
} satisfies LinearShape;

/** A segment of whole cache lines behind one of four and a half lines. */
const behindHalfLine = {
  ...{ form: 'bf16', types: ['q4_0', 'bf16'], blocks: 1, bias: false },
  rows: [16, 16, 16],
} satisfies LinearShape;

/** The error of float32 sums grows with the sum of magnitudes; weights rounded to bf16 add a random walk of half units. */
function productTolerance(
  x: Float32Array,
  weights: readonly number[],
  columns: number,
  outputs: number,
  form: InputForm,
) {
  return (index: number) => {
    const row = Math.floor(index / outputs) * columns;
    const weight = (index % outputs) * columns;
    let magnitudes = 0;
    let squares = 0;
    for (let i = 0; i < columns; i++) {
      const product = x[row + i] * weights[weight + i];
      magnitudes += Math.abs(product);
      squares += product * product;
    }
    return 2e-6 * (magnitudes + 1) + (form === 'bf16' ? 4 * 2 ** -9 * Math.sqrt(squares) : 0);
  };
}
