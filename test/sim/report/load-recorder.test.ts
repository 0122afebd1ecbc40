// Samples of a run: equidistant, bounded, and ended with the run.
import { describe, expect, it } from 'vitest';
import { Histogram } from '../../../src/sim/report/histogram.ts';
import { LoadRecorder, type RecordedSimulation } from '../../../src/sim/report/load-recorder.ts';
import { Outcome } from '../../../src/sim/report/outcome.ts';

/** One instance that runs as many requests as seconds have passed. */
function recorded(endUs: number) {
  const outcome = new Outcome();
  let nowUs = 0;
  const simulation = {
    outcome,
    lending: { debts: [{ debtor: 0, creditor: 1, blocks: 2 }] },
    cluster: {
      network: {
        moved: { prefix: 0, handoff: 0, borrow: 0, settle: 0, activations: 0 },
        // Sends at half of its NIC's rate until the end.
        trafficBy: (atUs: number) => ({ sent: Float64Array.of(atUs / 2), received: Float64Array.of(0) }),
        nicBytesPerSecond: [1e6],
        links: [],
      },
    },
    get nowUs() {
      return Math.min(nowUs, endUs);
    },
    loads: (atUs: number) => (atUs < 1e6 ? undefined : { prefill: atUs / 1e6, decode: 2 }),
    advance: (timeUs: number) => {
      nowUs = timeUs;
      outcome.completedRequests = Math.floor(nowUs / 1e6);
    },
    snapshots: () => [
      {
        ready: true,
        waiting: 0,
        running: Math.floor(Math.min(nowUs, endUs) / 1e6),
        pages: { total: 4, used: 1, cached: 2, free: 1 },
        promptTokens: 0,
        cachedTokens: 0,
        computedPromptTokens: 0,
        generatedTokens: 0,
        preemptions: 0,
        steps: 0,
        stepMsTotal: 0,
        evictedBlocks: 0,
        usedPageSeconds: 0,
        tiers: {
          host: { blocks: 3, capacity: 4 },
          ssd: { blocks: 0, capacity: 0 },
          reads: { host: 0, ssd: 0, instance: 0 },
          lostBlocks: 0,
        },
      },
    ],
  } satisfies RecordedSimulation;
  const recorder = new LoadRecorder(simulation);
  recorder.advance(endUs + 20e6);
  simulation.advance(endUs + 20e6);
  recorder.close();
  return recorder.load();
}

describe('load over time', () => {
  it.each([0.3, 51, 52, 4_000, 1e6])(
    'of %d s is a bounded number of samples at equal distances, and the end',
    (seconds) => {
      const load = recorded(seconds * 1e6);
      expect(load.seconds.length).toBeLessThanOrEqual(513);
      if (seconds > 100) expect(load.seconds.length).toBeGreaterThan(200);
      expect(load.seconds.at(-1)).toBe(seconds);
      const gaps = load.seconds.slice(1, -1).map((at, i) => at - load.seconds[i]);
      for (const gap of gaps) expect(gap).toBeCloseTo(gaps[0], 6);
      expect(load.running[0]).toEqual(load.seconds.map(Math.floor));
      const everywhere = (share: number) => load.seconds.map(() => share);
      expect(load.tiers).toEqual({ device: everywhere(0.75), host: everywhere(0.75), ssd: [] });
      if (seconds > 1)
        expect(load.poolLoads.map(({ prefill }) => prefill)).toEqual(load.seconds.map((s) => (s < 1 ? 0 : s)));
      else expect(load.poolLoads).toEqual([]);
      expect(load.nicSent[0]).toEqual(load.seconds.map((_, i) => (i + 1 < load.seconds.length ? 0.5 : 0)));
      expect(load.debts).toEqual(load.seconds.map(() => [[0, 1, 2]]));
      expect(load.kvUsed[0].every((share) => share === 0.25)).toBe(true);
    },
  );
});

describe('bins of a histogram', () => {
  it.each([1, 7, 96])('cover every value once, with at most %d bins', (most) => {
    const histogram = new Histogram();
    const values = [0, 1, 3, 900, 1023, 1024, 5_000, 123_456, 2 ** 40];
    for (const value of values) histogram.add(value);
    const bins = histogram.bins(most);
    expect(bins.length).toBeLessThanOrEqual(most);
    for (const { from, to, count } of bins)
      expect(values.filter((value) => value >= from && value <= to)).toHaveLength(count);
    expect(bins.reduce((sum, { count }) => sum + count, 0)).toBe(values.length);
    for (let i = 1; i < bins.length; i++) expect(bins[i].from).toBe(bins[i - 1].to + 1);
  });

  it('are none for an empty histogram', () => {
    expect(new Histogram().bins(5)).toEqual([]);
  });
});
