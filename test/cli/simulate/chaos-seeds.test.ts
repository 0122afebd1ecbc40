// Chaos seeds on several threads: each seed once, and the same outcome as on one.
import { describe, expect, it } from 'vitest';
import { joinOutcomes, SeedQueue, type SeedsOutcome } from '../../../src/cli/simulate/chaos/chaos-seeds.ts';
import type { ChaosCounts } from '../../../src/sim/faults/chaos-counts.ts';
import type { FaultName } from '../../../src/sim/faults/fault-plan.ts';

describe('chaos seeds', () => {
  it('are taken once by the threads that share a queue', () => {
    const queue = SeedQueue.of(7, 3);
    const other = new SeedQueue(structuredClone(queue.shared));
    expect([queue.take(), other.take(), queue.take(), other.take(), queue.take()]).toEqual([
      ...[7, 8, 9],
      ...[undefined, undefined],
    ]);
  });

  it('are no longer taken after five failures', () => {
    const queue = SeedQueue.of(7, 100);
    const other = new SeedQueue(structuredClone(queue.shared));
    for (let i = 0; i < 5; i++) {
      expect(queue.take()).toBe(7 + i);
      other.failed();
    }
    expect(queue.take()).toBeUndefined();
  });

  it('add their counts by kind, with those that only one thread has', () => {
    const counted = (requests: number, fault: FaultName): ChaosCounts => ({
      ...{ faults: new Map([[fault, 1]]), anomalies: new Map([['late report', requests]]), totals: { requests } },
    });
    const one: SeedsOutcome = { seeds: 2, failures: [], counts: { requests: counted(5, 'crash') } };
    const other: SeedsOutcome = {
      ...{ seeds: 1, failures: [], counts: { requests: counted(2, 'loss'), lending: counted(1, 'loss') } },
    };
    expect(joinOutcomes(one, other)).toEqual({
      ...{ seeds: 3, failures: [] },
      counts: {
        requests: {
          faults: new Map([
            ['crash', 1],
            ['loss', 1],
          ]),
          anomalies: new Map([['late report', 7]]),
          totals: { requests: 7 },
        },
        lending: counted(1, 'loss'),
      },
    });
  });

  it('have their failures in the order of their seeds', () => {
    const failed = (seed: number): SeedsOutcome => ({ seeds: 1, failures: [{ seed, message: 'broken' }], counts: {} });
    expect(joinOutcomes(failed(9), failed(2)).failures.map(({ seed }) => seed)).toEqual([2, 9]);
  });
});
