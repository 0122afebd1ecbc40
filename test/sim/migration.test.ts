// Requests that outgrow their instance move to a bigger one: with every check after every event, and the same hash with equal steps run one by one.
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { type InstanceSpec, Simulation } from '../../src/sim/engine/simulation.ts';
import type { TraceRequest } from '../../src/trace/request.ts';
import { blockTokens, config, machine, nic, requestOf, run } from './small-cluster.ts';

const poolBlocks = 24;
const startUs = 200_000;
const startMs = startUs / 1000;

/** Instances of 24 blocks, and standby instances of the given numbers of blocks. */
function instances(mixed: number, standbys: readonly number[], mark = 1): readonly InstanceSpec[] {
  const migration = { mark, capacityTokens: Math.max(...standbys) * blockTokens };
  return [
    ...Array.from({ length: mixed }, () => ({
      role: 'mixed' as const,
      nic,
      machine: { ...machine, blocks: poolBlocks, migration },
    })),
    ...standbys.map((blocks) => ({ role: 'decode' as const, startUs, nic, machine: { ...machine, blocks } })),
  ];
}

/** A prompt of 320 tokens and so many output tokens: from 65 on they do not fit on its first instance. */
const growing = (index: number, atUs: number, outputTokens: number) => requestOf(index, atUs, 320, outputTokens);

describe('a request that outgrows its instance', () => {
  it('waits until a bigger instance has started, moves with all its blocks and ends there', () => {
    const { outcome } = run([growing(0, 0, 200)], { instances: instances(1, [40]) });
    expect(outcome.completedRequests).toBe(1);
    expect(outcome.preemptions).toBe(0);
    const bytes = poolBlocks * blockTokens * machine.cost.kvBytesPerToken;
    expect(outcome.migration).toMatchObject({ started: 1, moved: 1, movedBytes: bytes, stalls: 1 });
    const copyMs = bytes / (nic.bytesPerSecond / 1e3);
    expect(outcome.migration?.stallMs).toBeGreaterThan(startMs + copyMs);
    expect(outcome.migration?.stallMs).toBeLessThan(startMs + 1.5 * copyMs + 5);
  });

  it('waits only for the copy where the bigger instance is requested in time', () => {
    const late = run([growing(0, 0, 200)], { instances: instances(1, [40]) }).outcome;
    const early = run([growing(0, 0, 200)], { instances: instances(1, [40], 0.85) }).outcome;
    expect(early.completedRequests).toBe(1);
    expect(early.migration?.stallMs).toBeLessThan(startMs / 2);
    expect(early.endUs).toBeLessThan(late.endUs - startUs / 2);
  });

  it('starts the smallest instance that holds it, and the next one when that is full', () => {
    const trace = [growing(0, 0, 200), growing(1, 0, 200), growing(2, 0, 320)];
    const { outcome } = run(trace, {
      instances: instances(3, [80, 40]),
      placement: { ...config.placement, kind: 'round-robin' },
    });
    expect(outcome.completedRequests).toBe(3);
    expect(outcome.migration).toMatchObject({ started: 2, moved: 3 });
  });

  it('waits in order until memory is free for it', () => {
    const trace = [growing(0, 0, 300), growing(1, 1000, 300)];
    const { outcome } = run(trace, {
      instances: instances(2, [40]),
      placement: { ...config.placement, kind: 'round-robin' },
    });
    expect(outcome.completedRequests).toBe(2);
    expect(outcome.migration).toMatchObject({ started: 1, moved: 2 });
  });

  it('is refused when no instance could hold it, or only a standby instance could hold its prompt', () => {
    const { outcome } = run([growing(0, 0, 400), requestOf(1, 0, 500, 10)], { instances: instances(1, [40]) });
    expect(outcome.refusedRequests).toBe(2);
  });

  it.each([100_000, 400_000, 700_000])('leaks nothing when it is cancelled after %i us', (cancelUs) => {
    const simulation = new Simulation({ ...config, instances: instances(1, [40]) });
    simulation.arrive(growing(0, 0, 250));
    simulation.advance(cancelUs);
    simulation.cancel('0');
    simulation.arrive(growing(1, cancelUs + 10, 250));
    simulation.finish();
    expect(simulation.outcome.completedRequests).toBe(1);
    for (const { running, waiting } of simulation.snapshots()) expect(running + waiting).toBe(0);
  });
});

const traces = fc
  .array(
    fc.record({
      gapUs: fc.integer({ min: 0, max: 100_000 }),
      input: fc.integer({ min: 1, max: 350 }),
      output: fc.integer({ min: 1, max: 280 }),
    }),
    { minLength: 1, maxLength: 14 },
  )
  .map((requests): TraceRequest[] => {
    let atUs = 0;
    return requests.map(({ gapUs, input, output }, index) => {
      atUs += gapUs;
      return requestOf(index, atUs, input, output, index % 3);
    });
  });

describe('requests that move to bigger instances', () => {
  it('all end for any trace, with the same hash with equal steps run one by one', () => {
    fc.assert(
      fc.property(traces, fc.constantFrom(0.7, 1), (trace, mark) => {
        const specs = instances(2, [40, 64], mark);
        const { outcome } = run(trace, { instances: specs });
        expect(outcome.completedRequests).toBe(trace.length);
        const singly = specs.map((spec) => ({ ...spec, machine: { ...spec.machine, coalesce: false } }));
        expect(run(trace, { instances: singly }).outcome.stateHash).toBe(outcome.stateHash);
      }),
      { numRuns: 40 },
    );
  });
});
