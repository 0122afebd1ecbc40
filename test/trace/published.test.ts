// `kvasir trace stats` on the production traces yields the figures of a correct replay.
import { spawnSync } from 'node:child_process';
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { root } from '../../scripts/root.mjs';

const folder = join(root, '..', 'shared', 'traces');
const command = join(root, 'bundle', 'cli', 'main.js');

function stats(file: string, ...flags: string[]) {
  const path = join(folder, file);
  const { stdout, stderr } = spawnSync(process.execPath, [command, 'trace', 'stats', path, '--json', ...flags], {
    encoding: 'utf8',
  });
  expect(stderr).toBe('');
  return JSON.parse(stdout.trim().split('\n').at(-1) ?? '');
}

const blocks = [1_000, 3_000, 5_859, 10_000, 30_000, 50_000, 100_000];
const fewer = [1_000, 10_000, 50_000, 100_000];

const mooncake = [
  {
    file: 'mooncake/conversation_trace.jsonl.gz',
    requests: 12_031,
    seconds: 3536.999,
    input: [12035.1, 6909, 85_400, 126_195],
    output: [342.6, 350, 1119, 2000],
    blocks: [288_500, 182_790],
    ideal: [0.3664, 0.3736, 0.3843, 0.4094],
    lru: [0.0445, 0.065, 0.1355, 0.2112, 0.3257, 0.3546, 0.3637],
    lfu: [0.0481, 0.1318, 0.3438, 0.3631],
    fifo: [0.0435, 0.1865, 0.34, 0.3593],
    tokens: { ratio: [0.1411, 0.2936, 0.3709], mean: [0.242, 0.3574, 0.408] },
  },
  {
    file: 'mooncake/synthetic_trace.jsonl.gz',
    requests: 3993,
    seconds: 1022.025,
    input: [15325.5, 11_587, 66_456, 191_378],
    output: [149.1, 69, 768, 893],
    blocks: [121_877, 43_924],
    ideal: [0.6396, 0.6512, 0.4232, 0.4315],
    lru: [0.0825, 0.1878, 0.3094, 0.4235, 0.6242, 0.6396, 0.6396],
    lfu: [0.0401, 0.3578, 0.6396, 0.6396],
    fifo: [0.0787, 0.399, 0.6396, 0.6396],
    tokens: { ratio: [0.3165, 0.5834, 0.6512], mean: [0.2196, 0.3888, 0.4315] },
  },
  {
    file: 'mooncake/mooncake_trace_1000.jsonl.gz',
    requests: 1000,
    seconds: 177.098,
    input: [9792, 6558, 77_828, 121_290],
    output: [199.1, 34, 831, 2000],
    blocks: [19_686, 12_207],
    ideal: [0.3799, 0.3907, 0.5369, undefined],
    lru: [0.2827, 0.2994, 0.3416, 0.3786, 0.3799, 0.3799, 0.3799],
    lfu: [0.2827, 0.3786, 0.3799, 0.3799],
    fifo: [0.2719, 0.3759, 0.3799, 0.3799],
    tokens: undefined,
  },
];

const four = (value: number) => Number(value.toFixed(4));
type Ratios = { hitRatioBlocks: number; hitRatioTokens: number; meanRequestHitRatioTokens: number };

describe.skipIf(!existsSync(folder))('production traces (need ../shared/traces)', () => {
  it.each(mooncake)('$file', (expected) => {
    const bounds = ['--capacity', `${blocks}`, '--capacity-tokens', '3000000,10000000,50000000'];
    const got = stats(expected.file, ...bounds);
    expect([got.requests, got.durationSeconds]).toEqual([expected.requests, expected.seconds]);
    for (const [name, [mean, p50, p99, max]] of [
      ['inputTokens', expected.input],
      ['outputTokens', expected.output],
    ] as const) {
      const { [name]: lengths } = got;
      expect(Number(lengths.mean.toFixed(1))).toBe(mean);
      expect([lengths.p50, lengths.p99, lengths.max].map(Math.round)).toEqual([p50, p99, max]);
    }
    expect([got.blocks.total, got.blocks.unique]).toEqual(expected.blocks);
    const { hitRatioBlocks, hitRatioTokens, meanRequestHitRatioBlocks, meanRequestHitRatioTokens } = got.ideal;
    expect([hitRatioBlocks, hitRatioTokens, meanRequestHitRatioBlocks].map(four)).toEqual(expected.ideal.slice(0, 3));
    if (expected.ideal[3] !== undefined) expect(four(meanRequestHitRatioTokens)).toBe(expected.ideal[3]);
    const rows: Ratios[] = got.capacities;
    expect(rows.slice(0, blocks.length).map((row) => four(row.hitRatioBlocks))).toEqual(expected.lru);
    if (expected.tokens !== undefined) {
      const byTokens = rows.slice(blocks.length);
      expect(byTokens.map((row) => four(row.hitRatioTokens))).toEqual(expected.tokens.ratio);
      expect(byTokens.map((row) => four(row.meanRequestHitRatioTokens))).toEqual(expected.tokens.mean);
    }
  });

  it.each(mooncake)('$file under LFU and FIFO', ({ file, lfu, fifo }) => {
    const ratios = (eviction: string) =>
      stats(file, '--capacity', `${fewer}`, '--eviction', eviction).capacities.map((row: Ratios) =>
        four(row.hitRatioBlocks),
      );
    expect(ratios('lfu')).toEqual(lfu);
    expect(ratios('fifo')).toEqual(fifo);
  });

  it.each([
    [
      'azure/AzureLLMInferenceTrace_conv.csv.gz',
      19_366,
      3501.722,
      [1154.7, 1020, 4142, 14_050],
      [211.1, 129, 601, 1000],
    ],
    ['azure/AzureLLMInferenceTrace_code.csv.gz', 8819, 3435.948, [2047.8, 1469, 7436, 7437], [27.9, 13, 251, 1899]],
  ])('%s', (file, requests, seconds, input, output) => {
    const got = stats(file);
    expect([got.requests, Number(got.durationSeconds.toFixed(3))]).toEqual([requests, seconds]);
    for (const [lengths, figures] of [
      [got.inputTokens, input],
      [got.outputTokens, output],
    ]) {
      const found = [Number(lengths.mean.toFixed(1)), ...[lengths.p50, lengths.p99, lengths.max].map(Math.round)];
      expect(found).toEqual(figures);
    }
  });
});
