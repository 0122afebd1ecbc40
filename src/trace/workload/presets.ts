// Workloads by name: those of Mooncake's evaluation, as far as published, and mixes with long contexts.
import type { Workload } from './generator.ts';
import type { DrawnLengths, Lengths } from './lengths.ts';

const fixed = (tokens: number): Lengths => ({ kind: 'fixed', tokens });
const around = (mean: number, variation: number): Lengths => ({ kind: 'log-normal', mean, variation });
const drawn = (input: Lengths, output: Lengths): DrawnLengths => ({ kind: 'drawn', input, output });

/** One request per second by default. */
const plain: Workload = {
  arrivals: { kind: 'poisson', requestsPerSecond: 1 },
  lengths: drawn(fixed(1024), fixed(128)),
  long: undefined,
  prefixes: undefined,
  sessions: undefined,
  contextTokens: 131_072,
};

/** Means and shares are published (Mooncake, FAST'25); deviations, families and turns are our choice. */
const published = {
  arxiv: { ...plain, lengths: drawn(around(8088, 0.6), around(229, 0.5)) },
  'l-eval': {
    ...plain,
    lengths: drawn(around(19_019, 0.6), around(72, 0.8)),
    prefixes: { families: 64, zipf: 1, share: 0.88 },
  },
  'simulated-16k': simulated(16),
  'simulated-32k': simulated(32),
  'simulated-64k': simulated(64),
  'simulated-128k': simulated(128),
  real: {
    ...plain,
    lengths: drawn(around(7400, 1.2), around(194, 1)),
    sessions: { turns: 2.1, newTokens: around(330, 1), thinkSeconds: 30, answerMsPerToken: 50 },
  },
} as const satisfies Record<string, Workload>;

function simulated(thousands: number): Workload {
  return {
    ...plain,
    lengths: drawn(fixed(thousands * 1024), fixed(512)),
    prefixes: { families: 64, zipf: 1, share: 0.5 },
    contextTokens: thousands * 1024 + 512,
  };
}

/** Short prompts, and a share of long ones (Infinite-LLM: 1, 10 and 30 %). */
function longMix(share: number): Workload {
  return {
    ...plain,
    lengths: drawn(around(1000, 0.8), around(250, 0.8)),
    long: { share, lengths: drawn({ kind: 'uniform', min: 50_000, max: 150_000 }, around(250, 0.8)) },
    contextTokens: 160_000,
  };
}

/**
 * Long prompts with short outputs, then short prompts with long outputs, five minutes each: the load shifts between
 * prefill and decode.
 */
const shifting: Workload = {
  ...plain,
  phases: [
    { seconds: 300, times: 1, lengths: drawn(around(16_000, 0.5), around(100, 0.5)) },
    { seconds: 300, times: 8, lengths: drawn(around(1000, 0.5), around(1000, 0.5)) },
  ],
};

/** Chats with a few system prompts and many short turns. */
const sessions: Workload = {
  ...plain,
  lengths: drawn(around(1500, 0.5), around(250, 0.8)),
  prefixes: { families: 8, zipf: 1, share: 0.7 },
  sessions: { turns: 6, newTokens: around(200, 1), thinkSeconds: 20, answerMsPerToken: 50 },
};

export const presets = {
  plain,
  ...published,
  sessions,
  'long-1': longMix(0.01),
  'long-10': longMix(0.1),
  'long-30': longMix(0.3),
  shifting,
} as const satisfies Record<string, Workload>;

export type PresetName = keyof typeof presets;

export const presetNames = Object.keys(presets) as readonly PresetName[];
