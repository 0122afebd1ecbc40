// Remote keys of a step: queries that travel to them, or keys that travel to the rows (Ring Attention).
import { expect, it } from 'vitest';
import { simulate } from '../../../src/cli/simulate/sweep/sim-api.ts';
import { fetchesKeys, keysSent, ringUs } from '../../../src/core/cost/dist-attention.ts';

it('sends the keys of each decoding sequence, and those of a prompt once for all its rows', () => {
  expect(keysSent({ rows: 3, keyRows: 3000, decodeRows: 3, decodeKeys: 3000 })).toBe(3000);
  expect(keysSent({ rows: 512, keyRows: 512 * 4000, decodeRows: 0, decodeKeys: 0 })).toBe(4000);
  expect(keysSent({ rows: 513, keyRows: 512 * 4000 + 700, decodeRows: 1, decodeKeys: 700 })).toBe(4700);
  expect(ringUs({ layers: 40, rowBytes: 1, oneWayUs: 10, bytesPerUs: 1000 }, 5e6)).toBe(400 + 5000);
});

it('a simulated decode step waits for the keys of the ring, and not for those to which its query travels', async () => {
  const run = (flags: object) =>
    simulate({
      ...{ workload: 'plain', input: '20000', output: '8', context: 60_000, requests: 1, model: 'llama2-13b' },
      ...{ hardware: 'a100x8', tp: 4, mixed: 2, lendShare: 0.97, lowWater: 0.005, borrow: true, cacheBlocks: 22 },
      ...flags,
    });
  const [dist, ring] = [await run({}), await run({ remoteAttention: 'ring' })];
  // About half of 20,000 tokens of 819,200 bytes over the NICs of half a machine.
  const keysMs = (20_000 / 2) * (819_200 / 100e9) * 1000;
  expect(ring.tbtMs.p50).toBeGreaterThan(0.8 * keysMs);
  expect(ring.tbtMs.p50).toBeLessThan(1.3 * keysMs + dist.tbtMs.p50);
  expect(dist.tbtMs.p50).toBeLessThan(0.2 * keysMs);
  expect((ring.lending?.keyBytes ?? 0) / (dist.lending?.queryBytes ?? 0)).toBeGreaterThan(1);
  expect([ring.lending?.queryBytes, dist.lending?.keyBytes]).toEqual([0, 0]);
});

it('the faster way is taken, and of two that take as long the one with fewer bytes', () => {
  const way = (us: number, bytes: number) => ({ us, bytes });
  expect(fetchesKeys(way(100, 71e9), way(50, 14.8e9))).toBe(true);
  expect(fetchesKeys(way(100, 71e9), way(80, 90e9))).toBe(true);
  expect(fetchesKeys(way(100, 71e9), way(120, 14.8e9))).toBe(false);
  expect(fetchesKeys(way(100, 71e9), way(105, 14.8e9))).toBe(true);
  expect(fetchesKeys(way(105, 14.8e9), way(100, 71e9))).toBe(false);
  expect(fetchesKeys(way(5, 0), way(5, 0))).toBe(false);
});

it('a simulated prompt of many rows behind few remote keys fetches them, and its decode steps send rows', async () => {
  const run = (remoteAttention: 'dist' | 'auto') =>
    simulate({
      ...{ workload: 'plain', input: '20000', output: '8', context: 60_000, requests: 1, model: 'llama3-70b' },
      ...{ hardware: 'a100x8', tp: 4, mixed: 2, lendShare: 0.97, lowWater: 0.005, borrow: true, cacheBlocks: 22 },
      ...{ remoteAttention, check: true },
    });
  const [dist, auto] = [await run('dist'), await run('auto')];
  const bytes = ({ lending }: typeof dist) => (lending?.queryBytes ?? 0) + (lending?.keyBytes ?? 0);
  expect(auto.lending?.keyBytes).toBeGreaterThan(0);
  expect(auto.lending?.queryBytes).toBeGreaterThan(0);
  expect(bytes(auto)).toBeLessThan(0.5 * bytes(dist));
  expect(auto.ttftMs.p50).toBeLessThanOrEqual(dist.ttftMs.p50);
  expect(auto.tbtMs.p50).toBe(dist.tbtMs.p50);
});
