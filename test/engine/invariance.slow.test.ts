// Batch invariance: a request's logits have the same bits alone, in a batch, in any chunks, from cached blocks,
// recomputed, and on any number of threads.
import fc from 'fast-check';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { Engine } from '../../src/engine/engine.ts';
import type { ModelForms } from '../../src/engine/forms.ts';
import { freeModel, loadModel } from '../../src/engine/load-model.ts';
import type { PlainSequence } from '../../src/engine/plain-step.ts';
import type { Backend } from '../../src/kernel/backend.ts';
import { pageTokens } from '../../src/util/step.ts';
import { backends } from './backends.ts';
import { ModelFolder, oddSpec } from './models.ts';
import { blocksFor, chunksOf, Player, sameBits, someTokens } from './play.ts';

const forms: readonly ModelForms[] = [
  { weights: 'f32', inputs: 'f32' },
  { weights: 'bf16', inputs: 'bf16' },
  { weights: 'q4', inputs: 'f32' },
  { weights: 'q4', inputs: 'bf16' },
  { weights: 'q4', inputs: 'i16' },
  { weights: 'q4', inputs: 'int8' },
  { weights: 'q8', inputs: 'bf16' },
  { weights: 'q8', inputs: 'int8' },
];
const q8Forms: ModelForms = { weights: 'q4', inputs: 'i16', kvType: 'q8' };

const folder = new ModelFolder();
let modelPath: string;
beforeAll(() => {
  modelPath = folder.huggingFace(oddSpec, 'f32');
});
afterAll(() => {
  folder.remove();
});

/** One schedule of a request: its chunks and the batch around it. */
interface Schedule {
  readonly threads: number;
  /** Sizes of its prefill chunks; the last repeats. */
  readonly chunkSizes: readonly number[];
  /** Leading blocks from the cache. */
  readonly cachedBlocks: number;
  /** Tokens of each other request of the batch, before and after it. */
  readonly before: readonly number[];
  readonly after: readonly number[];
  readonly firstBlock: number;
}

const alone: Schedule = { threads: 1, chunkSizes: [512], cachedBlocks: 0, before: [], after: [], firstBlock: 0 };

/** Logit bits of the request. Its blocks are 0..63, those of the other requests begin at 64. */
function rowsOf(player: Player, prompt: readonly number[], schedule: Schedule): Uint32Array[] {
  const blocks = blocksFor(prompt.length, schedule.firstBlock);
  const cached = Math.min(schedule.cachedBlocks * pageTokens, prompt.length - 1);
  for (const chunk of chunksOf(prompt.slice(0, cached), 0, [512])) player.step([{ ...chunk, blocks, logits: 'none' }]);
  const batchSequence = (tokens: number, index: number): PlainSequence => ({
    tokens: someTokens(tokens, oddSpec.vocabSize, index + 3),
    start: 0,
    blocks: blocksFor(tokens, 64 + 4 * index),
    logits: index % 2 === 0 ? 'all' : 'none',
  });
  const before = schedule.before.map((tokens, index) => batchSequence(tokens, index));
  const after = schedule.after.map((tokens, index) => batchSequence(tokens, index + before.length));
  const rowsBefore = before.reduce((sum, { tokens, logits }) => sum + (logits === 'all' ? tokens.length : 0), 0);
  return chunksOf(prompt, cached, schedule.chunkSizes).flatMap(({ start, tokens }) => {
    const { rows } = player.step([...before, { tokens, start, blocks, logits: 'all' }, ...after]);
    return rows.slice(rowsBefore, rowsBefore + tokens.length);
  });
}

for (const { name, native, create } of backends) {
  describe.each(native ? [...forms, q8Forms] : forms)(
    `on ${name}, weights $weights, inputs $inputs, KV $kvType`,
    (form) => {
      const opened: { readonly backend: Backend; readonly close: () => void }[] = [];
      const players = new Map<number, Player>();
      beforeAll(() => {
        for (const threads of native ? [1, 2, 3] : [1]) {
          const backend = create(threads);
          const model = loadModel({ model: modelPath, backend, ...form });
          const engine = new Engine({
            model,
            backend,
            tokensMax: 640,
            logitRowsMax: 640,
            kvBytes: 160 * 2 * model.kv.pageBytes,
          });
          players.set(threads, new Player(engine));
          opened.push({
            backend,
            close: () => {
              engine.close();
              freeModel(model, backend);
              backend.close();
            },
          });
        }
      });
      afterAll(() => {
        for (const { close } of opened) close();
      });
      const play = (prompt: readonly number[], schedule: Schedule): Uint32Array[] => {
        const player = players.get(schedule.threads) ?? players.get(1);
        if (player === undefined) throw new Error('no player');
        return rowsOf(player, prompt, schedule);
      };
      const expectSame = (prompt: readonly number[], schedule: Schedule, wanted: readonly Uint32Array[]): void => {
        const got = play(prompt, schedule);
        expect(got.length).toBeGreaterThan(0);
        got.forEach((row, index) => {
          const place = wanted.length - got.length + index;
          // Most rows are equal, and a comparison of whole rows is a hundred times as fast.
          if (!sameBits([row], wanted.slice(place, place + 1))) expect(row, `row ${place}`).toEqual(wanted[place]);
        });
      };

      test('any schedule of 75 tokens', () => {
        const prompt = someTokens(75, oddSpec.vocabSize, 1);
        const wanted = play(prompt, alone);
        const batchTokensMax = native ? 40 : 5;
        const schedules = fc.record({
          threads: fc.constantFrom(1, 2, 3),
          chunkSizes: fc.array(fc.integer({ min: 1, max: 40 }), { minLength: 1, maxLength: 4 }),
          cachedBlocks: fc.integer({ min: 0, max: 2 }),
          before: fc.array(fc.integer({ min: 1, max: batchTokensMax }), { maxLength: 3 }),
          after: fc.array(fc.integer({ min: 1, max: batchTokensMax }), { maxLength: 3 }),
          firstBlock: fc.integer({ min: 0, max: 32 }),
        });
        fc.assert(
          fc.property(schedules, (schedule) => {
            expectSame(prompt, schedule, wanted);
          }),
          { numRuns: name === 'portable' ? 6 : native ? 15 : 4 },
        );
      });

      if (native)
        test('chunks of 1, 7 and 512, and cached blocks, over three ranges of attention', () => {
          const prompt = someTokens(1100, oddSpec.vocabSize, 2);
          const wanted = play(prompt, alone);
          const schedules: Schedule[] = [
            { ...alone, threads: 3, chunkSizes: [7] },
            { ...alone, threads: 2, chunkSizes: [512], before: [33], after: [1, 17] },
            { ...alone, threads: 2, chunkSizes: [100, 512], cachedBlocks: 17, firstBlock: 20 },
            { ...alone, threads: 3, chunkSizes: [1], cachedBlocks: 30, before: [5] },
          ];
          for (const schedule of schedules) expectSame(prompt, schedule, wanted);
        });

      test('stale bytes and another sequence’s NaN do not reach a request', () => {
        const player = players.get(1);
        if (player === undefined) throw new Error('no player');
        const prompt = someTokens(45, oddSpec.vocabSize, 5);
        const wanted = play(prompt, alone);
        for (const value of [Number.NaN, Number.POSITIVE_INFINITY]) {
          for (const block of [0, 1, 40]) player.spoil(block, value);
          const sick: PlainSequence = { tokens: [3], start: 20, blocks: [40], logits: 'all' };
          const well: PlainSequence = { tokens: prompt, start: 0, blocks: [0, 1], logits: 'all' };
          const { rows, failed } = player.step([sick, well, { ...sick, start: 21 }]);
          expect(rows.slice(1, 46)).toEqual(wanted);
          expect([...failed]).toEqual([1, ...new Array<number>(45).fill(0), 1]);
          for (const block of [0, 1, 40]) player.spoil(block, 0);
        }
      });
    },
  );
}
