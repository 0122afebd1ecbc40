// Sampling: the same tokens as the reference, log-probabilities of the raw logits, and rows that do not affect each
// other.
import fc from 'fast-check';
import { expect, test } from 'vitest';
import type { Backend } from '../../src/kernel/backend.ts';
import { ReferenceBackend } from '../../src/kernel/reference/reference.ts';
import {
  maskWords,
  rowFailures,
  type Step,
  type StepResult,
  type StepSampling,
  type TokenMasks,
  topLogprobsMax,
} from '../../src/util/step.ts';
import { rowsStep } from './backend-ops.ts';
import { expectClose, expectSameBits, numbers, play, resultOf, type Scene } from './scene.ts';

const oracle = new ReferenceBackend();
// Float32 and float64 sums draw different tokens once in a million draws: a fixed seed avoids random failures.
const fixed = { seed: 20_240_817, numRuns: 60 };

interface RowOptions {
  readonly temperature: number;
  readonly topP: number;
  readonly topK: number;
  readonly minP: number;
  readonly repetition: number;
  readonly frequency: number;
  readonly presence: number;
  readonly seen: readonly { readonly token: number; readonly count: number }[];
  readonly biases: readonly { readonly token: number; readonly value: number }[];
  readonly top: number;
  readonly target: number | undefined;
  readonly seed: number;
  /** One in so many tokens is allowed; undefined: the row has no mask. */
  readonly allowedOneIn: number | undefined;
}

const token = fc.nat({ max: 1_000_000 });
const rowOptions: fc.Arbitrary<RowOptions> = fc.record({
  temperature: fc.constantFrom(0, 0.3, 0.7, 1, 1, 1.5),
  topP: fc.constantFrom(1, 1, 0.1, 0.5, 0.9, 0.97),
  topK: fc.constantFrom(0, 0, 1, 5, 40, 1000),
  minP: fc.constantFrom(0, 0, 0.02, 0.3),
  repetition: fc.constantFrom(1, 1.1, 1.7),
  frequency: fc.constantFrom(0, 0.4, -0.3),
  presence: fc.constantFrom(0, 0.6),
  seen: fc.array(fc.record({ token, count: fc.nat({ max: 3 }) }), { maxLength: 12 }),
  biases: fc.array(fc.record({ token, value: fc.integer({ min: -90, max: 90 }).map((value) => value / 9) }), {
    maxLength: 4,
  }),
  top: fc.constantFrom(0, 1, 7, topLogprobsMax),
  target: fc.option(token, { nil: undefined, freq: 6 }),
  seed: fc.nat(),
  allowedOneIn: fc.option(fc.constantFrom(1, 2, 50, 100_000), { nil: undefined }),
});

const offsets = (counts: readonly number[]): Int32Array =>
  Int32Array.from([0, ...counts].map((_, i, all) => all.slice(0, i + 1).reduce((sum, count) => sum + count, 0)));

/** Distinct tokens: a token listed twice would be penalised twice. */
function distinct<T extends { readonly token: number }>(entries: readonly T[], vocabulary: number): T[] {
  const seen = new Map(
    entries.map((entry) => [entry.token % vocabulary, { ...entry, token: entry.token % vocabulary }]),
  );
  return [...seen.values()];
}

function samplingOf(rows: readonly RowOptions[], vocabulary: number): StepSampling {
  const seen = rows.map((row) => distinct(row.seen, vocabulary));
  const biases = rows.map((row) => distinct(row.biases, vocabulary));
  const float = (of: (row: RowOptions) => number) => Float32Array.from(rows, of);
  return {
    temperature: float((row) => row.temperature),
    topP: float((row) => row.topP),
    topK: Int32Array.from(rows, (row) => row.topK),
    minP: float((row) => row.minP),
    seed: Uint32Array.from(rows.flatMap((row) => [row.seed, row.seed * 31])),
    tokenIndex: Uint32Array.from(rows, (row) => row.seed % 77),
    repetitionPenalty: float((row) => row.repetition),
    frequencyPenalty: float((row) => row.frequency),
    presencePenalty: float((row) => row.presence),
    seenStart: offsets(seen.map((list) => list.length)),
    seenTokens: Int32Array.from(seen.flat(), (entry) => entry.token),
    seenCounts: Int32Array.from(seen.flat(), (entry) => entry.count),
    biasStart: offsets(biases.map((list) => list.length)),
    biasTokens: Int32Array.from(biases.flat(), (entry) => entry.token),
    biasValues: Float32Array.from(biases.flat(), (entry) => entry.value),
    topLogprobs: Int32Array.from(rows, (row) => row.top),
    hasTarget: Uint8Array.from(rows, (row) => (row.target === undefined ? 0 : 1)),
    target: Int32Array.from(rows, (row) => (row.target ?? 0) % vocabulary),
    ...(rows.some((row) => row.allowedOneIn !== undefined) && { masks: masksOf(rows, vocabulary) }),
  };
}

/** Random masks; a row may have none, or one that allows no token. */
function masksOf(rows: readonly RowOptions[], vocabulary: number): TokenMasks {
  const all = rows.map((row) => [...new Uint32Array(row.allowedOneIn === undefined ? 0 : maskWords(vocabulary))]);
  for (const [i, { allowedOneIn: oneIn, seed }] of rows.entries())
    for (let id = 0; oneIn !== undefined && id < vocabulary; id++)
      if (Math.imul(id + 1, 0x9e3779b1 + 2 * (seed % 1000)) % oneIn === 0) all[i][id >> 5] |= 1 << (id & 31);
  return { start: offsets(all.map((words) => words.length)), words: Uint32Array.from(all.flat()) };
}

function samplingScene(logits: Float32Array, sampling: StepSampling): Scene {
  const rows = sampling.temperature.length;
  const step: Step = { ...rowsStep(rows, 'all'), sampling };
  return {
    buffers: [{ rows: 'logit', columns: logits.length / rows, kind: 'f32' }],
    ops: [],
    logits: 0,
    inputs: new Map([[0, logits]]),
    step,
    kv: { kvHeads: 1, headDim: 1, pages: step.groups[0].blocks.length },
  };
}

const sample = (backend: Backend, logits: Float32Array, sampling: StepSampling): StepResult =>
  resultOf(play(backend, samplingScene(logits, sampling), {}));

/** Logits of a peaked or a flat distribution. */
const logitsOf = (seed: number, count: number): Float32Array =>
  numbers(seed, count).map((value) => (seed % 2 === 0 ? 3 * value : 14 * value ** 3));

function expectSameResult(
  got: StepResult,
  wanted: StepResult,
  options: readonly RowOptions[],
  vocabulary: number,
): void {
  expect(got.failed).toEqual(wanted.failed);
  for (const [row, failure] of wanted.failed.entries()) {
    if (failure === 0) expect(got.tokens[row]).toBe(wanted.tokens[row]);
    else got.logprobs[row] = wanted.logprobs[row];
  }
  expectClose(got.logprobs, wanted.logprobs, (i) => 2e-6 * (1 + Math.abs(wanted.logprobs[i])), 'logprobs');
  for (const [row, { top }] of options.entries()) {
    if (wanted.failed[row] !== 0) continue;
    const from = row * topLogprobsMax;
    const to = from + Math.min(top, vocabulary);
    expect(got.topTokens.slice(from, to)).toEqual(wanted.topTokens.slice(from, to));
    const values = wanted.topLogprobs.slice(from, to);
    expectClose(got.topLogprobs.slice(from, to), values, (i) => 2e-6 * (1 + Math.abs(values[i])), 'topLogprobs');
  }
}

export function testSampling(backend: Backend): void {
  test('samples the same tokens as the reference', () => {
    const vocabularies = fc.oneof(fc.integer({ min: 1, max: 40 }), fc.integer({ min: 41, max: 5000 }));
    const rows = fc.array(rowOptions, { minLength: 1, maxLength: 6 });
    fc.assert(
      fc.property(vocabularies, rows, fc.nat(), (vocabulary, options, seed) => {
        const logits = logitsOf(seed, vocabulary * options.length);
        const sampling = samplingOf(options, vocabulary);
        const wanted = sample(oracle, logits, sampling);
        expectSameResult(sample(backend, logits, sampling), wanted, options, vocabulary);
      }),
      fixed,
    );
  });

  test('a row draws the same token alone and in a batch, and a failed row does not affect the others', () => {
    fc.assert(
      fc.property(fc.array(rowOptions, { minLength: 2, maxLength: 7 }), fc.nat(), (options, seed) => {
        const vocabulary = 1 + (seed % 3000);
        const logits = logitsOf(seed, vocabulary * options.length);
        const all = sample(backend, logits, samplingOf(options, vocabulary));
        const row = seed % options.length;
        const own = logits.slice(row * vocabulary, (row + 1) * vocabulary);
        const alone = sample(backend, own, samplingOf([options[row]], vocabulary));
        expect(all.tokens[row]).toBe(alone.tokens[0]);
        expectSameBits(all.logprobs.slice(row, row + 1), alone.logprobs, 'logprob');

        const broken = logits.slice();
        broken[row * vocabulary + (seed % vocabulary)] = seed % 2 === 0 ? Number.NaN : Infinity;
        const spoilt = sample(backend, broken, samplingOf(options, vocabulary));
        expect([...spoilt.failed]).toEqual(options.map((_, i) => (i === row ? rowFailures.notFinite : all.failed[i])));
        for (const [i, id] of all.tokens.entries()) if (i !== row) expect(spoilt.tokens[i]).toBe(id);
      }),
      fixed,
    );
  });

  test('greedy takes the lowest id among equals, and masked tokens are never drawn', () => {
    const vocabulary = 300;
    const logits = new Float32Array(2 * vocabulary).fill(-Infinity);
    logits.fill(2, 70, 90);
    logits.fill(-1, vocabulary + 131, vocabulary + 133);
    const options: RowOptions = { ...plainOptions, top: 3 };
    const seeds = Array.from({ length: 40 }, (_, seed) => seed);
    expect(sample(backend, logits, samplingOf([options, options], vocabulary)).tokens).toEqual(Int32Array.of(70, 131));
    const drawn = seeds.map((seed) => {
      const warm = { ...options, temperature: 1, seed };
      return sample(backend, logits, samplingOf([warm, warm], vocabulary)).tokens[1];
    });
    expect(new Set(drawn)).toEqual(new Set([131, 132]));
  });

  test('a mask leaves only its tokens, whatever the bias, and a mask without tokens fails its row alone', () => {
    const vocabulary = 100;
    const logits = numbers(5, 3 * vocabulary);
    const biased = { ...plainOptions, temperature: 1, biases: [{ token: 3, value: 1e9 }] };
    const words = maskWords(vocabulary);
    const masks = { start: Int32Array.of(0, words, words, 2 * words), words: new Uint32Array(2 * words) };
    masks.words[2] = 1 << 6;
    masks.words[3] = 1 << 2;
    const sampling = { ...samplingOf([biased, biased, biased], vocabulary), masks };
    const drawn = new Set<number>();
    for (let index = 0; index < 40; index++) {
      const { tokens, failed } = sample(backend, logits, { ...sampling, tokenIndex: Uint32Array.of(index, 0, 0) });
      expect([...failed]).toEqual([0, 0, rowFailures.noToken]);
      expect(tokens[1]).toBe(3);
      drawn.add(tokens[0]);
    }
    expect(drawn).toEqual(new Set([70, 98]));
    const short = { start: Int32Array.of(0, 1, 1, 1), words: Uint32Array.of(1) };
    expect(() => sample(backend, logits, { ...sampling, masks: short })).toThrow(/mask/);
  });
}

const plainOptions: RowOptions = {
  temperature: 0,
  topP: 1,
  topK: 0,
  minP: 0,
  repetition: 1,
  frequency: 0,
  presence: 0,
  seen: [],
  biases: [],
  top: 0,
  target: undefined,
  seed: 0,
  allowedOneIn: undefined,
};
