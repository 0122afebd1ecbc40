// Small random checkpoints of every architecture: native kernels agree with the reference, bits do not depend on the
// batch or on chunks, and window layers need no block behind their window.
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { Engine } from '../../src/engine/engine.ts';
import { freeModel, loadModel } from '../../src/engine/load-model.ts';
import { firstAttendedBlock } from '../../src/engine/plain-step.ts';
import type { Backend } from '../../src/kernel/backend.ts';
import { ReferenceBackend } from '../../src/kernel/reference/reference.ts';
import { backends, type NamedBackend } from './backends.ts';
import { familySpecs, ModelFolder, oddSpec } from './models.ts';
import { blocksFor, chunksOf, Player, sameBits, someTokens } from './play.ts';

const folder = new ModelFolder();
afterAll(() => folder.remove());

const promptTokens = 150;
const prompt = someTokens(promptTokens, oddSpec.vocabSize, 4);

type Form = 'f32' | 'bf16';

function withPlayer<T>(backend: Backend, path: string, form: Form, use: (player: Player, engine: Engine) => T): T {
  const model = loadModel({ model: path, backend, weights: form, inputs: form });
  const { pageBytes, groups } = model.kv;
  const kvBytes = 40 * pageBytes * groups.reduce((sum, { layers }) => sum + layers, 0);
  const engine = new Engine({ model, backend, tokensMax: 256, logitRowsMax: 256, kvBytes });
  try {
    return use(new Player(engine), engine);
  } finally {
    engine.close();
    freeModel(model, backend);
  }
}

/** Logit bits of every token of the prompt, prefilled in chunks beside another sequence or alone. */
function promptRows(player: Player, sizes: readonly number[], company = 0): Uint32Array[] {
  const beside = { tokens: someTokens(company, oddSpec.vocabSize, 9), start: 0, blocks: [30], logits: 'none' } as const;
  return chunksOf(prompt, 0, sizes).flatMap(({ tokens, start }) => {
    const sequence = { tokens, start, blocks: blocksFor(promptTokens, 0), logits: 'all' } as const;
    return player.step(company > 0 ? [beside, sequence] : [sequence]).rows;
  });
}

function values(rows: readonly Uint32Array[]): number[] {
  return rows.flatMap((row) => [...new Float32Array(row.buffer)]);
}

/** Logit bits of the prompt's last tokens, decoded one by one after NaN was written to the blocks behind the windows. */
function tailRows(player: Player, windows: readonly number[], from: number): Uint32Array[] {
  const blocks = blocksFor(promptTokens, 0);
  player.step([{ tokens: prompt.slice(0, from), start: 0, blocks, logits: 'none' }]);
  return prompt.slice(from).flatMap((token, i) => {
    const start = from + i;
    const left = Math.min(...windows.map((window) => firstAttendedBlock(start, window)));
    for (const block of blocks.slice(0, left)) player.spoil(block, Number.NaN, 'windows');
    return player.step([{ tokens: [token], start, blocks, omitsUnseen: true, logits: 'all' }]).rows;
  });
}

function describeFamily({ name, native, create }: NamedBackend): void {
  describe.each(familySpecs)(`$architecture on ${name}`, (spec) => {
    let backend: Backend;
    let path: string;
    beforeAll(() => {
      backend = create(2);
      path = folder.huggingFace(spec, 'f32');
    });
    afterAll(() => backend.close());

    if (native)
      test('the f32 form gives the logits of the reference', () => {
        const oracle = new ReferenceBackend();
        const wanted = values(withPlayer(oracle, path, 'f32', (player) => promptRows(player, [256])));
        const got = values(withPlayer(backend, path, 'f32', (player) => promptRows(player, [256])));
        const worst = got.reduce((most, value, i) => Math.max(most, Math.abs(value - wanted[i])), 0);
        expect(got.length).toBe(promptTokens * spec.vocabSize);
        expect(worst).toBeLessThan(1e-4);
        oracle.close();
      });

    test.each<Form>(native ? ['f32', 'bf16'] : ['bf16'])('%s: the same bits in any chunks and company', (form) => {
      withPlayer(backend, path, form, (player) => {
        const wanted = promptRows(player, [256]);
        expect(wanted).toHaveLength(promptTokens);
        expect(sameBits(promptRows(player, [7], 5), wanted)).toBe(true);
        if (!native) return;
        expect(sameBits(promptRows(player, [1]), wanted)).toBe(true);
        expect(sameBits(promptRows(player, [64, 33], 20), wanted)).toBe(true);
      });
    });

    if (spec.window !== undefined)
      test('blocks behind a window are not needed', () => {
        withPlayer(backend, path, 'bf16', (player, engine) => {
          const windows = engine.model.kv.groups.flatMap(({ window }) => window ?? []);
          expect(windows).toEqual([spec.window]);
          const from = promptTokens - 12;
          const wanted = promptRows(player, [256]).slice(from);
          expect(sameBits(tailRows(player, windows, from), wanted)).toBe(true);
        });
      });
  });
}

for (const backend of backends) describeFamily(backend);

test('a window is dropped if the context never exceeds it', () => {
  const backend = new ReferenceBackend();
  const gemma = familySpecs.find(({ architecture }) => architecture === 'gemma2') ?? oddSpec;
  const model = folder.huggingFace(gemma, 'bf16');
  const groupsOf = (context: number) => loadModel({ model, backend, context }).kv.groups;
  expect(groupsOf(40)).toEqual([{ layers: 3, window: undefined }]);
  expect(groupsOf(41)).toEqual([
    { layers: 2, window: 40 },
    { layers: 1, window: undefined },
  ]);
  backend.close();
});
