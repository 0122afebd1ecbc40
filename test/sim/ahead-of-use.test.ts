// Simulated requests that start while their prefixes arrive: what their steps wait for, and that every request completes.
import fc from 'fast-check';
import { expect, it } from 'vitest';
import { layerWiseEndUs } from '../../src/core/cost/layer-wise-arrival.ts';
import type { TraceRequest } from '../../src/trace/request.ts';
import { blockTokens, cluster, cost, requestOf, run, traces } from './small-cluster.ts';

const latencyUs = 50;

/** A request with its prefix at another instance, which computes another prompt. */
const busy: readonly TraceRequest[] = [
  requestOf(0, 0, 120, 1, 7),
  requestOf(1, 1e6, 125, 40, 8),
  requestOf(2, 1e6 + 10, 120, 1, 7),
];

function ttftUs(aheadOfUse: boolean, bytesPerSecond: number): number {
  const instances = cluster({ mixed: 2 }, { aheadOfUse }).map((spec) => ({
    ...spec,
    nic: { bytesPerSecond, us: latencyUs },
  }));
  const waits: number[] = [];
  run(busy, {
    instances,
    inspect: {
      after: () => {},
      ended: ({ trace, firstTokenUs = 0, cachedTokens }) => {
        if (trace.index === 2) waits.push(firstTokenUs - trace.arrivalUs, cachedTokens);
      },
    },
  });
  expect(waits[1]).toBe(6 * blockTokens);
  return waits[0] ?? 0;
}

it('computes the first layers while the last ones arrive', () => {
  const bytes = 6 * blockTokens * cost.kvBytesPerToken;
  const bytesPerSecond = 2e7;
  const transferUs = Math.ceil((bytes * 1e6) / bytesPerSecond);
  const rows = 120 - 6 * blockTokens;
  const keyRows = rows * 6 * blockTokens + (rows * (rows + 1)) / 2;
  const computeUs = cost.stepUs({ rows, keyRows, decodeRows: 0, decodeKeys: 0, logitRows: 1 });
  // Request, start and arrival take a message each.
  const whole = 2 * latencyUs + transferUs + computeUs;
  expect(ttftUs(false, bytesPerSecond)).toBe(whole);
  const step = { startedUs: 2 * latencyUs, computeUs, layers: 2 };
  const ahead = layerWiseEndUs(step, { beganUs: 2 * latencyUs, endedUs: 2 * latencyUs + transferUs });
  expect(ttftUs(true, bytesPerSecond)).toBe(ahead);
  expect(ahead).toBeLessThan(whole);
});

it('passes all checks, and has the same hash with equal steps run one by one', () => {
  fc.assert(
    fc.property(traces, fc.integer({ min: 1e5, max: 1e8 }), fc.boolean(), (trace, bytesPerSecond, tiers) => {
      const hashOf = (coalesce: boolean) => {
        const host = tiers ? { tiers: { hostBlocks: 12, ssdBlocks: 20 } } : {};
        const instances = cluster({ mixed: 2 }, { aheadOfUse: true, coalesce, ...host }).map((spec) => ({
          ...spec,
          nic: { bytesPerSecond, us: latencyUs },
          ssd: tiers ? { readBytesPerSecond: bytesPerSecond, writeBytesPerSecond: 1e6 } : undefined,
        }));
        const { outcome } = run(trace, { instances });
        expect(outcome.completedRequests).toBe(trace.length);
        return outcome.stateHash;
      };
      expect(hashOf(false)).toBe(hashOf(true));
    }),
    { numRuns: 12 },
  );
});
