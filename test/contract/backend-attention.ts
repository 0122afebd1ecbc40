// Paged attention on random shapes: writing K, V and queries, attending with and without statistics, merging partials.
import fc from 'fast-check';
import { test } from 'vitest';
import { type PlainSequence, plainStep } from '../../src/engine/plain-step.ts';
import type { BufferSpec, HeadShape, Op } from '../../src/graph/program.ts';
import type { Backend } from '../../src/kernel/backend.ts';
import { ReferenceBackend } from '../../src/kernel/reference/reference.ts';
import { type KvType, q8Dims } from '../../src/util/kv-type.ts';
import { pageTokens, type Step } from '../../src/util/step.ts';
import { expectClose, expectSameBits, numbers, pageValues, play, type Scene } from './scene.ts';

/** Parameters of a score besides scale (q . k). */
export interface ScoreRules {
  readonly window?: number;
  readonly softcap?: number;
  /** (heads) */
  readonly slopes?: Float32Array;
  /** Rows attend to all keys of their sequences. */
  readonly bidirectional?: boolean;
}

const oracle = new ReferenceBackend();

const shapes: fc.Arbitrary<HeadShape> = fc
  .record({
    kvHeads: fc.integer({ min: 1, max: 3 }),
    group: fc.integer({ min: 1, max: 7 }),
    halfDim: fc.integer({ min: 1, max: 40 }),
  })
  .map(({ kvHeads, group, halfDim }) => ({ heads: kvHeads * group, kvHeads, headDim: 2 * halfDim }));
export const kvTypes = fc.constantFrom<KvType>('bf16', 'f32', 'q8');

/** The shape with heads that pages of this type can hold. */
export function heldShape(shape: HeadShape, kvType: KvType): HeadShape {
  return kvType === 'q8' ? { ...shape, headDim: Math.ceil(shape.headDim / q8Dims) * q8Dims } : shape;
}

const sequenceLists = fc.array(
  fc.record({
    start: fc.oneof(fc.integer({ min: 0, max: 70 }), fc.integer({ min: 480, max: 1100 })),
    rows: fc.oneof(fc.constant(1), fc.integer({ min: 1, max: 40 })),
  }),
  { minLength: 1, maxLength: 4 },
);

/** More positions than any sequence of these tests has. */
const contextMax = 1200;
const layers = 2;
const layer = { group: 0, index: 1 };

/** Sequences over rBlocks in scattered order, on pages in scattered order. */
function pagedStep(sequences: readonly { start: number; rows: number }[]): {
  readonly step: Step;
  readonly pages: number;
} {
  let next = 0;
  const counts = sequences.map(({ start, rows }) => Math.ceil((start + rows) / pageTokens));
  const total = counts.reduce((sum, count) => sum + count, 0);
  const listed = sequences.map(({ start, rows }, s): PlainSequence => {
    const blocks = Array.from({ length: counts[s] }, () => (total - 1 - next++) % total);
    return { tokens: new Array<number>(rows).fill(0), start, blocks, logits: 'none' };
  });
  const pages = total * layers;
  const pageTable = Int32Array.from({ length: pages }, (_, i) => pages - 1 - i);
  return { step: plainStep(listed, pageTable, layers), pages };
}

/** (positions, rotaryDim): cosines, then sines. */
function anglesFor(rotaryDim: number, positions: number): Float32Array {
  const angles = new Float32Array(positions * rotaryDim);
  for (let i = 0; i < angles.length; i++) {
    const angle = Math.floor(i / rotaryDim) / (1 + (i % (rotaryDim / 2)));
    angles[i] = i % rotaryDim < rotaryDim / 2 ? Math.cos(angle) : Math.sin(angle);
  }
  return angles;
}

const query = (shape: HeadShape): BufferSpec => ({
  rows: 'token',
  columns: shape.heads * shape.headDim,
  kind: 'query',
});
const plain = (columns: number): BufferSpec => ({ rows: 'token', columns, kind: 'f32' });

export function attentionScene(
  shape: HeadShape,
  kvType: KvType,
  sequences: readonly { start: number; rows: number }[],
  seed: number,
  stats: boolean,
  { window, softcap, slopes, bidirectional }: ScoreRules = {},
): Scene {
  const { step, pages } = pagedStep(sequences);
  const tokens = step.tokens.length;
  const columns = shape.heads * shape.headDim;
  return {
    buffers: [query(shape), plain(columns), plain(shape.heads), plain(shape.heads)],
    ops: [
      {
        kind: 'attention',
        layer,
        ...shape,
        scale: 1 / Math.sqrt(shape.headDim),
        window,
        softcap,
        ...(bidirectional === true && { bidirectional }),
        slopes: slopes === undefined ? undefined : 0,
        q: 0,
        stats: stats ? { max: 2, sum: 3 } : undefined,
        out: 1,
      },
    ],
    kvType,
    vectors: slopes === undefined ? [] : [slopes],
    kv: { kvHeads: shape.kvHeads, headDim: shape.headDim, pages },
    pages: Array.from({ length: pages }, (_, page) => numbers(seed + page, pageValues(shape.kvHeads, shape.headDim))),
    inputs: new Map([[0, numbers(seed, tokens * columns, 3)]]),
    step,
  };
}

/** A level of the block of each value: roundings before may move a value to the next one. */
function levelOf(values: Float32Array): (i: number) => number {
  const levels = Array.from({ length: values.length / q8Dims }, (_, block) =>
    values.subarray(block * q8Dims, (block + 1) * q8Dims).reduce((most, value) => Math.max(most, Math.abs(value)), 0),
  );
  return (i) => (1.001 * (levels[Math.floor(i / q8Dims)] ?? 0)) / 127 + 1e-5;
}

/**
 * Bound of the distance from the reference, which rounds neither P nor, for q8, queries. Instructions that multiply bf16
 * pairs require rounded weights; q8 kernels round both to 16-bit integers.
 */
export function attentionBound(backend: Backend, kvType: KvType): number {
  if (kvType === 'q8') return 5e-4;
  const roundsWeights = backend.isa === 'avx512' || backend.isa === 'amx';
  return kvType === 'bf16' && roundsWeights ? 1e-3 : 2e-6;
}

/** Bound of the distance of the largest score, for each 1 of its size. */
export function maxBound(kvType: KvType): number {
  return kvType === 'q8' ? 1e-4 : 1e-5;
}

/** A step of sequence `s` alone: `rows` rows from row `row` of the step on, with blocks from `firstBlock` on. */
export function rowsAlone(scene: Scene, s: number, row: number, rows: number, firstBlock: number): Scene {
  const { step } = scene;
  const { columns } = scene.buffers[0];
  const [group] = step.groups;
  const start = group.blockStart[s] - group.firstBlock[s];
  const listed = {
    blocks: group.blocks.slice(start + firstBlock),
    blockStart: Int32Array.of(0),
    firstBlock: Int32Array.of(firstBlock),
  };
  const alone: Step = {
    ...step,
    tokens: step.tokens.slice(row, row + rows),
    positions: step.positions.slice(row, row + rows),
    rowStart: Int32Array.of(0, rows),
    groups: [{ ...group, ...listed }],
  };
  const q = scene.inputs.get(0)?.slice(row * columns, (row + rows) * columns) ?? new Float32Array(0);
  return { ...scene, step: alone, inputs: new Map([[0, q]]) };
}

export function testAttention(backend: Backend): void {
  test('qkv: norms, rotation, pages and queries', () => {
    fc.assert(
      fc.property(shapes, kvTypes, sequenceLists, fc.boolean(), fc.nat(), (given, kvType, sequences, norms, seed) => {
        const shape = heldShape(given, kvType);
        const { step, pages } = pagedStep(sequences);
        const columns = (shape.heads + 2 * shape.kvHeads) * shape.headDim;
        const rotaryDim = seed % 3 === 0 ? 2 * Math.ceil(shape.headDim / 4) : shape.headDim;
        const op: Op = {
          kind: 'qkv',
          layer,
          ...shape,
          rope: 0,
          rotaryDim,
          qNorm: norms ? 1 : undefined,
          kNorm: norms ? 2 : undefined,
          eps: 1e-6,
          x: 0,
          out: 1,
        };
        const scene: Scene = {
          buffers: [plain(columns), query(shape)],
          ops: [op],
          kvType,
          vectors: [
            anglesFor(rotaryDim, contextMax),
            numbers(seed, shape.headDim, 2),
            numbers(seed + 1, shape.headDim, 2),
          ],
          kv: { kvHeads: shape.kvHeads, headDim: shape.headDim, pages },
          contextMax,
          inputs: new Map([[0, numbers(seed + 2, step.tokens.length * columns, 2)]]),
          step,
        };
        const read = { buffers: [1], pages: Array.from({ length: pages }, (_, page) => page) };
        const wanted = play(oracle, scene, read);
        const got = play(backend, scene, read);
        const relative = kvType === 'bf16' ? 2 ** -7 : 3e-6;
        const tolerance = (values: Float32Array) => (i: number) => relative * Math.abs(values[i]) + 1e-5;
        expectClose(got.buffers[0], wanted.buffers[0], tolerance(wanted.buffers[0]), 'q');
        for (const [page, values] of wanted.pages.entries())
          expectClose(got.pages[page], values, kvType === 'q8' ? levelOf(values) : tolerance(values), `page ${page}`);
      }),
      { numRuns: 20 },
    );
  });

  test('attention and its statistics are within the bound of the reference', () => {
    fc.assert(
      fc.property(shapes, kvTypes, sequenceLists, fc.nat(), fc.boolean(), (given, kvType, sequences, seed, stats) => {
        const shape = heldShape(given, kvType);
        const scene = attentionScene(shape, kvType, sequences, seed, stats);
        const read = { buffers: stats ? [1, 2, 3] : [1] };
        const wanted = play(oracle, scene, read).buffers;
        const got = play(backend, scene, read).buffers;
        // |V| < 1 here; unnormalised results grow with the sum.
        const bound = attentionBound(backend, kvType);
        const sumOf = (i: number) => (stats ? wanted[2][Math.floor(i / shape.headDim)] : 1);
        expectClose(got[0], wanted[0], (i) => bound * Math.max(1, sumOf(i)), 'o');
        if (!stats) return;
        expectClose(got[1], wanted[1], (i) => maxBound(kvType) * (1 + Math.abs(wanted[1][i])), 'max');
        expectClose(got[2], wanted[2], (i) => Math.max(1e-5, bound) * wanted[2][i], 'sum');
      }),
      { numRuns: 25 },
    );
  });

  test('bidirectional attention is within the bound of the reference', () => {
    const whole = fc.array(
      fc.oneof(fc.integer({ min: 1, max: 70 }), fc.integer({ min: 250, max: 290 })).map((rows) => ({ start: 0, rows })),
      { minLength: 1, maxLength: 2 },
    );
    fc.assert(
      fc.property(shapes, kvTypes, whole, fc.nat(), (given, kvType, sequences, seed) => {
        const shape = heldShape(
          { heads: given.heads / given.kvHeads, kvHeads: 1, headDim: Math.min(8, given.headDim) },
          kvType,
        );
        const scene = attentionScene(shape, kvType, sequences, seed, false, { bidirectional: true });
        const [wanted] = play(oracle, scene, { buffers: [1] }).buffers;
        const [got] = play(backend, scene, { buffers: [1] }).buffers;
        expectClose(got, wanted, () => attentionBound(backend, kvType), 'o');
      }),
      { numRuns: 5 },
    );
  });

  test('a row of attention has the same bits alone and in a batch', () => {
    fc.assert(
      fc.property(shapes, kvTypes, sequenceLists, fc.nat(), (given, kvType, sequences, seed) => {
        const shape = heldShape(given, kvType);
        const together = attentionScene(shape, kvType, sequences, seed, false);
        const [all] = play(backend, together, { buffers: [1] }).buffers;
        const { step } = together;
        const s = seed % sequences.length;
        const row = step.rowStart[s + 1] - 1;
        const columns = shape.heads * shape.headDim;
        const [one] = play(backend, rowsAlone(together, s, row, 1, 0), { buffers: [1] }).buffers;
        expectSameBits(one, all.slice(row * columns, (row + 1) * columns), `row ${row}`);
      }),
      { numRuns: 15 },
    );
  });

  test('merged partials are within 2e-6 of the reference, and empty parts add nothing', () => {
    const shape = fc.record({
      heads: fc.integer({ min: 1, max: 5 }),
      headDim: fc.integer({ min: 1, max: 80 }),
      parts: fc.integer({ min: 1, max: 9 }),
    });
    fc.assert(
      fc.property(shape, fc.integer({ min: 1, max: 12 }), fc.nat(), ({ heads, headDim, parts }, rows, seed) => {
        const buffers: BufferSpec[] = [plain(heads * headDim)];
        const inputs = new Map<number, Float32Array>();
        const list = Array.from({ length: parts }, (_, part) => {
          const o = buffers.push(plain(heads * headDim), plain(heads), plain(heads)) - 3;
          // Some heads are empty in one part, some in all.
          const empty = (i: number) => (i + part + seed) % 5 === 0 || (i + seed) % 7 === 0;
          const sums = numbers(seed + 3 * part, rows * heads).map((value, i) =>
            empty(i) ? 0 : 1 + 30 * Math.abs(value),
          );
          const values = numbers(seed + 3 * part + 1, rows * heads * headDim).map(
            (value, i) => value * sums[Math.floor(i / headDim)],
          );
          inputs.set(o, values);
          inputs.set(
            o + 1,
            numbers(seed + 3 * part + 2, rows * heads, 20).map((value, i) => (empty(i) ? -Infinity : value)),
          );
          inputs.set(o + 2, sums);
          return { o, max: o + 1, sum: o + 2 };
        });
        const step = plainStep(
          [{ tokens: new Array<number>(rows).fill(0), start: 0, blocks: [0], logits: 'none' }],
          Int32Array.of(0),
          1,
        );
        const scene: Scene = { buffers, ops: [{ kind: 'merge', parts: list, heads, headDim, out: 0 }], inputs, step };
        const [wanted] = play(oracle, scene, { buffers: [0] }).buffers;
        const [got] = play(backend, scene, { buffers: [0] }).buffers;
        expectClose(got, wanted, () => 2e-6, 'o');
      }),
      { numRuns: 40 },
    );
  });
}
