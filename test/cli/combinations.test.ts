// Combinations of features with all checks on: coalesced and single steps have the same outcome.
import { expect, it } from 'vitest';
import { readOptions } from '../../src/cli/options/options.ts';
import { runSimulation, simulationSchema } from '../../src/cli/simulate/simulated-run.ts';

const combinations: readonly (readonly [string, Readonly<Record<string, unknown>>])[] = [
  [
    'groups, inline prefill, classes and refusals at the decode instance',
    {
      ...{ workload: 'real', requests: 150, seed: 17, rate: 4, prefill: 2, decode: 1, cacheBlocks: 160 },
      ...{ hostCacheBlocks: 400, sloClasses: 'a=10x/5x@0.5,b=30s/200ms@0.5', admission: 'stage' },
      ...{ inlineTokens: 256, cppGroup: 2, cppTokens: 1000, placement: 'least-loaded' },
    },
  ],
  [
    'groups and batch jobs',
    {
      ...{ workload: 'real', requests: 40, seed: 309, rate: 2, prefill: 2, decode: 3, hostCacheBlocks: 200 },
      ...{ ttftSlo: '10x', tbtSlo: '200ms', admission: 'stage', cppGroup: 2, cppTokens: 4000, batchRate: 0.5 },
      ...{ tenants: 'a:9,b:1', placement: 'local-cache-only', eviction: 'fifo', stream: false, sequences: 8 },
    },
  ],
  [
    'borrowing, tiers, pins, retries and roles that change',
    {
      ...{ workload: 'plain', requests: 120, seed: 5, rate: 4, input: '500..20000', output: '20..300', prefill: 2 },
      ...{ decode: 2, cacheBlocks: 160, hostCacheBlocks: 200, ssdCacheBlocks: 500, shared: 0.5, families: 8 },
      ...{ borrow: true, pinFamilies: 3, pinTtl: 60, pinMemory: 0.3, ttftSlo: '5s', tbtSlo: '100ms' },
      ...{ admission: 'predictive', forecast: 'lengths', retries: 2, roleSwitch: true, roleDwell: 5 },
    },
  ],
  [
    'faults, batch jobs, prefix fetches and inline prefill',
    {
      ...{ workload: 'real', requests: 14, seed: 32, rate: 2, prefill: 2, decode: 2, mixed: 1, hostCacheBlocks: 0 },
      ...{ inlineTokens: 1024, linkGbps: 40, stepMs: 20, blockTokens: 128, chunkTokens: 1024, batchRate: 0.5 },
      faults: ['conductor:at=5s', 'duplication:ratio=0.01', 'crash:every=20s,for=5s'],
    },
  ],
  [
    'faults and borrowing, also for prompts that no instance could hold',
    {
      ...{ workload: 'plain', requests: 30, seed: 4, rate: 1, input: '1000..60000', output: '20..120', mixed: 3 },
      ...{ context: 400000, cacheBlocks: 60, borrow: true, lendShare: 0.8, lendHost: 0.1, heartbeatTimeoutMs: 2000 },
      ...{ rack: 2, rackGbps: 40, rackUs: 200, remoteAttention: 'auto' },
      faults: [
        'crash:every=20s,for=3s',
        'partition:every=30s,for=2s',
        'loss:ratio=0.02',
        'gmanager:at=30s',
        'slow:every=20s,for=5s',
      ],
    },
  ],
];

it.each(combinations)('%s', async (_, flags) => {
  const run = async (coalesce: boolean) => {
    const { outcome } = await runSimulation(readOptions(simulationSchema, { ...flags, coalesce, check: true }));
    expect(outcome.completedRequests + outcome.refusedRequests).toBe(outcome.requests);
    return outcome.stateHash;
  };
  expect(await run(true)).toBe(await run(false));
});
