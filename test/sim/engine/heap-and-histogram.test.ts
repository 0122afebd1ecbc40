// The order of events, and percentiles out of buckets.
import fc from 'fast-check';
import { expect, test } from 'vitest';
import { EventHeap } from '../../../src/sim/engine/event-heap.ts';
import { Histogram } from '../../../src/sim/report/histogram.ts';

test('events come in order of time, then of their keys, whatever order they went in', () => {
  const event = fc.tuple(fc.nat(20), fc.nat(50));
  fc.assert(
    fc.property(fc.array(event, { maxLength: 200 }), fc.array(fc.boolean(), { maxLength: 200 }), (events, pops) => {
      const heap = new EventHeap();
      const model: (readonly [number, number])[] = [];
      const first = () => model.sort(([a, i], [b, j]) => a - b || i - j)[0];
      const popped = () => {
        expect([heap.nextUs, heap.nextKey]).toEqual(first());
        heap.pop();
        model.shift();
      };
      events.forEach(([timeUs, key], i) => {
        heap.push(timeUs, key);
        model.push([timeUs, key]);
        if (pops[i] === true) popped();
      });
      while (model.length > 0) popped();
      expect([heap.size, heap.nextUs]).toEqual([0, Number.POSITIVE_INFINITY]);
    }),
  );
});

test('percentiles are within a thousandth of the exact ones; mean, count and maximum are exact', () => {
  const value = fc.oneof(fc.nat(3_000), fc.nat(2 ** 31 - 1), fc.maxSafeNat());
  fc.assert(
    fc.property(
      fc.array(value, { minLength: 1, maxLength: 100 }),
      fc.double({ min: 0.01, max: 1, noNaN: true }),
      (values, p) => {
        const histogram = new Histogram();
        for (const one of values) histogram.add(one);
        const sorted = Float64Array.from(values).sort();
        const exact = sorted[Math.ceil(p * sorted.length) - 1];
        expect(histogram.percentile(p)).toBeGreaterThanOrEqual(exact);
        expect(histogram.percentile(p)).toBeLessThanOrEqual(exact * 1.001);
        expect([histogram.count, histogram.max]).toEqual([values.length, sorted.at(-1)]);
        expect(histogram.mean).toBeCloseTo(values.reduce((sum, one) => sum + one, 0) / values.length, 6);
      },
    ),
  );
});
