// Accuracy figures: 0 for the baseline itself, ordered by form, and equal to a direct computation.
import { afterAll, expect, test } from 'vitest';
import { accuracyBaseline, measureAccuracy } from '../../src/engine/accuracy.ts';
import { Engine } from '../../src/engine/engine.ts';
import { loadModel } from '../../src/engine/load-model.ts';
import { backends } from './backends.ts';
import { embeddedModel, forcedSteps, logprobsAt, tinyGoldens } from './goldens.ts';

const [fastest] = backends.slice(-1);
const backend = fastest.create(2);
afterAll(() => {
  backend.close();
});

const text = [...tinyGoldens()[3].prompt, ...tinyGoldens()[3].greedy].slice(0, 70);

test('the baseline has distance 0 from itself, and coarser inputs have a larger one', () => {
  const forms = [
    accuracyBaseline,
    { weights: 'native', inputs: 'bf16' },
    { weights: 'native', inputs: 'int8' },
  ] as const;
  const [baseline, bf16, int8] = measureAccuracy({ model: embeddedModel, backend, tokens: text, forms, blockRows: 32 });
  expect(baseline).toMatchObject({ weights: 'native', inputs: 'f32', meanKl: 0, sameTop: 1 });
  expect(bf16.meanKl).toBeGreaterThan(0);
  expect(int8.meanKl).toBeGreaterThan(bf16.meanKl);
  expect(int8.meanKl).toBeLessThan(0.05);
  expect(bf16.sameTop).toBeGreaterThan(0.9);
});

test('perplexity follows from the log-probabilities of the next tokens, at any block size', () => {
  const tokens = text.slice(0, 20);
  const model = loadModel({ model: embeddedModel, backend, inputs: 'f32', context: 64 });
  const engine = new Engine({ model, backend, tokensMax: 8, logitRowsMax: 1, kvBytes: 2 ** 22 });
  const steps = [...forcedSteps(engine, tokens.slice(0, 1), tokens.slice(1))];
  const loss = steps.reduce((sum, { logits }, i) => sum - logprobsAt(logits, [tokens[i + 1]])[0], 0);
  engine.close();
  for (const blockRows of [7, 64]) {
    const [row] = measureAccuracy({ model: embeddedModel, backend, tokens, forms: [accuracyBaseline], blockRows });
    expect(row.perplexity).toBeCloseTo(Math.exp(loss / 19), 9);
  }
});

test('refuses a text of one token', () => {
  expect(() => measureAccuracy({ model: embeddedModel, backend, tokens: [1], forms: [] })).toThrow(
    'the text has 1 tokens: 2 required',
  );
});
