// Instances over an engine: pooled hidden states do not depend on chunks, the batch or the prefix cache.
import { join } from 'node:path';
import { expect, test } from 'vitest';
import type { Pooling } from '../../../src/core/protocol/ports.ts';
import { Engine } from '../../../src/engine/engine.ts';
import { loadModel } from '../../../src/engine/load-model.ts';
import { groupedStep, plainPages } from '../../../src/engine/plain-step.ts';
import { ReferenceBackend } from '../../../src/kernel/reference/reference.ts';
import { request } from '../../core/instance-world.ts';
import { tinySpec, writeHuggingFaceModel } from '../../weights/random-model.ts';
import { temporaryFolder } from '../../weights/temporary.ts';
import { someTokens } from '../play.ts';
import { serve } from './serve-requests.ts';

test('embeddings are the pooled hidden states of a whole prompt, in a batch with output and from the cache', () => {
  const folder = join(temporaryFolder().path, 'tiny');
  writeHuggingFaceModel(folder, tinySpec, 'f32');
  const backend = new ReferenceBackend();
  const model = loadModel({ model: folder, backend, inputs: 'f32' });
  const engine = new Engine({ model, backend, tokensMax: 128, logitRowsMax: 128, kvBytes: 64 * model.kv.pageBytes });
  const prompt = [...someTokens(70, tinySpec.vocabSize, 3)];

  const pages = plainPages(3, model.kv.groups);
  const step = groupedStep([{ tokens: prompt, start: 0, blocks: [0, 1, 2], logits: 'all' }], pages);
  const outcome = engine.run({ ...step, hiddenRows: new Uint8Array(prompt.length).fill(1) }, new Int32Array(1));
  const hidden = outcome.kind === 'done' ? (outcome.result.hidden ?? new Float32Array(0)) : new Float32Array(0);
  const columns = tinySpec.hiddenSize;
  const rowOf = (row: number) => [...hidden.subarray(row * columns, (row + 1) * columns)];
  const mean = rowOf(0).map((_, i) => prompt.reduce((sum, __, row) => sum + hidden[row * columns + i], 0) / 70);

  const embed = (id: string, pooling: Pooling) => request(id, prompt, { pooling, maxTokens: 0 });
  const output = request('output', someTokens(40, tinySpec.vocabSize, 4), { maxTokens: 28 });
  const requests = [embed('mean', 'mean'), output, embed('last', 'last'), embed('cls', 'cls')];
  // The limit of 32 rows with results cuts the prompt into chunks.
  const { heard, snapshot } = serve(engine, requests, {}, [embed('late', 'last')]);
  const close = (id: string, wanted: readonly number[]) => {
    const values = heard.get(id)?.embedding ?? [];
    expect(values).toHaveLength(columns);
    for (const [i, value] of wanted.entries()) expect(values[i]).toBeCloseTo(value, 4);
  };
  close('mean', mean);
  close('last', rowOf(69));
  close('cls', rowOf(0));
  close('late', rowOf(69));
  expect(heard.get('late')?.cachedTokens).toBe(64);
  expect(heard.get('mean')?.cachedTokens).toBe(0);
  expect(heard.get('output')?.tokens).toHaveLength(28);
  expect(snapshot.pages.used).toBe(0);
  backend.close();
});
