// Attention with windows, soft-capped scores and ALiBi slopes on random shapes. Blocks outside a window may be missing
// or hold NaN.
import fc from 'fast-check';
import { expect, test } from 'vitest';
import type { HeadShape } from '../../src/graph/program.ts';
import type { Backend } from '../../src/kernel/backend.ts';
import { ReferenceBackend } from '../../src/kernel/reference/reference.ts';
import { pageTokens, type Step } from '../../src/util/step.ts';
import {
  attentionBound,
  attentionScene,
  heldShape,
  kvTypes,
  maxBound,
  rowsAlone,
  type ScoreRules,
} from './backend-attention.ts';
import { expectClose, expectSameBits, numbers, play, type Scene } from './scene.ts';

const oracle = new ReferenceBackend();

const shapes: fc.Arbitrary<HeadShape> = fc
  .record({
    kvHeads: fc.integer({ min: 1, max: 2 }),
    group: fc.constantFrom(1, 2, 3, 8),
    headDim: fc.constantFrom(2, 6, 16, 34, 64, 80, 256),
  })
  .map(({ kvHeads, group, headDim }) => ({ heads: kvHeads * group, kvHeads, headDim }));
const windows = fc.constantFrom(1, 2, 7, 31, 32, 33, 64, 100, 511, 512, 513, 700);
const caps = fc.constantFrom(undefined, 0.5, 5, 50);
const cases = fc
  .record({
    shape: shapes,
    kvType: kvTypes,
    window: fc.option(windows, { nil: undefined, freq: 5 }),
    softcap: caps,
    alibi: fc.boolean(),
    sequences: fc.array(
      fc.record({
        start: fc.oneof(fc.integer({ min: 0, max: 70 }), fc.integer({ min: 480, max: 1300 })),
        rows: fc.oneof(fc.constant(1), fc.integer({ min: 1, max: 40 })),
      }),
      { minLength: 1, maxLength: 2 },
    ),
    seed: fc.nat({ max: 1e6 }),
    stats: fc.boolean(),
  })
  .map((given) => ({ ...given, shape: heldShape(given.shape, given.kvType) }));
type Case = typeof cases extends fc.Arbitrary<infer T> ? T : never;

/** Keys similar to the query; the slope brings one distant key to the score of the others, so roundings of large scores show. */
const largeScores: Case = {
  shape: { heads: 6, kvHeads: 2, headDim: 256 },
  ...{ kvType: 'f32', window: 64, softcap: undefined, alibi: true, stats: true, seed: 581470 },
  sequences: [
    { start: 47, rows: 8 },
    { start: 968, rows: 1 },
  ],
};

function firstSeen(position: number, window: number | undefined): number {
  return window === undefined ? 0 : Math.max(0, position - window + 1);
}

function sceneOf({ shape, kvType, window, softcap, alibi, sequences, seed, stats }: Case): Scene {
  const slopes = Float32Array.from({ length: shape.heads }, (_, head) => 2 ** (-(8 * (head + 1)) / shape.heads));
  const rules: ScoreRules = {
    ...(window === undefined ? {} : { window }),
    ...(softcap === undefined ? {} : { softcap }),
    ...(alibi ? { slopes } : {}),
  };
  return attentionScene(shape, kvType, sequences, seed, stats, rules);
}

/** The scene without blocks behind its windows, and with NaN in every key that no row attends to. */
function leftoverTiers(scene: Scene, window: number | undefined, keptBlocks: number): Scene {
  const { step } = scene;
  const [group] = step.groups;
  const pages = (scene.pages ?? []).map((page) => page.slice());
  const blocks: number[] = [];
  const blockStart: number[] = [];
  const firstBlock: number[] = [];
  const gone = new Set(pages.keys());
  for (const [s, start] of group.blockStart.entries()) {
    const [first, last] = [step.rowStart[s], step.rowStart[s + 1] - 1].map((row) => step.positions[row]);
    const seen = firstSeen(first, window);
    const from = Math.max(0, Math.floor(seen / pageTokens) - keptBlocks);
    const to = Math.floor(last / pageTokens) + 1;
    blockStart.push(blocks.length);
    firstBlock.push(from);
    blocks.push(...group.blocks.subarray(start + from, start + to));
    for (let block = from; block < to; block++) {
      const page = group.pageTable[group.blocks[start + block] * group.layers + 1];
      gone.delete(page);
      spoil(pages[page], scene, (slot) => block * pageTokens + slot < seen || block * pageTokens + slot > last);
    }
  }
  for (const page of gone) pages[page].fill(Number.NaN);
  const lists = { blocks, blockStart, firstBlock };
  const listed = Object.fromEntries(Object.entries(lists).map(([name, list]) => [name, Int32Array.from(list)]));
  return { ...scene, pages, step: { ...step, groups: [{ ...group, ...listed }] } };
}

/** Writes NaN to the `chosen` slots of a page. */
function spoil(page: Float32Array, scene: Scene, chosen: (slot: number) => boolean): void {
  const headDim = scene.kv?.headDim ?? 0;
  for (let row = 0; row * headDim < page.length; row++) {
    if (chosen(row % pageTokens)) page.fill(Number.NaN, row * headDim, (row + 1) * headDim);
  }
}

function bufferOf(backend: Backend, scene: Scene): Float32Array {
  return play(backend, scene, { buffers: [1] }).buffers[0];
}

export function testWindows(backend: Backend): void {
  test('windows, caps and slopes are within the bound of the reference, without keys that no row attends to', () => {
    fc.assert(
      fc.property(cases, fc.integer({ min: 0, max: 2 }), (given, keptBlocks) => {
        const scene = sceneOf(given);
        const wanted = play(oracle, scene, { buffers: given.stats ? [1, 2, 3] : [1] }).buffers;
        const poor = leftoverTiers(scene, given.window, keptBlocks);
        const got = play(backend, poor, { buffers: given.stats ? [1, 2, 3] : [1] }).buffers;
        // A cap adds the roundings of tanh to the scores.
        const bound = attentionBound(backend, given.kvType) * (given.softcap === undefined ? 1 : 2);
        const sumOf = (i: number) => (given.stats ? wanted[2][Math.floor(i / given.shape.headDim)] : 1);
        expectClose(got[0], wanted[0], (i) => bound * Math.max(1, sumOf(i)), 'o');
        if (!given.stats) return;
        expectClose(got[1], wanted[1], (i) => maxBound(given.kvType) * (1 + Math.abs(wanted[1][i])), 'max');
        expectClose(got[2], wanted[2], (i) => Math.max(1e-5, bound) * wanted[2][i], 'sum');
      }),
      { numRuns: 20, examples: [[largeScores, 0]] },
    );
  });

  test('rows have the same bits alone, in chunks and in a batch, for any listed blocks', () => {
    fc.assert(
      fc.property(cases, fc.integer({ min: 1, max: 9 }), (given, chunk) => {
        const scene = sceneOf({ ...given, stats: false });
        const all = bufferOf(backend, scene);
        const { columns } = scene.buffers[0];
        const s = given.seed % given.sequences.length;
        const end = scene.step.rowStart[s + 1];
        for (let row = scene.step.rowStart[s]; row < end; row += chunk) {
          const rows = Math.min(chunk, end - row);
          const first = Math.floor(firstSeen(scene.step.positions[row], given.window) / pageTokens);
          const some = bufferOf(backend, leftoverTiers(rowsAlone(scene, s, row, rows, 0), given.window, row % 2));
          const listed = bufferOf(backend, rowsAlone(scene, s, row, rows, first));
          expectSameBits(some, all.slice(row * columns, (row + rows) * columns), `rows from ${row}`);
          expectSameBits(listed, some, `rows from ${row}, every block its window needs`);
        }
      }),
      { numRuns: 8 },
    );
  });

  test('a NaN key affects only rows with the key in their window', () => {
    fc.assert(
      fc.property(cases, fc.nat(), (given, pick) => {
        const scene = sceneOf({ ...given, stats: false, sequences: [{ start: 500, rows: 60 }] });
        const key = 460 + (pick % 100);
        const page = scene.step.groups[0].pageTable[scene.step.groups[0].blocks[Math.floor(key / pageTokens)] * 2 + 1];
        const pages = (scene.pages ?? []).map((values) => values.slice());
        spoil(pages[page], scene, (slot) => slot === key % pageTokens);
        const healthy = bufferOf(backend, scene);
        const spoilt = bufferOf(backend, { ...scene, pages });
        const { columns } = scene.buffers[0];
        for (const [row, position] of scene.step.positions.entries()) {
          const slice = spoilt.slice(row * columns, (row + 1) * columns);
          if (key >= firstSeen(position, given.window) && key <= position) expect(slice.every(Number.isNaN)).toBe(true);
          else expectSameBits(slice, healthy.slice(row * columns, (row + 1) * columns), `row ${row}`);
        }
      }),
      { numRuns: 8 },
    );
  });

  test('refuses a step without a block of a window, or without any block of a full-attention sequence', () => {
    const shape = { heads: 2, kvHeads: 1, headDim: 16 };
    const stepFrom = (scene: Scene, first: number): Step =>
      rowsAlone(scene, 0, 0, scene.step.tokens.length, first).step;
    for (const [window, most] of [
      [undefined, 0],
      [1, 3],
      [33, 2],
      [34, 2],
      [100, 0],
    ] as const) {
      const rules = window === undefined ? {} : { window };
      const scene = attentionScene(shape, 'f32', [{ start: 97, rows: 40 }], 1, false, rules);
      expect(play(backend, { ...scene, step: stepFrom(scene, most) }, {}).outcome.kind).toBe('done');
      const lacking = { ...scene, step: stepFrom(scene, most + 1) };
      expect(() => play(backend, lacking, {})).toThrow(/sequence 0 misses its first blocks/);
    }
    const scene = attentionScene(shape, 'f32', [{ start: 97, rows: 4 }], 1, false, { window: 40 });
    const [group] = scene.step.groups;
    const negative = { ...group, firstBlock: Int32Array.of(-1) };
    expect(() => play(backend, { ...scene, step: { ...scene.step, groups: [negative] } }, {})).toThrow(/misses/);
    expect(() => play(backend, { ...scene, inputs: new Map([[0, numbers(1, 128)]]) }, {})).not.toThrow();
  });
}
