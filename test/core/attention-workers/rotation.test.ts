// Rotation of batches over model replicas: order, timeline, idle times and moved bytes, for random times and sizes.
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import {
  checkTimeline,
  idleTimes,
  movedBytes,
  type RotationTimeline,
  replicasFor,
  rotation,
  timelineOf,
} from '../../../src/core/attention-workers/rotation.ts';

const sizes = { batches: fc.integer({ min: 2, max: 9 }), slices: fc.integer({ min: 1, max: 40 }) };
const time = fc.integer({ min: 1, max: 10_000 });

describe('rotation', () => {
  test('runs slice k of batch j on replica (j + k) mod (n - 1)', () => {
    fc.assert(
      fc.property(sizes.batches, sizes.slices, (batches, slices) => {
        const turns = rotation(batches, slices);
        for (const { batch, slice, replica } of turns) expect(replica).toBe((batch + slice) % (batches - 1));
        expect(new Set(turns.map(({ batch, slice }) => `${batch} ${slice}`)).size).toBe(batches * slices);
      }),
    );
  });

  test('runs one batch at a time on a replica and the slices of a batch in order, at any times', () => {
    fc.assert(
      fc.property(sizes.batches, sizes.slices, time, time, (batches, slices, slice, attention) => {
        checkTimeline(timelineOf(rotation(batches, slices), slice, attention), batches, slices);
      }),
    );
  });

  test('leaves no replica and no attention worker idle in steady state when t_a = t_m / (n - 1)', () => {
    fc.assert(
      fc.property(sizes.batches, fc.integer({ min: 8, max: 40 }), time, (batches, slices, attention) => {
        const slice = attention * replicasFor(batches);
        const timeline = timelineOf(rotation(batches, slices), slice, attention);
        // From the last batch's first attention to the first batch's last one.
        const [from, to] = steadyState(timeline, batches, slices);
        expect(to).toBeGreaterThan(from);
        const idle = idleTimes(timeline, from, to);
        expect([...idle.replicas, idle.attention]).toEqual(Array.from({ length: batches }, () => 0));
      }),
    );
  });

  test('at other times keeps the busier of replicas and attention workers busy in steady state', () => {
    fc.assert(
      fc.property(sizes.batches, fc.integer({ min: 8, max: 40 }), time, time, (batches, slices, slice, attention) => {
        const timeline = timelineOf(rotation(batches, slices), slice, attention);
        const replicas = replicasFor(batches);
        const cycle = Math.max(slice + attention, batches * attention, (batches * slice) / replicas);
        const [from, to] = [4, slices - 2].map((k) => startOf(timeline, 0, k));
        expect(to - from).toBeLessThanOrEqual((slices - 6) * cycle + 1e-6 * to);
      }),
    );
  });

  test('moves the carried context of each slice, and none with two batches', () => {
    fc.assert(
      fc.property(sizes.batches, sizes.slices, (batches, slices) => {
        const moved = movedBytes(
          rotation(batches, slices),
          Array.from({ length: slices }, () => 10),
        );
        expect(moved).toBe(batches === 2 ? 0 : 10 * batches * (slices - 1));
      }),
    );
  });

  test.each<[string, RotationTimeline, RegExp]>([
    [
      'two batches at once on a replica',
      { replicas: [[span(0, 0, 0, 4), span(1, 0, 3, 6)]], attention: [] },
      /replica 0 runs batches 0 and 1 at once/,
    ],
    ['a missing slice', { replicas: [[span(0, 0, 0, 4)]], attention: [] }, /batch 1 does not run each of its 1 slices/],
    [
      'a slice before its attention has ended',
      {
        replicas: [[span(0, 0, 0, 4), span(1, 0, 4, 8), span(0, 1, 8, 12), span(1, 1, 12, 16)]],
        attention: [span(0, 0, 4, 9), span(1, 0, 9, 10)],
      },
      /slice 1 of batch 0 does not follow its attention/,
    ],
  ])('is checked: %s is refused', (_, timeline, message) => {
    const slices = timeline.attention.length > 0 ? 2 : 1;
    expect(() => checkTimeline(timeline, 2, slices)).toThrow(message);
  });
});

function span(batch: number, slice: number, start: number, end: number) {
  return { batch, slice, start, end };
}

function startOf({ replicas }: RotationTimeline, batch: number, slice: number): number {
  const found = replicas.flat().find((each) => each.batch === batch && each.slice === slice);
  if (found === undefined) throw new Error(`no slice ${slice} of batch ${batch}`);
  return found.start;
}

function steadyState(timeline: RotationTimeline, batches: number, slices: number): [number, number] {
  return [startOf(timeline, batches - 1, 1), startOf(timeline, 0, slices - 1)];
}
