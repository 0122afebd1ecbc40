// A model over q8 pages: its logits, the size of its pages, the fingerprint of its blocks, and heads that q8 refuses.
import { afterAll, expect, test } from 'vitest';
import { blockRoot } from '../../src/cli/serve/block-root.ts';
import { Engine } from '../../src/engine/engine.ts';
import type { ModelForms } from '../../src/engine/forms.ts';
import { freeModel, kvShapeOf, loadModel } from '../../src/engine/load-model.ts';
import { openModel } from '../../src/weights/open-model.ts';
import { backends } from '../engine/backends.ts';
import { ModelFolder, oddSpec } from '../engine/models.ts';
import { blocksFor, Player, someTokens } from '../engine/play.ts';

const folder = new ModelFolder();
afterAll(() => folder.remove());

const f32: ModelForms = { weights: 'f32', inputs: 'f32' };
const q8: ModelForms = { ...f32, kvType: 'q8' };

test.each(backends)('logits on $name are close to those over f32 pages, which take 3.8 times the memory', (named) => {
  const path = folder.huggingFace(oddSpec, 'f32');
  const backend = named.create(1);
  const logitsOf = (forms: ModelForms) => {
    const model = loadModel({ model: path, backend, ...forms });
    const kvBytes = 4 * oddSpec.layers * model.kv.pageBytes;
    const engine = new Engine({ model, backend, tokensMax: 100, logitRowsMax: 1, kvBytes });
    const tokens = someTokens(70, oddSpec.vocabSize, 3);
    const { rows } = new Player(engine).step([{ tokens, start: 0, blocks: blocksFor(70, 0), logits: 'last' }]);
    engine.close();
    freeModel(model, backend);
    return { logits: new Float32Array(rows[0].buffer, rows[0].byteOffset, rows[0].length), kvBytes };
  };
  const [exact, rounded] = [logitsOf(f32), logitsOf(q8)];
  expect(rounded.kvBytes / exact.kvBytes).toBe(34 / 128);
  const largest = Math.max(...exact.logits.map(Math.abs));
  for (const [id, logit] of rounded.logits.entries())
    expect(Math.abs(logit - exact.logits[id])).toBeLessThan(0.02 * largest);
  expect(rounded.logits).not.toEqual(exact.logits);
  backend.close();
});

test('blocks of another KV type have another fingerprint', () => {
  const files = openModel(folder.huggingFace(oddSpec, 'f32'));
  const roots = (['q8', 'bf16', undefined] as const).map((kvType) =>
    blockRoot(files, { weights: 'native', inputs: 'bf16', kvType }),
  );
  expect(roots.map(({ kvType }) => kvType)).toEqual(['q8', 'bf16', 'bf16']);
  files.close();
});

test('heads without whole blocks of 32 dimensions are refused by name', () => {
  const files = openModel(folder.huggingFace({ ...oddSpec, architecture: 'gemma2', headDim: 48 }, 'f32'));
  expect(() => kvShapeOf(files, q8)).toThrow(
    'a head has 48 dimensions: --kv-type q8 needs a multiple of 32, which share a scale',
  );
  files.close();
});
