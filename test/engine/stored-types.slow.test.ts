// A model with layers of K types, five-bit types and floats, as in quantised files: every instruction set against the
// reference backend.
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { Engine } from '../../src/engine/engine.ts';
import { freeModel, loadModel } from '../../src/engine/load-model.ts';
import type { InputForm } from '../../src/graph/program.ts';
import type { Backend } from '../../src/kernel/backend.ts';
import { ReferenceBackend } from '../../src/kernel/reference/reference.ts';
import type { TensorType } from '../../src/weights/types.ts';
import { ggufMetadata, ggufTensors, tinySpec } from '../weights/random-model.ts';
import { writeGguf } from '../weights/writers.ts';
import { nativeBackends } from './backends.ts';
import { ModelFolder } from './models.ts';
import { blocksFor, chunksOf, Player, sameBits, someTokens } from './play.ts';

const spec = {
  ...tinySpec,
  vocabSize: 80,
  hiddenSize: 256,
  intermediateSize: 512,
  heads: 4,
  kvHeads: 2,
  headDim: 64,
};

/** Types of the first layer and the second; q, k and v are segments of one linear layer, gate and up of another. */
const types: Readonly<Record<string, readonly [TensorType, TensorType]>> = {
  q_proj: ['q4_k', 'q5_0'],
  k_proj: ['q4_k', 'q8_0'],
  v_proj: ['q6_k', 'f16'],
  o_proj: ['q3_k', 'q4_k'],
  gate_proj: ['q2_k', 'q5_k'],
  up_proj: ['q5_1', 'q4_0'],
  down_proj: ['q6_k', 'q2_k'],
};

function typeOf(name: string): TensorType {
  const [, layer, matrix] = /layers\.(\d)\..*?(\w+)\.weight$/.exec(name) ?? [];
  return types[matrix ?? '']?.[layer === '0' ? 0 : 1] ?? 'q6_k';
}

const prompt = someTokens(45, spec.vocabSize, 5);
const folder = new ModelFolder();
const path = join(folder.path, 'mixed.gguf');
beforeAll(() => {
  writeFileSync(path, writeGguf({ metadata: ggufMetadata(spec), tensors: ggufTensors(spec, typeOf) }));
});
afterAll(() => folder.remove());

/** Logit bits of every row of the prompt, prefilled in chunks of each of the sizes. */
function logitsOf(backend: Backend, inputs: InputForm, chunkSizes: readonly number[]): Uint32Array[][] {
  const model = loadModel({ model: path, backend, inputs });
  const engine = new Engine({ model, backend, tokensMax: 64, logitRowsMax: 64, kvBytes: 2 ** 22 });
  try {
    const blocks = blocksFor(prompt.length, 0);
    return chunkSizes.map((size) => {
      const player = new Player(engine);
      return chunksOf(prompt, 0, [size]).flatMap((chunk) => player.step([{ ...chunk, blocks, logits: 'all' }]).rows);
    });
  } finally {
    engine.close();
    freeModel(model, backend);
  }
}

const values = (rows: readonly Uint32Array[]): number[] =>
  rows.flatMap((row) => [...new Float32Array(row.buffer, row.byteOffset, row.length)]);

describe.each(nativeBackends)('a file of mixed types on $name', ({ create }) => {
  test.each([
    ['f32', 1e-3],
    ['bf16', 0.15],
    ['i16', 0.15],
    ['int8', 0.3],
  ] as const)('%s inputs: the logits of the oracle, the same bits in any chunks', (inputs, bound) => {
    const backend = create(2);
    const oracle = new ReferenceBackend();
    const [whole, sevens, ones] = logitsOf(backend, inputs, [64, 7, 1]);
    const [wanted] = logitsOf(oracle, inputs, [64]).map(values);
    const worst = values(whole).reduce((most, value, i) => Math.max(most, Math.abs(value - wanted[i])), 0);
    expect(worst).toBeLessThan(bound);
    expect(sameBits(whole, sevens)).toBe(true);
    expect(sameBits(whole, ones)).toBe(true);
    backend.close();
  });
});
