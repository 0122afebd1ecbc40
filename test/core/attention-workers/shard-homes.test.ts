// Shards of lost attention workers: they go to the workers with the fewest, and their pages never overlap.
import { describe, expect, test } from 'vitest';
import { firstPage, newHome, pagesPerShard } from '../../../src/core/attention-workers/shard-homes.ts';
import { Prng } from '../../../src/util/prng.ts';

describe('homes of shards', () => {
  test('a shard goes to the worker with the fewest shards, the next in order among equals', () => {
    expect(newHome(1, [0, 1], [true, false])).toBe(0);
    expect(newHome(1, [0, 1, 2], [true, false, true])).toBe(2);
    // Worker 2 holds shard 1 already.
    expect(newHome(0, [0, 2, 2, 3], [false, true, true, true])).toBe(3);
    expect(newHome(0, [0, 1], [false, false])).toBeUndefined();
    expect(newHome(0, [0], [false])).toBeUndefined();
  });

  test('all pages are used while each worker holds its own shard, an equal part otherwise', () => {
    expect(pagesPerShard([0, 1], 101)).toBe(101);
    expect(pagesPerShard([0, 0], 101)).toBe(50);
  });

  test('in random histories of losses no two shards share a page of a worker', () => {
    const prng = new Prng(1, 1);
    for (let run = 0; run < 50; run++) {
      const shards = prng.integer(1, 5);
      const pages = prng.integer(10, 200);
      const homes = Array.from({ length: shards }, (_, shard) => shard);
      const ready = homes.map(() => true);
      for (let turn = 0; turn < 30; turn++) {
        const shard = prng.integer(0, shards - 1);
        // All shards of a worker are lost together.
        for (let other = 0; other < shards; other++) if (homes[other] === homes[shard]) ready[other] = false;
        for (let other = 0; other < shards; other++) {
          if (ready[other] || prng.chance(0.3)) continue;
          homes[other] = (prng.chance(0.5) ? newHome(other, homes, ready) : undefined) ?? other;
          ready[other] = true;
        }
        const each = pagesPerShard(homes, pages);
        const ranges = homes.map((home, other) => ({ home, first: firstPage(other, home, shards, pages) }));
        for (const { first } of ranges) expect(first + each).toBeLessThanOrEqual(pages);
        const overlaps = ranges.some((a, i) =>
          ranges.some((b, j) => i < j && a.home === b.home && Math.abs(a.first - b.first) < each),
        );
        expect(overlaps).toBe(false);
      }
    }
  });
});
