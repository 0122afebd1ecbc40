// Loading a model: forms and types, shared tensors, and refusals before memory is allocated.
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, expect, test } from 'vitest';
import { Engine } from '../../src/engine/engine.ts';
import { type LoadOptions, loadModel } from '../../src/engine/load-model.ts';
import { plainPageTable, plainStep } from '../../src/engine/plain-step.ts';
import { ReferenceBackend } from '../../src/kernel/reference/reference.ts';
import { openModel } from '../../src/weights/open-model.ts';
import { embeddedModel } from './goldens.ts';
import { ModelFolder, oddSpec } from './models.ts';

const folder = new ModelFolder();
const backend = new ReferenceBackend();
afterAll(() => {
  folder.remove();
  backend.close();
});

function loaded(model: LoadOptions['model'], options: Omit<LoadOptions, 'model' | 'backend'> = {}) {
  return loadModel({ model, backend, ...options });
}

test('native keeps every stored type; another form converts all', () => {
  const path = folder.gguf(oddSpec, 'q4_1');
  expect(loaded(path).packedTypes).toEqual(['q4_1']);
  expect(loaded(path, { weights: 'q4' }).packedTypes).toEqual(['q4_1']);
  expect(loaded(path, { weights: 'q8' }).packedTypes).toEqual(['q8_0']);
  expect(loaded(path, { weights: 'bf16' }).packedTypes).toEqual(['bf16']);
  expect(loaded(path, { weights: 'f32' }).packedTypes).toEqual(['f32']);
  expect(loaded(folder.huggingFace(oddSpec, 'f16')).packedTypes).toEqual(['f16']);
  expect(loaded(folder.huggingFace(oddSpec, 'f16'), { weights: 'q4' }).packedTypes).toEqual(['q4_0', 'q8_0']);
});

test('inputs of integers serve quantised layers, bf16 the others; the KV is f32 only in the f32 form', () => {
  const path = folder.huggingFace(oddSpec, 'bf16');
  const formsOf = (options: Omit<LoadOptions, 'model' | 'backend'>) => {
    const { compiled, kv } = loaded(path, options);
    return { inputs: [...new Set(compiled.linears.map(({ inputs }) => inputs))], kv: kv.type };
  };
  expect(formsOf({ weights: 'q8', inputs: 'int8' })).toEqual({ inputs: ['int8'], kv: 'bf16' });
  expect(formsOf({ weights: 'q8', inputs: 'i16' })).toEqual({ inputs: ['i16'], kv: 'bf16' });
  expect(formsOf({ weights: 'native', inputs: 'i16' })).toEqual({ inputs: ['bf16'], kv: 'bf16' });
  expect(formsOf({ weights: 'native', inputs: 'int8' })).toEqual({ inputs: ['bf16'], kv: 'bf16' });
  expect(formsOf({ weights: 'q8', inputs: 'f32' })).toEqual({ inputs: ['f32'], kv: 'f32' });
  expect(formsOf({})).toEqual({ inputs: ['bf16'], kv: 'bf16' });
});

test('tied embeddings are packed once, and packed weights take the stored bytes', () => {
  const model = loaded(embeddedModel);
  const table = model.compiled.linears.filter(({ segments }) => segments[0].name === 'model.embed_tokens.weight');
  expect(table).toHaveLength(1);
  const files = openModel(embeddedModel);
  const matrices = [...files.tensors()].filter(({ shape }) => shape.length === 2);
  const stored = matrices.reduce((sum, { byteLength }) => sum + byteLength, 0);
  files.close();
  expect(model.linears.reduce((sum, linear) => sum + backend.linearBytes(linear), 0)).toBe(stored);
});

test('a head of its own in a model with tied embeddings is refused unless it equals the embeddings', () => {
  const path = folder.huggingFace({ ...oddSpec, tieEmbeddings: false }, 'f32');
  const file = join(path, 'config.json');
  const config = JSON.parse(readFileSync(file, 'utf8'));
  writeFileSync(file, JSON.stringify({ ...config, tie_word_embeddings: true }));
  expect(() => loaded(path)).toThrow(/it differs from model.embed_tokens.weight, but tie_word_embeddings is true/);
});

test('a tensor with a wrong shape or a missing tensor is an error of one line with file and tensor', () => {
  const path = folder.huggingFace(oddSpec, 'f32');
  const config = JSON.parse(readFileSync(join(path, 'config.json'), 'utf8'));
  writeFileSync(join(path, 'config.json'), JSON.stringify({ ...config, intermediate_size: 192 }));
  expect(() => loaded(path)).toThrow(
    /^Cannot read .*model\.safetensors: shape \[160, 96\] .*\[192, 96\].*gate_proj\.weight[^\n]*offset \d+\)$/,
  );
  writeFileSync(join(path, 'config.json'), JSON.stringify({ ...config, num_hidden_layers: 3 }));
  expect(() => loaded(path)).toThrow(/^Cannot read .*: the tensor is missing.*model\.layers\.2\.[^\n]*$/);
});

test('a context beyond the positions is refused, with both figures', () => {
  expect(() => loaded(embeddedModel, { context: 10_000 })).toThrow('context 10000 exceeds its maximum positions: 8192');
});

test('a pool too small for one block is refused, with figures', () => {
  const model = loaded(embeddedModel);
  const options = { model, backend, tokensMax: 8, logitRowsMax: 1 };
  expect(() => new Engine({ ...options, kvBytes: 5 * model.kv.pageBytes })).toThrow('hold 5 pages: 6 of 16384 bytes');
});

test('a set abort word ends a step before it is done, and the step can run again', () => {
  const model = loaded(embeddedModel, { context: 256 });
  const engine = new Engine({ model, backend, tokensMax: 8, logitRowsMax: 1, kvBytes: 2 ** 22 });
  const step = plainStep([{ tokens: [0, 5, 9], start: 0, blocks: [0], logits: 'last' }], plainPageTable(1, 6), 6);
  const abort = new Int32Array(1);
  const first = engine.run(step, abort);
  abort[0] = 1;
  expect(engine.run(step, abort)).toEqual({ kind: 'aborted' });
  abort[0] = 0;
  expect(engine.run(step, abort)).toEqual(first);
  engine.close();
});

test('a model worker shares all layers with an instance that computes attention, except the projections of q, k and v', () => {
  const whole = loaded(embeddedModel);
  const model = loaded(embeddedModel, { attention: 'workers', sharedWith: whole });
  const own = model.compiled.linears.filter((_, i) => !whole.linears.includes(model.linears[i]));
  const names = own.flatMap(({ segments }) => segments.map(({ name }) => name));
  // Q is a linear of its own, and K and V are one of two segments.
  expect(own).toHaveLength(2 * whole.config.layers);
  for (const name of names) expect(name).toMatch(/self_attn\.[qkv]_proj/);
  for (const [i, source] of model.compiled.linears.entries()) {
    const same = whole.linears.indexOf(model.linears[i]);
    if (same >= 0) expect(whole.compiled.linears[same]).toEqual(source);
  }
});
