// The sparsity bench: generated prompts, scores, chosen keys, and its rows on the embedded model.
import { afterAll, describe, expect, test } from 'vitest';
import { benchSparsity, profileSparsity, type SparsityBenchOptions } from '../../../src/bench/sparsity/bench.ts';
import { parseChoices } from '../../../src/bench/sparsity/choices.ts';
import { positionRange, topIndices, weightSums } from '../../../src/bench/sparsity/key-scores.ts';
import { LayeredModel } from '../../../src/bench/sparsity/layered-model.ts';
import { SparseSequence } from '../../../src/bench/sparsity/methods.ts';
import { recallPlot } from '../../../src/bench/sparsity/plot.ts';
import { concentration, profileOf, valuesForMass } from '../../../src/bench/sparsity/profile.ts';
import { fillerText, type RecallTask, recallCase, recallTasks } from '../../../src/bench/sparsity/recall.ts';
import { isGreedy, logLikelihood, perplexityScore } from '../../../src/bench/sparsity/scoring.ts';
import { attendChosen, chooseKept, keepRandom, keepWindow } from '../../../src/bench/sparsity/sparse-attention.ts';
import { freeModel, loadModel } from '../../../src/engine/load-model.ts';
import { textOf } from '../../../src/engine/model-text.ts';
import { openModel } from '../../../src/weights/open-model.ts';
import { backends } from '../../engine/backends.ts';
import { embeddedModel } from '../../engine/goldens.ts';

const [fastest] = backends.slice(-1);
const backend = fastest.create(2);
const files = openModel(`${embeddedModel}/kvasir-tiny-q8_0.gguf`);
afterAll(() => {
  backend.close();
  files.close();
});

describe('prompts', () => {
  const countTokens = (text: string) => text.split(' ').length;
  const request = (task: RecallTask, depth: number | undefined, seed = 1) =>
    recallCase({ task, depth, tokens: 300, seed, index: 2, countTokens });

  test.each(recallTasks)('%s: the same for one seed, other ones for another, and within the length', (task) => {
    expect(request(task, 50)).toEqual(request(task, 50));
    expect(request(task, 50).prompt).not.toBe(request(task, 50, 2).prompt);
    expect(countTokens(request(task, 50).prompt)).toBeLessThanOrEqual(300);
    expect(countTokens(request(task, 50).prompt)).toBeGreaterThan(250);
  });

  test.each([0, 50, 100])('a fact is at depth %i', (depth) => {
    const { prompt, parts } = request('single', depth);
    const text = prompt.slice(0, prompt.indexOf('\n\nQuestion'));
    const at = text.indexOf(`is${parts[0].answer}.`);
    expect((100 * at) / text.length).toBeGreaterThan(depth - 15);
    expect((100 * at) / text.length).toBeLessThan(depth + 15);
  });

  test('multi-key has another code, and multi-value asks for two values of one key', () => {
    expect(request('multi-key', 50).prompt.match(/Remember: the code for/g)).toHaveLength(2);
    const { prompt, parts } = request('multi-value', 50);
    expect(parts).toHaveLength(2);
    for (const { answer } of parts) expect(prompt).toContain(`is${answer}.`);
  });

  test('variables name the value of the first only once', () => {
    const { prompt, parts } = request('variables', 50);
    expect(prompt.split(parts[0].answer)).toHaveLength(2);
  });

  test('the most common word occurs more often than each other choice', () => {
    for (const task of ['common-words', 'frequent-words'] as const) {
      const { prompt, parts } = request(task, undefined);
      const times = (word: string) => prompt.split(' ').filter((other) => ` ${other}` === word).length;
      const [{ answer, others }] = parts;
      expect(others).toHaveLength(3);
      expect(others).not.toContain(answer);
      for (const other of others) expect(times(answer)).toBeGreaterThan(2 * times(other));
    }
  });

  test('filler has the requested length', () => {
    const length = countTokens(fillerText(3, 500, countTokens));
    expect(length).toBeGreaterThan(400);
    expect(fillerText(3, 500, countTokens)).toBe(fillerText(3, 500, countTokens));
  });
});

describe('scores', () => {
  const logits = Float32Array.of(0, Math.log(3), 0, /**/ 5, 0, 0, /**/ 0, 0, 9);
  const predictions = { logits, vocabulary: 3 };

  test('log-likelihood and greedy match of a part of a continuation', () => {
    expect(logLikelihood(predictions, [7, 1], 1)).toBeCloseTo(Math.log(3 / 5), 6);
    expect(logLikelihood(predictions, [7, 1, 0], 1, 2)).toBeCloseTo(Math.log(3 / 5), 6);
    expect(isGreedy(predictions, [7, 1, 0, 2], 1)).toBe(true);
    expect(isGreedy(predictions, [7, 1, 1, 2], 1)).toBe(false);
    expect(isGreedy(predictions, [7, 2, 0, 2], 2)).toBe(true);
  });

  test('a perplexity twice that of the full model is 50', () => {
    expect(perplexityScore(-10, -10 - 5 * Math.log(2), 5)).toBeCloseTo(50, 9);
    expect(perplexityScore(-10, -10, 5)).toBe(100);
  });

  test('choices are read line by line, and a wrong line is named', () => {
    const line = '{"prompt":"a","choices":[" b"," c"],"answer":1}';
    expect(parseChoices(`${line}\n\n`)).toEqual([{ prompt: 'a', choices: [' b', ' c'], answer: 1 }]);
    expect(() => parseChoices(`${line}\nno`)).toThrow('Cannot read choices: line 2: not JSON');
    expect(() => parseChoices(line.replace('1}', '2}'))).toThrow('line 1: answer is not an index of choices');
  });
});

describe('chosen keys', () => {
  const op = { heads: 2, kvHeads: 1, headDim: 1, scale: 1, softcap: undefined, window: undefined };
  const keys = { keys: [Float32Array.of(0, Math.log(2), 0, 0)], values: [new Float32Array(4)] };
  const queries = { op, start: 2, rows: 2, query: Float32Array.of(1, 0, 1, 0) };

  test('weights are causal, and summed over rows', () => {
    const [first, second] = weightSums(queries, keys);
    expect([...first]).toEqual(
      [1 / 4 + 1 / 5, 2 / 4 + 2 / 5, 1 / 4 + 1 / 5, 1 / 5].map((value) => expect.closeTo(value)),
    );
    expect([...second].map((value) => Number(value.toFixed(6)))).toEqual([0.583333, 0.583333, 0.583333, 0.25]);
  });

  test('of equal scores the earliest are taken', () => {
    expect([...topIndices([1, 2, 1, 2, 1], 3)]).toEqual([0, 1, 3]);
    expect([...topIndices([1, 2], 5)]).toEqual([0, 1]);
  });

  test('window and random keep their budget, the recent tokens included', () => {
    expect(keepWindow(10, 3, 2).map((kept) => [...kept])).toEqual([
      [7, 8, 9],
      [7, 8, 9],
    ]);
    const random = (seed: number) => keepRandom({ promptTokens: 40, budget: 9, recent: 2, kvHeads: 2, seed, layer: 1 });
    expect(random(1)).toEqual(random(1));
    expect(random(1)).not.toEqual(random(2));
    for (const kept of random(1)) {
      expect(new Set(kept).size).toBe(9);
      expect([...kept.slice(-2)]).toEqual([38, 39]);
    }
  });
});

describe('profile', () => {
  test('concentration and keys for a mass, of descending weights', () => {
    const sorted = Float64Array.of(5, 2, 1, 1, 1);
    expect(concentration(sorted, 0.05)).toBe(0.5);
    expect(concentration(sorted, 0.4)).toBeCloseTo(0.7);
    expect(valuesForMass(sorted, 0.7)).toBe(2);
    expect(valuesForMass(sorted, 0.71)).toBe(3);
  });

  test('the first layers that need more keys than the mean stay full', () => {
    const even = () => new Float64Array(20).fill(1);
    const sharp = (position: number) => new Float64Array(20).fill(0.001).fill(9, position, position + 1);
    const profile = profileOf(
      [
        [
          [even(), even()],
          [sharp(4), sharp(7)],
          [sharp(4), sharp(4)],
        ],
      ],
      0.9,
    );
    expect(profile).toMatchObject({ fullLayers: 1, budgets: [5, 5] });
    expect(profile.layers[0]).toMatchObject({ top5: 5, top10: 10, top25: 25, needed: 90 });
    expect(profile.layers[1].positions.slice(0, 2)).toEqual([4, 7]);
    expect(profile.heads).toHaveLength(6);
    expect(profile.heads[3]).toMatchObject({ layer: 1, head: 1, top5: 99.8, positions: [7, 0, 1, 2, 3] });
  });
});

test('a plot has a line for each method, by budget and by depth', () => {
  const row = (method: 'full' | 'quest', budget: number, depth: number, score: number) =>
    ({ method, budget, kept: budget, task: 'single', depth, score, cases: 1 }) as const;
  const rows = [row('full', 100, 0, 100), row('quest', 25, 0, 80), row('quest', 25, 50, 40), row('quest', 12, 50, 20)];
  const svg = recallPlot(rows, 25) ?? '';
  expect(svg.match(/<polyline/g)).toHaveLength(4);
  // By budget: 12 % has 20, and 25 % has the mean of 80 and 40.
  expect(svg).toContain('points="97.8,304.8 143.0,170.4"');
  expect(recallPlot([{ ...row('full', 100, 0, 100), task: 'perplexity' }], 25)).toBeUndefined();
});

describe('layer by layer', () => {
  const loaded = loadModel({ model: files, backend, context: 160 });
  const model = new LayeredModel(loaded, backend, 64, 160);
  const prompt = Array.from({ length: 100 }, (_, i) => 300 + ((i * i * 37) % 1500));
  const next = [305, 306, 307];
  afterAll(() => {
    model.close();
    freeModel(loaded, backend);
  });

  test('a model has the bits of the engine', () => {
    model.prefill(prompt);
    const expected = model.logits(next, prompt.length);
    const layers: number[] = [];
    const given = model.run(next, prompt.length, ({ layer }) => {
      layers.push(layer);
      return undefined;
    });
    expect(given).toEqual(expected);
    expect(layers).toEqual([0, 1, 2, 3, 4, 5]);
  });

  test('attention over all keys, chosen one by one, is that of the engine', () => {
    model.prefill(prompt);
    const expected = model.logits(next, prompt.length);
    const given = model.run(next, prompt.length, (call) => {
      const empty = () => Array.from({ length: call.op.kvHeads }, () => new Float32Array(160 * call.op.headDim));
      const keys = { keys: empty(), values: empty() };
      model.readKeys(call.layer, 0, prompt.length + next.length, keys);
      const all = Array.from({ length: call.op.kvHeads }, () => positionRange(0, prompt.length - 1));
      return attendChosen(call, keys, prompt.length, chooseKept(all));
    });
    for (let i = 0; i < expected.length; i += 31) expect(Math.abs(given[i] - expected[i])).toBeLessThan(0.2);
  });

  test('eviction while tokens follow changes predictions, which are the same each time', () => {
    const rules = { observed: 16, recent: 8, pooling: { kind: 'max', width: 5 }, headReduce: 'max' } as const;
    const predict = (eviction: 'none' | number) => {
      const sequence = new SparseSequence(
        model,
        { ...rules, eviction, topP: 1, fullLayers: undefined, seed: 0 },
        prompt,
        40,
      );
      const tokens = Array.from({ length: 40 }, (_, i) => 400 + i);
      const uniform = { method: 'uniform', budget: 0.3 } as const;
      const first = sequence.predict(uniform, tokens).logits;
      expect(sequence.predict({ method: 'pyramid', budget: 0.5 }, tokens).logits).not.toEqual(first);
      expect(sequence.predict(uniform, tokens).logits).toEqual(first);
      return first;
    };
    const [keep, replace, compact] = [predict('none'), predict(0), predict(32)];
    expect(replace).not.toEqual(keep);
    expect(compact).not.toEqual(keep);
    expect(compact).not.toEqual(replace);
  });
});

describe('on the embedded model', () => {
  const tokenizer = textOf(files)?.tokenizer;
  if (tokenizer === undefined) throw new Error('the embedded model has a tokenizer');
  const options: SparsityBenchOptions = {
    ...{ files, tokenizer, inputs: 'bf16', seed: 3, tokens: 160, cases: 1, continuation: 6, text: undefined },
    ...{ methods: ['full'], budgets: [0.25], tasks: ['needle'], recallTasks: ['single'], depths: [50], choices: [] },
    ...{ observed: 32, recent: 8, fullLayers: undefined, pooling: { kind: 'max', width: 7 }, headReduce: 'mean' },
    eviction: 'none',
    topP: 1,
    onProgress: () => undefined,
  };

  test('methods that read the keys of the needle find it; the recent window alone does not', () => {
    const methods = ['full', 'oracle', 'window'] as const;
    const { rows } = benchSparsity(backend, { ...options, methods });
    expect(rows).toEqual([
      { method: 'full', budget: 100, kept: 100, task: 'single', depth: 50, score: 100, cases: 1 },
      { method: 'oracle', budget: 25, kept: expect.closeTo(25, 0), task: 'single', depth: 50, score: 100, cases: 1 },
      { method: 'window', budget: 25, kept: expect.closeTo(25, 0), task: 'single', depth: 50, score: 0, cases: 1 },
    ]);
  });

  test('every method with the whole budget has the scores of the full model', () => {
    const methods = ['full', 'uniform', 'pyramid', 'first-n', 'quest', 'window', 'random', 'oracle'] as const;
    const { rows } = benchSparsity(backend, { ...options, methods, budgets: [1], tasks: ['perplexity', 'agreement'] });
    expect(rows).toHaveLength(16);
    for (const { score, kept } of rows) expect([score, kept]).toEqual([100, 100]);
  });

  test('quest reads fewer pages where their bounds reach a smaller mass', () => {
    const quest = { ...options, methods: ['quest'] as const, budgets: [1], tasks: ['agreement'] as const };
    const kl = (topP: number) => benchSparsity(backend, { ...quest, topP }).rows[0].kl;
    expect(kl(1)).toBe(0);
    expect(kl(0.01)).toBeGreaterThan(0);
  });

  test('first-n keeps the first layers whole', () => {
    const { rows } = benchSparsity(backend, { ...options, methods: ['first-n'], fullLayers: 2 });
    expect(rows[0].kept).toBeCloseTo((100 * (2 + 4 * 0.25)) / 6, 0);
  });

  test('rules of scoring are compared on the same prompts, each with a row of the same scores as alone', () => {
    const rule = (observed: number, width: number, headReduce: 'max' | 'mean') => {
      return { observed, recent: 16, pooling: { kind: 'max' as const, width }, headReduce };
    };
    const selections = [rule(8, 11, 'max'), rule(64, 5, 'mean')];
    const methods = ['uniform', 'window'] as const;
    const tasks = ['agreement'] as const;
    const { rows } = benchSparsity(backend, { ...options, methods, tasks, selections });
    expect(rows).toMatchObject([
      { method: 'uniform', observe: 8, pooling: 'max:11', headReduce: 'max' },
      { method: 'uniform', observe: 64, pooling: 'max:5', headReduce: 'mean' },
      { method: 'window' },
    ]);
    for (const [i, selection] of selections.entries()) {
      const alone = benchSparsity(backend, { ...options, methods: ['uniform'], tasks, ...selection }).rows[0];
      expect(rows[i]).toMatchObject({ kl: alone.kl, score: alone.score });
    }
    expect(rows[0].kl).not.toBe(rows[1].kl);
  });

  test('choices are answered by likelihood', () => {
    const facts =
      'Remember: the code for fox is 4821.\n\nQuestion: What is the code for fox?\nAnswer: The code for fox is';
    const choices = [{ prompt: facts, choices: [' 1234', ' 4821', ' 9999'], answer: 1 }];
    const { rows } = benchSparsity(backend, { ...options, tasks: ['choice'], choices });
    expect(rows).toEqual([
      { method: 'full', budget: 100, kept: 100, task: 'choice', depth: null, score: 100, cases: 1 },
    ]);
  });

  test('a profile has a row for each layer and head', () => {
    const profile = profileSparsity(backend, { ...options, cases: 2, tokens: 64 }, 0.9);
    expect(profile).toMatchObject({ promptTokens: 64, prompts: 2 });
    expect(profile.layers).toHaveLength(6);
    expect(profile.heads).toHaveLength(24);
    expect(profile.budgets).toHaveLength(6 - profile.fullLayers);
    for (const { top5, top10, top25 } of profile.heads) expect(top5 <= top10 && top10 <= top25).toBe(true);
  });

  test('a prompt beyond the context is refused with the figures', () => {
    const choices = [{ prompt: 'word '.repeat(400), choices: [' a', ' b'], answer: 0 }];
    expect(() => benchSparsity(backend, { ...options, tasks: ['choice'], choices })).toThrow(
      /Cannot measure a prompt of \d+ tokens and \d after it: the context is 288/,
    );
  });
});
