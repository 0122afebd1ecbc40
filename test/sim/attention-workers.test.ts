// Simulated instances with attention workers: requests end, and combinations that are not supported are refused.
import { describe, expect, it } from 'vitest';
import { readOptions } from '../../src/cli/options/options.ts';
import { withPlannedDop } from '../../src/cli/simulate/plan-dop.ts';
import { runSimulation, simulationSchema } from '../../src/cli/simulate/simulated-run.ts';

const workload = { workload: 'plain', input: '1155', output: '211', requests: '300', rate: '100', model: 'llama3-70b' };
const lamina = { hardware: 'h100x8', attentionHardware: 'h20x8', dop: '2,4', mixed: '1', sequences: '1024' };

const simulate = (flags: Readonly<Record<string, unknown>>) =>
  runSimulation(readOptions(simulationSchema, { ...workload, check: true, ...flags }));

it('serve every request, and hold larger batches than instances of the same number of model devices and more', async () => {
  const [divided, coupled] = [
    await simulate(lamina),
    await simulate({ hardware: 'h100x8', tp: '4', mixed: '1', sequences: '1024' }),
  ];
  for (const { outcome } of [divided, coupled]) {
    expect([outcome.requests, outcome.completedRequests, outcome.outputTokens]).toEqual([300, 300, 300 * 211]);
  }
});

it('prefill nothing if requests arrive with their KV', async () => {
  const { outcome } = await simulate({ ...lamina, decodeOnly: true, rate: '100000' });
  expect(outcome.completedRequests).toBe(300);
  // All sequences join at once and advance together: a step for each token of output.
  expect(outcome.steps).toBeLessThan(211 + 10);
});

it('receive prompts from prefill instances of other hardware', async () => {
  const { outcome } = await simulate({
    ...lamina,
    mixed: '0',
    prefill: '2',
    decode: '1',
    prefillHardware: 'a800x8',
    rate: '10',
  });
  expect(outcome.completedRequests).toBe(300);
  expect(outcome.bytesMoved.handoff).toBeGreaterThan(300 * 1155 * 327_680 * 0.9);
});

it('leave prefixes alone that prefill instances load from host memory', async () => {
  const cluster = { mixed: '0', prefill: '2', decode: '2', dop: '2,2', cacheBlocks: '600' };
  const { outcome } = await simulate({
    ...{ ...lamina, ...cluster, workload: 'real', input: undefined, output: undefined },
    ...{ rate: '3', requests: '140' },
  });
  expect(outcome.completedRequests).toBe(140);
  expect(outcome.cachedTokens).toBeGreaterThan(0);
});

it.each([
  [{ borrow: true }, 'Cannot use --dop 2,4: pages at attention workers cannot be lent: remove --borrow'],
  [{ ssdCacheBlocks: '100' }, 'Cannot use --dop 2,4: pages at attention workers have no lower tier'],
  [{ tp: '2' }, 'Cannot use --dop 2,4: it states the devices of the model workers: remove --tp'],
  [{ dop: undefined }, 'Cannot use --attention-hardware h20x8: it needs --dop MODEL,ATTENTION'],
  [{ decodeOnly: true, mixed: '0', prefill: '1', decode: '1' }, 'Cannot use --decode-only with --prefill 1'],
])('are refused with %j', async (flags, message) => {
  await expect(async () => simulate({ ...lamina, ...flags })).rejects.toThrow(message);
});

describe('--dop auto', () => {
  const plan = async (flags: Readonly<Record<string, unknown>>) => {
    const lines: string[] = [];
    const cluster = { ...lamina, dop: 'auto', requests: '30', sequences: '4096' };
    const given = readOptions(simulationSchema, { ...workload, ...cluster, ...flags });
    return { options: await withPlannedDop(given, (line) => lines.push(line)), line: lines.join() };
  };

  it('chooses the division with the most tokens per price, and its batches', async () => {
    const { options, line } = await plan({});
    expect(line).toMatch(/^--dop auto chooses \(2,2\) with 2 batches: t_m .* ms, t_a .*; instances without them: /);
    expect(line).toMatch(/\(sequences of 1261 tokens, at most 4096\)$/);
    expect(options).toMatchObject({ dop: '2,2', staggeredBatches: 2, attentionHardware: 'h20x8' });
    const { outcome } = await runSimulation({ ...options, check: true });
    expect(outcome.completedRequests).toBe(30);
  });

  it.each([
    [{ sequences: '256' }, /no attention workers: instances without them: \d+ tokens\/s.*; \(2,1\) with 2 batches/],
    [{ borrow: true }, /no attention workers: pages at attention workers cannot be lent: remove --borrow/],
    [{ tbtSlo: '1ms', ttftSlo: '1s' }, /no attention workers: instances without them: none decodes.*; no division can/],
  ])(
    'chooses none where instances without them have more, or with options that exclude them: %j',
    async (flags, why) => {
      const { options, line } = await plan(flags);
      expect(line).toMatch(why);
      expect([options.dop, options.attentionHardware]).toEqual([undefined, undefined]);
    },
  );
});
