// The random models written as GGUF with llama.cpp's names and row orders: the same goldens as from safetensors.
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, describe, expect, test } from 'vitest';
import { Engine } from '../../src/engine/engine.ts';
import { freeModel, loadModel } from '../../src/engine/load-model.ts';
import { convert } from '../../tools/write-gguf/convert.mjs';
import { backends } from './backends.ts';
import { distance, goldenCases, sharedModels } from './goldens.ts';
import { ModelFolder } from './models.ts';

const names = [
  'llama2-mha',
  'llama3-rope',
  'llama-linear',
  'mistral-window',
  'qwen2',
  'qwen3',
  'gemma2',
  'gemma3',
  'phi3',
  'gpt2',
];
const folder = new ModelFolder();
afterAll(() => folder.remove());

describe.skipIf(!existsSync(`${sharedModels}/random`))('random models as GGUF (shared models)', () => {
  test.each(names)('%s, f32: golden tokens, and log-probabilities within 1e-3', (name) => {
    const path = join(folder.path, `${name}.gguf`);
    convert(`${sharedModels}/random/${name}`, path);
    const backend = backends[backends.length - 1].create(1);
    const model = loadModel({ model: path, backend, weights: 'f32', inputs: 'f32', context: 512 });
    const engine = new Engine({ model, backend, tokensMax: 512, logitRowsMax: 1, kvBytes: 2 ** 25 });
    for (const golden of goldenCases(`random/${name}`)) {
      const found = distance(engine, golden);
      expect(found.worst, golden.name).toBeLessThan(1e-3);
      expect(found.differsAt, golden.name).toBeUndefined();
    }
    engine.close();
    freeModel(model, backend);
    backend.close();
  });
});
