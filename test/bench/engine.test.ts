// The engine and accuracy benches on small models and the reference backend: their reports, not their speed.
import { afterAll, beforeAll, expect, test } from 'vitest';
import { benchAccuracy } from '../../src/bench/accuracy.ts';
import { benchEngine, EngineBench } from '../../src/bench/engine.ts';
import { ReferenceBackend } from '../../src/kernel/reference/reference.ts';
import { createModelText } from '../../src/text/model-text.ts';
import { openModel } from '../../src/weights/open-model.ts';
import { ModelFolder, oddSpec } from '../engine/models.ts';

const tiny = 'models/kvasir-tiny/kvasir-tiny-q8_0.gguf';
const folder = new ModelFolder();
const backend = new ReferenceBackend();
let model = '';

beforeAll(() => {
  model = folder.gguf({ ...oddSpec, maxPositions: 64 }, 'q4_0');
});
afterAll(() => folder.remove());

test('a row for each depth and batch, in order, with rates that follow from the times', () => {
  const lines: string[] = [];
  const report = benchEngine(backend, {
    model,
    weights: 'native',
    inputs: 'int8',
    prompt: 9,
    generate: 2,
    batch: [1, 3],
    depth: [0, 33],
    repeats: 2,
    onProgress: (line) => lines.push(line),
  });
  expect(report).toMatchObject({ isa: 'reference', threads: 1, weights: 'native', inputs: 'int8' });
  expect(report.weightsBytes).toBeGreaterThan(0);
  expect(report.prefill.tokens).toBe(9);
  expect(report.prefill.tokensPerSecond / (9000 / report.prefill.ms)).toBeCloseTo(1, 1);
  expect(report.decode.map(({ batch, depth }) => [batch, depth])).toEqual([
    [1, 0],
    [3, 0],
    [1, 33],
    [3, 33],
  ]);
  for (const { batch, msPerStep, tokensPerSecond } of report.decode) {
    expect(tokensPerSecond / ((1000 * batch) / msPerStep)).toBeCloseTo(1, 1);
  }
  expect(lines).toHaveLength(5);
});

test('one time for each requested step', () => {
  const bench = new EngineBench(backend, { model, weights: 'f32', inputs: 'f32' });
  expect(bench.prefill(3, 4)).toHaveLength(4);
  expect(bench.decode(2, 5, 3)).toHaveLength(3);
  bench.close();
});

test('a depth past the model is refused with both figures', () => {
  const bench = new EngineBench(backend, { model, weights: 'native', inputs: 'bf16' });
  expect(() => bench.decode(1, 62, 2)).toThrow(/a row needs 65 positions, model .* has 64/);
  bench.close();
});

test('costs of a step: weights once, the head for rows with logits, keys and values of every sequence', () => {
  const bench = new EngineBench(backend, { model, weights: 'f32', inputs: 'f32' });
  const { hiddenSize, heads, kvHeads, headDim, intermediateSize, layers, vocabSize } = oddSpec;
  const layer = hiddenSize * ((2 * heads + 2 * kvHeads) * headDim + 3 * intermediateSize);
  const head = hiddenSize * vocabSize;
  const page = (tokens: number): number => 2 * kvHeads * headDim * 4 * tokens * layers;
  expect(bench.decodeCost(3, 9)).toEqual({
    operations: 3 * (2 * (layers * layer + head) + 4 * 10 * heads * headDim * layers),
    bytes: 4 * (layers * layer + head) + page(3 * 10),
  });
  expect(bench.prefillCost(5)).toEqual({
    operations: 2 * (5 * layers * layer + head) + 4 * 15 * heads * headDim * layers,
    bytes: 4 * (layers * layer + head) + page(5),
  });
  bench.close();
});

test('accuracy: the float32 form has no divergence from itself, and rounded inputs have some', () => {
  const files = openModel(tiny);
  if (files.tokenizer === undefined) throw new Error('the embedded model has a tokenizer');
  const report = benchAccuracy(backend, {
    files,
    tokenizer: createModelText(files.tokenizer).tokenizer,
    text: 'Once upon a time a fox found a lantern in the forest.',
    tokens: 8,
    forms: [
      { weights: 'native', inputs: 'f32' },
      { weights: 'native', inputs: 'int8' },
    ],
  });
  files.close();
  expect(report.tokens).toBe(8);
  expect(report.rows[0]).toMatchObject({ weights: 'native', inputs: 'f32', meanKl: 0, sameTop: 1 });
  expect(report.rows[1]?.meanKl).toBeGreaterThan(0);
  expect(report.rows[1]?.meanKl).toBeLessThan(0.1);
});
