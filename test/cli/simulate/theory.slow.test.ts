// Simulations against queueing theory: waits, zero load, saturation, Little's law, conservation, and monotony.
import { describe, expect, it } from 'vitest';
import { readOptions } from '../../../src/cli/options/options.ts';
import { reportOfRun, runSimulation, simulationSchema } from '../../../src/cli/simulate/simulated-run.ts';
import { Simulation } from '../../../src/sim/engine/simulation.ts';
import { WorkloadGenerator } from '../../../src/trace/workload/generator.ts';
import type { DrawnLengths } from '../../../src/trace/workload/lengths.ts';
import { presets } from '../../../src/trace/workload/presets.ts';
import { blockTokens, config } from '../../sim/small-cluster.ts';

type Flags = Readonly<Record<string, string>>;

const optionsOf = (flags: Flags) => readOptions(simulationSchema, flags);
const run = (flags: Flags) => reportOfRun(optionsOf(flags));

/** A server that computes one prompt after another, each in one step of the same time. */
const server: Flags = {
  ...{ workload: 'plain', input: '1024', output: '1', mixed: '1', sequences: '2' },
  ...{ chunkTokens: '1024', blockTokens: '512', model: 'llama3-8b', hardware: 'a100-80' },
};

/** Time of a prompt at an idle server. */
async function serviceSeconds(): Promise<number> {
  const { ttftMs } = await run({ ...server, requests: '1' });
  return ttftMs.mean / 1000;
}

describe('one server with Poisson arrivals and equal prompts (M/D/1)', () => {
  it.each([0.5, 0.8])('waits as long as Pollaczek and Khinchine predict, at load %d', async (load) => {
    const service = await serviceSeconds();
    const { queueMs, ttftMs } = await run({ ...server, requests: '20000', rate: String(load / service), seed: '2' });
    const predictedMs = (1000 * load * service) / (2 * (1 - load));
    expect(queueMs.mean / predictedMs).toBeGreaterThan(0.97);
    expect(queueMs.mean / predictedMs).toBeLessThan(1.03);
    expect(ttftMs.mean).toBeCloseTo(queueMs.mean + 1000 * service, 3);
  });

  it('serves at the rate of the cost model when more arrive', async () => {
    const service = await serviceSeconds();
    const { completed, simulatedSeconds } = await run({ ...server, requests: '2000', rate: String(3 / service) });
    expect((completed / simulatedSeconds) * service).toBeCloseTo(1, 2);
  });
});

it('a cluster holds as many requests as arrive while one is served (Little)', () => {
  const requestsPerSecond = 15;
  const lengths = {
    kind: 'drawn',
    input: { kind: 'uniform', min: 20, max: 200 },
    output: { kind: 'uniform', min: 1, max: 40 },
  };
  const generator = new WorkloadGenerator(
    { ...presets.plain, arrivals: { kind: 'poisson', requestsPerSecond }, lengths: lengths as DrawnLengths },
    { seed: 5, blockTokens },
  );
  const simulation = new Simulation({ ...config, checking: false, queueMax: 1e6 });
  const requests = 5_000;
  let held = 0;
  for (let i = 0; i < requests; i++) {
    const request = generator.next();
    simulation.advance(request.arrivalUs);
    // Poisson arrivals see the mean over time.
    held += simulation.unfinished;
    simulation.arrive(request);
  }
  simulation.finish();
  const served = (requestsPerSecond * simulation.outcome.e2eUs.mean) / 1e6;
  expect(held / requests / served).toBeGreaterThan(0.97);
  expect(held / requests / served).toBeLessThan(1.03);
  expect(served).toBeGreaterThan(1);
});

describe('a cluster', () => {
  const chat: Flags = { workload: 'real', requests: '120', model: 'llama2-70b', hardware: 'a800x8' };

  it('takes at light load the time of its cost model: the prefill, then one decode step for each token', async () => {
    const alone: Flags = { ...chat, workload: 'plain', input: '4096', output: '100', mixed: '2', arrivals: 'constant' };
    const one = await run({ ...alone, requests: '1' });
    const many = await run({ ...alone, rate: '0.05' });
    expect(many.ttftMs.p99).toBeCloseTo(one.ttftMs.mean, 0);
    expect(many.tpotMs.mean).toBeCloseTo(one.tpotMs.mean, 6);
    expect(many.queueMs.mean).toBe(0);
  });

  it('computes or finds every prompt token once, and decodes every output token', async () => {
    const options = optionsOf({ ...chat, prefill: '2', decode: '2', rate: '4' });
    const { outcome } = await runSimulation(options, false);
    const { instances } = await reportOfRun(options);
    const sum = (of: (work: (typeof instances)[number]) => number) =>
      instances.reduce((all, each) => all + of(each), 0);
    expect(sum(({ promptTokens }) => promptTokens)).toBe(outcome.promptTokens);
    expect(sum(({ cachedTokens }) => cachedTokens)).toBe(outcome.cachedTokens);
    expect(sum(({ generatedTokens }) => generatedTokens)).toBe(outcome.outputTokens);
    expect(outcome.completedRequests).toBe(120);
  });

  it('never waits longer with more instances', async () => {
    const means: number[] = [];
    for (const mixed of ['2', '4', '8']) means.push((await run({ ...chat, rate: '4', mixed })).ttftMs.mean);
    expect(means).toEqual([...means].sort((a, b) => b - a));
  });

  it('of one instance never finds less in a larger cache', async () => {
    const ratios: number[] = [];
    for (const cacheBlocks of ['50', '100', '200', '400'])
      ratios.push(
        (await run({ ...chat, workload: 'simulated-16k', rate: '0.1', mixed: '1', hostCacheBlocks: '0', cacheBlocks }))
          .hitRatioTokens,
      );
    expect(ratios).toEqual([...ratios].sort((a, b) => a - b));
    expect(ratios.at(-1)).toBeGreaterThan(ratios[0]);
  });
});
