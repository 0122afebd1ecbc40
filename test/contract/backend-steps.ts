// Whole steps: the thread count changes no bit, a set abort word ends a step, and no index outside its array is
// followed.
import fc from 'fast-check';
import { afterAll, expect, test } from 'vitest';
import type { BufferSpec, InputForm, Op } from '../../src/graph/program.ts';
import type { Backend } from '../../src/kernel/backend.ts';
import type { Step } from '../../src/util/step.ts';
import { quantise } from '../../src/weights/quants/quantise.ts';
import { rowsStep } from './backend-ops.ts';
import { expectSameBits, numbers, pageValues, play, resultOf, type Scene } from './scene.ts';

const shape = { heads: 4, kvHeads: 2, headDim: 16 };
const hidden = shape.heads * shape.headDim;
const inner = 96;
const vocabulary = 75;
const layer = { group: 0, index: 0 };
const plainScores = { window: undefined, softcap: undefined, slopes: undefined };

const plain = (columns: number, rows: BufferSpec['rows'] = 'token'): BufferSpec => ({ rows, columns, kind: 'f32' });
const input = (columns: number, form: InputForm): BufferSpec => ({ rows: 'token', columns, kind: 'input', form });

/** One layer of a model: every op but merge. */
function layerScene(form: InputForm, step: Step, seed: number): Scene {
  const qkvColumns = hidden + 2 * shape.kvHeads * shape.headDim;
  const sizes = [
    [hidden, vocabulary],
    [hidden, qkvColumns],
    [hidden, hidden],
    [hidden, 2 * inner],
    [inner, hidden],
  ] as const;
  const norm = (x: number, residual: number | undefined, out: number): Op => ({
    kind: 'norm',
    style: 'rms',
    bias: undefined,
    x,
    residual,
    gain: 0,
    eps: 1e-5,
    out,
  });
  const linear = (weight: number, x: number, out: number): Op => ({ kind: 'linear', weight, bias: undefined, x, out });
  const ops: Op[] = [
    { kind: 'embed', table: 0, scale: 1, positions: undefined, out: 0 },
    norm(0, undefined, 1),
    linear(1, 1, 2),
    {
      kind: 'qkv',
      layer,
      ...shape,
      rope: undefined,
      rotaryDim: 0,
      qNorm: undefined,
      kNorm: undefined,
      eps: 1e-5,
      x: 2,
      out: 3,
    },
    { kind: 'attention', layer, ...shape, ...plainScores, scale: 0.25, q: 3, stats: undefined, out: 4 },
    linear(2, 4, 5),
    norm(5, 0, 1),
    linear(3, 1, 6),
    { kind: 'glu', activation: 'silu', x: 6, out: 7 },
    linear(4, 7, 5),
    norm(5, 0, 8),
    { kind: 'gather', x: 8, out: 9 },
    { kind: 'convert', x: 9, out: 10 },
    linear(0, 10, 11),
  ];
  const query: BufferSpec = { rows: 'token', columns: hidden, kind: 'query' };
  const logitInput: BufferSpec = { ...input(hidden, form), rows: 'logit' };
  const buffers = [plain(hidden), input(hidden, form), plain(qkvColumns), query, input(hidden, form), plain(hidden)];
  buffers.push(
    plain(2 * inner),
    input(inner, form),
    plain(hidden),
    plain(hidden, 'logit'),
    logitInput,
    plain(vocabulary, 'logit'),
  );
  return {
    buffers,
    ops,
    logits: 11,
    kvType: form === 'f32' ? 'f32' : 'bf16',
    linears: sizes.map(([columns, rows], i) => ({
      spec: { columns, segments: [{ type: 'q8_0', rows }], inputs: form },
      segments: [quantise('q8_0', numbers(seed + i, rows * columns, 0.3))],
    })),
    vectors: [numbers(seed + 7, hidden, 2)],
    kv: { kvHeads: shape.kvHeads, headDim: shape.headDim, pages: step.groups[0].blocks.length + 1 },
    inputs: new Map(),
    step,
  };
}

const someStep = (rows: number): Step =>
  rowsStep(
    rows,
    'all',
    Array.from({ length: rows }, (_, i) => (7 * i) % vocabulary),
  );

export function testSteps(backend: Backend, create: (threads: number) => Backend): void {
  const others = [1, 2, 3].map(create);
  afterAll(() => {
    for (const other of others) other.close();
  });

  test('logits have the same bits on 1, 2 and 3 threads and in every run', () => {
    const forms = fc.constantFrom<InputForm>('f32', 'bf16', 'i16', 'int8');
    fc.assert(
      fc.property(forms, fc.integer({ min: 1, max: 130 }), fc.nat(), (form, rows, seed) => {
        const scene = layerScene(form, someStep(rows), seed);
        const [wanted] = play(backend, scene, { buffers: [11] }).buffers;
        expect(wanted.every(Number.isFinite)).toBe(true);
        for (const other of others) {
          expectSameBits(play(other, scene, { buffers: [11] }).buffers[0], wanted, `${other.threads} threads`);
        }
      }),
      { numRuns: 12 },
    );
  });

  test('NaN in one sequence changes no bit of the others', () => {
    const two = (form: InputForm, spoil: boolean): Scene => {
      const scene = layerScene(form, someStep(40), 3);
      const step: Step = {
        ...scene.step,
        positions: scene.step.positions.map((position) => (position < 33 ? position : position - 33)),
        rowStart: Int32Array.of(0, 33, 40),
        groups: [
          {
            ...scene.step.groups[0],
            blocks: Int32Array.of(0, 1, 2),
            blockStart: Int32Array.of(0, 2),
            firstBlock: new Int32Array(2),
            pageTable: Int32Array.of(2, 0, 1),
          },
        ],
      };
      const spoilt = numbers(5, pageValues(shape.kvHeads, shape.headDim)).fill(spoil ? Number.NaN : 1);
      const start = spoil ? [numbers(5, spoilt.length), numbers(6, spoilt.length), spoilt] : [];
      // Sequence 0 continues behind a page of NaN: its first 32 positions are in page 2, as if cached.
      const later: Step = {
        ...step,
        positions: step.positions.map((position, row) => (row < 33 ? position + 31 : position)),
      };
      return { ...scene, pages: start, step: later, kv: { kvHeads: 2, headDim: 16, pages: 3 } };
    };
    for (const form of ['f32', 'bf16', 'i16', 'int8'] as const) {
      const healthy = play(backend, two(form, false), { buffers: [11] });
      const spoilt = play(backend, two(form, true), { buffers: [11] });
      const rows = (values: Float32Array) => values.slice(33 * vocabulary);
      expectSameBits(rows(spoilt.buffers[0]), rows(healthy.buffers[0]), form);
      expect(resultOf(spoilt).failed).toEqual(Uint8Array.from({ length: 40 }, (_, row) => (row < 33 ? 1 : 0)));
    }
  });

  test('a set abort word ends the step', () => {
    const shared = new Int32Array(new SharedArrayBuffer(4));
    Atomics.store(shared, 0, 1);
    const scene = layerScene('bf16', someStep(5), 1);
    expect(play(backend, scene, {}, shared).outcome).toEqual({ kind: 'aborted' });
    Atomics.store(shared, 0, 0);
    expect(play(backend, scene, {}, shared).outcome.kind).toBe('done');
  });
}

/** Steps that the native backend refuses before it computes: each would read or write outside its memory. */
export function testRefusals(backend: Backend): void {
  const step = someStep(40);
  const group = step.groups[0];
  const cases: readonly (readonly [string, Partial<Step>, RegExp])[] = [
    ['token outside the vocabulary', { tokens: step.tokens.with(3, vocabulary) }, /tokens\[3\] is 75/],
    ['negative token', { tokens: step.tokens.with(3, -1) }, /tokens\[3\] is -1/],
    ['position past the context', { positions: step.positions.map((p) => p + 5000) }, /positions\[0\] is 5000/],
    ['positions with a gap', { positions: step.positions.with(39, 50) }, /positions\[39\] is 50/],
    ['rows that are not the tokens', { rowStart: Int32Array.of(0, 39) }, /rowStart\[1\] is 39/],
    ['rows past the tokens', { rowStart: Int32Array.of(0, 41) }, /rowStart\[1\] is 41/],
    ['too few blocks', { groups: [{ ...group, blocks: group.blocks.slice(1) }] }, /too few blocks/],
    ['block outside the page table', { groups: [{ ...group, blocks: Int32Array.of(0, 2) }] }, /blocks\[1\] is 2/],
    ['page outside the pool', { groups: [{ ...group, pageTable: Int32Array.of(0, 3) }] }, /pageTable\[1\] is 3/],
    ['missing layer group', { groups: [] }, /layer groups are missing/],
    ['logit rows out of order', { logitRows: step.logitRows.with(1, 0) }, /logitRows\[1\] is 0/],
    ['logit row past the tokens', { logitRows: step.logitRows.with(39, 40) }, /logitRows\[39\] is 40/],
    [
      'short sampling arrays',
      { sampling: { ...step.sampling, topP: new Float32Array(3) } },
      /topP has the wrong length/,
    ],
    [
      'bias outside the vocabulary',
      { sampling: { ...step.sampling, biasTokens: Int32Array.of(80), biasValues: Float32Array.of(1) } },
      /biasTokens\[0\] is 80/,
    ],
    [
      'another array type',
      { tokens: Float32Array.from(step.tokens) as unknown as Int32Array },
      /tokens: it is not of type Int32Array/,
    ],
  ];
  test.each(cases)('refuses a step with %s', (_, change, message) => {
    const scene = layerScene('f32', step, 2);
    expect(() => play(backend, { ...scene, step: { ...step, ...change } }, {})).toThrow(message);
  });

  test('refuses programs that do not match their weights, and more memory than is available', () => {
    const scene = layerScene('f32', step, 2);
    const broken: readonly (readonly [Partial<Scene>, RegExp])[] = [
      [{ ops: [{ kind: 'linear', weight: 4, bias: undefined, x: 1, out: 5 }] }, /columns of linear.x: 64, not 96/],
      [{ ops: [{ kind: 'linear', weight: 9, bias: undefined, x: 1, out: 5 }] }, /linear.weight 9 is outside/],
      [{ ops: [{ kind: 'convert', x: 12, out: 0 }] }, /convert.x 12 is outside/],
      [{ vectors: [new Float32Array(3)] }, /norm.gain: 3, not 64/],
    ];
    for (const [change, message] of broken) expect(() => play(backend, { ...scene, ...change }, {})).toThrow(message);
    const huge = { pages: 2 ** 30, kvHeads: 64, headDim: 128, type: 'f32' } as const;
    expect(() => backend.createKvPool(huge)).toThrow(
      /Cannot map memory for a KV pool .* MiB requested, .* MiB available/,
    );
    expect(() => backend.freeVector(123_456_789)).toThrow(/no such handle/);
  });
}
