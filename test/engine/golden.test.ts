// Engines against the golden outputs of the Hugging Face reference, per model, backend and form.
import { existsSync } from 'node:fs';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { Engine } from '../../src/engine/engine.ts';
import { freeModel, loadModel } from '../../src/engine/load-model.ts';
import type { Backend } from '../../src/kernel/backend.ts';
import { backends, type NamedBackend } from './backends.ts';
import { distance, type GoldenCase, goldenCases, sharedModels } from './goldens.ts';

interface GoldenModel {
  readonly folder: string;
  /** Largest distance of a log-probability with bf16 weights, inputs and KV. */
  readonly bf16Max: number;
}

const smallModels: readonly GoldenModel[] = [
  { folder: 'random/llama2-mha', bf16Max: 0.2 },
  { folder: 'random/llama3-rope', bf16Max: 0.8 },
  { folder: 'random/llama-linear', bf16Max: 0.2 },
  { folder: 'random/qwen2', bf16Max: 0.8 },
  { folder: 'random/qwen3', bf16Max: 0.2 },
];
const smol = 'SmolLM2-135M-Instruct';

function describeModel(
  folder: string,
  { name, create }: NamedBackend,
  body: (engineOf: (inputs: 'f32' | 'bf16') => Engine) => void,
): void {
  describe.skipIf(!existsSync(`${sharedModels}/${folder}`))(`${folder} (shared models) on ${name}`, () => {
    let backend: Backend;
    const closers: (() => void)[] = [];
    beforeAll(() => {
      backend = create(2);
    });
    afterAll(() => {
      for (const close of closers) close();
      backend.close();
    });
    body((inputs) => {
      const weights = folder === smol ? 'native' : inputs;
      const model = loadModel({
        model: `${sharedModels}/${folder}`,
        backend,
        weights,
        inputs,
        context: folder === smol ? 4096 : 2048,
      });
      const engine = new Engine({ model, backend, tokensMax: 512, logitRowsMax: 1, kvBytes: 2 ** 28 });
      closers.push(() => {
        engine.close();
        freeModel(model, backend);
      });
      return engine;
    });
  });
}

function compare(
  engine: Engine,
  cases: readonly GoldenCase[],
  logprobMax: number,
  sameTokens: boolean,
  tokens?: number,
): void {
  for (const golden of cases) {
    const found = distance(engine, golden, tokens);
    expect(found.logprob, golden.name).toBeLessThan(logprobMax);
    if (sameTokens) expect(found.differsAt, golden.name).toBeUndefined();
  }
}

for (const backend of backends) {
  for (const { folder, bf16Max } of smallModels) {
    describeModel(folder, backend, (engineOf) => {
      test('f32: the same tokens, log-probabilities within 1e-3', () => {
        compare(engineOf('f32'), goldenCases(folder), 1e-3, true);
      });
      test(`bf16 weights, inputs and KV: log-probabilities within ${bf16Max}`, () => {
        compare(engineOf('bf16'), goldenCases(folder), bf16Max, false);
      });
    });
  }
  describeModel(smol, backend, (engineOf) => {
    // All prompts on the best backend; the slower ones run short prompts, the oracle the shortest.
    const promptMax = backend === backends.at(-1) ? 4096 : backend.native ? 20 : 15;
    const cases = () => goldenCases(smol).filter(({ prompt }) => prompt.length <= promptMax);
    const tokens = backend.native ? undefined : 2;
    test('f32: the same tokens, log-probabilities within 1e-3', () => {
      compare(engineOf('f32'), cases(), 1e-3, true, tokens);
    });
    test('bf16 inputs and KV: log-probabilities within 0.2', () => {
      compare(engineOf('bf16'), cases(), 0.2, false, tokens);
    });
  });
}
