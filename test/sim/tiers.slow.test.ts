// Simulated instances with host memory: the time of loads and stores, and that nothing is lost or reported wrongly.
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { HostLink, HostPrefill } from '../../src/core/cost/host-link.ts';
import { ModelPredictor } from '../../src/core/cost/model-predictor.ts';
import { ChunkedPrefill } from '../../src/core/cost/prefill.ts';
import type { TraceRequest } from '../../src/trace/request.ts';
import { blockTokens, cluster, cost, requestOf, run, traces } from './small-cluster.ts';

function link(bytesPerSecond: number, layerWise = true): HostLink {
  return new HostLink({ bytesPerSecond, kvBytesPerToken: cost.kvBytesPerToken, layers: 2, layerWise });
}

function prefillUs(tokens: number, cached: number): number {
  const rows = tokens - cached;
  const keyRows = rows * cached + (rows * (rows + 1)) / 2;
  return cost.stepUs({ rows, keyRows, decodeRows: 0, decodeKeys: 0, logitRows: 1 });
}

/** The same prompt twice, with another in between that evicts it from device memory. */
const returning: readonly TraceRequest[] = [
  requestOf(0, 0, 97, 1, 7),
  requestOf(1, 1e6, 120, 1, 8),
  requestOf(2, 2e6, 97, 1, 7),
];

describe('a link to host memory', () => {
  it('costs the time beyond computation, and one layer of the hidden time', () => {
    const fast = link(cost.kvBytesPerToken * 1e6);
    // A microsecond per token; two layers.
    expect(fast.exposedUs(1000, 0, 100)).toBe(50);
    expect(fast.exposedUs(1000, 400, 100)).toBe(250);
    expect(fast.exposedUs(1000, 3000, 100)).toBe(2000 + 550);
    expect(link(cost.kvBytesPerToken * 1e6, false).exposedUs(1000, 400, 100)).toBe(500);
    const compute = new ChunkedPrefill(new ModelPredictor(cost), 128);
    const alone = compute.prefillUs(100, 60);
    expect(new HostPrefill(compute, fast).prefillUs(100, 60)).toBe(alone + fast.exposedUs(alone, 60, 40));
  });
});

describe('a simulated instance with host memory', () => {
  for (const layerWise of [true, false]) {
    it(`loads the blocks that the device evicted, ${layerWise ? 'layer by layer' : 'before it computes'}`, () => {
      const hostLink = link(1e7, layerWise);
      const instances = cluster({ mixed: 1 }, { blocks: 8, tiers: { hostBlocks: 20, ssdBlocks: 0 }, hostLink });
      const { outcome } = run(returning, { instances });
      // The family shares five full blocks; the sixth is unique to each request.
      const computeUs = prefillUs(97, 5 * blockTokens);
      const exposedUs = Math.round(hostLink.exposedUs(computeUs, 5 * blockTokens, blockTokens));
      expect(outcome.endUs).toBe(2e6 + computeUs + exposedUs);
      expect(outcome.cachedTokens).toBe(5 * blockTokens);
      expect(outcome.missReasons.evicted).toBe(0);
    });
  }

  it('reads blocks from SSD before the request starts, then loads them', () => {
    const hostLink = link(1e7);
    const [spec] = cluster({ mixed: 1 }, { blocks: 8, tiers: { hostBlocks: 7, ssdBlocks: 20 }, hostLink });
    const ssd = { readBytesPerSecond: 1e8, writeBytesPerSecond: 1e6 };
    const { outcome } = run(returning, { instances: spec === undefined ? [] : [{ ...spec, ssd }] });
    const blockBytes = blockTokens * cost.kvBytesPerToken;
    const readUs = Math.ceil((5 * blockBytes * 1e6) / 1e8);
    const computeUs = prefillUs(97, 5 * blockTokens);
    const exposedUs = Math.round(hostLink.exposedUs(computeUs, 5 * blockTokens, blockTokens));
    const stored = (tokens: number, blocks: number) =>
      prefillUs(tokens, 0) + Math.round(hostLink.exposedUs(prefillUs(tokens, 0), 0, blocks * blockTokens));
    const ttftUs = stored(97, 6) + stored(120, 7) + readUs + computeUs + exposedUs;
    expect(Math.round(3 * outcome.ttftUs.mean)).toBe(ttftUs);
    expect(outcome.tiers?.hitTokens).toEqual({ device: 0, host: 0, ssd: 5 * blockTokens, instance: 0 });
    expect(outcome.tiers?.bytes.ssdRead).toBe(5 * blockBytes);
    expect(outcome.missReasons.evicted).toBe(0);
  });

  it('recomputes blocks that no tier keeps', () => {
    const { outcome } = run(returning, { instances: cluster({ mixed: 1 }, { blocks: 8 }) });
    expect(outcome.endUs).toBe(2e6 + prefillUs(97, 0));
    expect(outcome.missReasons.evicted).toBe(5);
  });

  it('counts no hit when a preempted request takes its own blocks again', () => {
    const instances = cluster(
      { mixed: 1 },
      { blocks: 14, tiers: { hostBlocks: 19, ssdBlocks: 0 }, hostLink: link(1e8) },
    );
    const { outcome } = run([requestOf(0, 0, 62, 58), requestOf(1, 0, 28, 53), requestOf(2, 0, 78, 23)], { instances });
    expect(outcome.preemptions).toBeGreaterThan(0);
    expect(outcome.tiers?.hitTokens).toEqual({ device: 0, host: 0, ssd: 0, instance: 0 });
  });

  it('ends every request once, frees all memory, and has the same hash with equal steps run one by one', () => {
    const tiers = fc.record({ hostBlocks: fc.integer({ min: 1, max: 24 }), ssdBlocks: fc.constantFrom(0, 10, 80) });
    const shapes = fc.record({ mixed: fc.nat(2), prefill: fc.integer({ min: 1, max: 2 }), decode: fc.constant(1) });
    const links = fc.constantFrom(1e6, 1e8);
    const hits = new Map<string, number>();
    fc.assert(
      fc.property(traces, tiers, shapes, links, fc.boolean(), (trace, tiers, shape, bytesPerSecond, layerWise) => {
        const outcomes = [true, false].map((coalesce) => {
          const hostLink = link(bytesPerSecond, layerWise);
          const ssd = { readBytesPerSecond: 4 * bytesPerSecond, writeBytesPerSecond: 2 * bytesPerSecond };
          const instances = cluster(shape, { coalesce, tiers, blocks: 14, hostLink }).map((spec) => ({ ...spec, ssd }));
          const { outcome, unfinished } = run(trace, { instances });
          expect([outcome.requests, unfinished]).toEqual([trace.length, 0]);
          for (const [tier, tokens] of Object.entries(outcome.tiers?.hitTokens ?? {})) {
            expect(tokens).toBeGreaterThanOrEqual(0);
            hits.set(tier, (hits.get(tier) ?? 0) + tokens);
          }
          return [outcome.stateHash, outcome.endUs, outcome.steps, outcome.completedRequests];
        });
        expect(outcomes[0]).toEqual(outcomes[1]);
      }),
      { numRuns: 40 },
    );
    expect(hits.get('device')).toBeGreaterThan(1000);
    expect(hits.get('instance')).toBeGreaterThan(0);
  });
});
