// Random combinations of features with every check on: no invariant of schedulers, loans, network or requests breaks.
import fc from 'fast-check';
import { expect, it } from 'vitest';
import { readOptions } from '../../src/cli/options/options.ts';
import { runSimulation, simulationSchema } from '../../src/cli/simulate/simulated-run.ts';
import { evictionKinds } from '../../src/core/kvcache/eviction.ts';

type Flags = Readonly<Record<string, unknown>>;

/** Flags of a feature, or none. */
function maybe(feature: fc.Arbitrary<Flags>): fc.Arbitrary<Flags> {
  return fc.option(feature, { nil: {}, freq: 2 });
}

const roles: fc.Arbitrary<Flags> = fc.oneof(
  fc.record({ mixed: fc.integer({ min: 1, max: 3 }) }),
  fc.record({ prefill: fc.integer({ min: 1, max: 3 }), decode: fc.integer({ min: 1, max: 2 }), mixed: fc.nat(1) }),
  fc.record({
    ...{ prefill: fc.integer({ min: 2, max: 3 }), decode: fc.constant(1) },
    ...{ cppGroup: fc.constant(2), cppTokens: fc.constantFrom(500, 4000) },
  }),
);

const workload: fc.Arbitrary<Flags> = fc.record({
  workload: fc.constantFrom('real', 'plain'),
  requests: fc.integer({ min: 10, max: 40 }),
  seed: fc.nat(1000),
  rate: fc.constantFrom(1, 4, 10),
  output: fc.constant('10..120'),
  shared: fc.constantFrom(0, 0.5),
  families: fc.constant(6),
});

const machine: fc.Arbitrary<Flags> = fc.record({
  cacheBlocks: fc.constantFrom(100, 160, 300),
  blockTokens: fc.constantFrom(128, 512),
  eviction: fc.constantFrom(...evictionKinds),
  placement: fc.constantFrom('cache-aware', 'local-cache-only', 'least-loaded', 'round-robin', 'random'),
  stream: fc.boolean(),
  coalesce: fc.boolean(),
});

const slos: fc.Arbitrary<Flags> = fc.record({
  admission: fc.constantFrom('none', 'stage', 'early', 'predictive'),
  forecast: fc.constantFrom('td', 'mean', 'lengths'),
  ttftSlo: fc.constantFrom('5s', '10x'),
  tbtSlo: fc.constantFrom('200ms', '100ms'),
  sloClasses: fc.constantFrom(undefined, 'a=10x/5x@0.3,b=30s@0.3'),
  retries: fc.nat(2),
});

const features: readonly fc.Arbitrary<Flags>[] = [
  fc.record({ hostCacheBlocks: fc.constantFrom(60, 300), ssdCacheBlocks: fc.constantFrom(0, 400) }),
  fc.record({ linkGbps: fc.constantFrom(10, 100) }),
  fc.record({ rack: fc.constantFrom(1, 2), rackGbps: fc.constantFrom(10, 100), rackUs: fc.constantFrom(0, 500) }),
  fc.record({ inlineTokens: fc.constantFrom(128, 1024) }),
  fc.record({ batchRate: fc.constantFrom(0.5, 2) }),
  fc.record({ pinFamilies: fc.constant(2), pinTtl: fc.constant(20), pinMemory: fc.constant(0.3) }),
  fc.record({ tenants: fc.constant('a:3,b:1') }),
  fc.record({
    borrow: fc.constant(true),
    settle: fc.boolean(),
    borrowAhead: fc.boolean(),
    lendHost: fc.constantFrom(0, 0.5),
  }),
  fc.record({ roleSwitch: fc.constant(true), roleDwell: fc.constant(2) }),
  fc.record({ standby: fc.constant(1), startS: fc.constant(2) }),
  fc.record({
    heartbeatTimeoutMs: fc.constant(800),
    faults: fc.subarray(
      [
        ...['loss:ratio=0.02', 'duplication:ratio=0.03', 'delay:ratio=0.05,by=200ms', 'conductor:at=4s'],
        ...['crash:every=6s,for=2s', 'partition:every=10s,for=1s', 'slow:every=6s,for=2s,factor=4'],
      ],
      { minLength: 1 },
    ),
  }),
];

/** Migration excludes borrowing and faults. */
function compatible(flags: Flags): Flags {
  const { standby, mixed } = flags;
  if (standby === undefined) return flags;
  return { ...flags, mixed: Math.max(1, Number(mixed ?? 1)), borrow: false, lendHost: 0, faults: [] };
}

const combinations = fc
  .tuple(roles, workload, machine, maybe(slos), ...features.map(maybe))
  .map((parts) => compatible(Object.assign({ ttftSlo: '60s', tbtSlo: '200ms' }, ...parts) as Flags));

it('breaks no invariant', async () => {
  await fc.assert(
    fc.asyncProperty(combinations, async (flags) => {
      const { outcome, checks } = await runSimulation(readOptions(simulationSchema, { ...flags, check: true }));
      expect(outcome.completedRequests + outcome.refusedRequests + outcome.batch.requests).toBeGreaterThan(0);
      expect(checks?.events).toBeGreaterThan(outcome.requests);
    }),
    { numRuns: 20 },
  );
});
